"""Work of an engine on a device: a batch is timed with one wait, and a step has few launches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from suite import SGD, Engine
from suite.accelerator import Clock
from suite.core.trace import BACKWARD, COMPRESS, EXPAND, FORWARD, STEP
from suite.engine.pruning.settings import Pruning
from suite.pruning.magnitude import Magnitude
from tests.support.small_engines import alone, linears, mse_loss, normal_batches


class Queue:
    """A device whose events are one second apart, and which counts the waits of the host."""

    def __init__(self) -> None:
        self.recorded = self.waits = 0

    def event(self, device: torch.device, *, enable_timing: bool) -> Any:
        assert (device.type, enable_timing) == ("cuda", True)
        return Event(self)


class Event:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def record(self, stream: object) -> None:
        self.number = self.queue.recorded
        self.queue.recorded += 1

    def query(self) -> bool:
        return False

    def elapsed_time(self, later: Event) -> float:
        return 1000.0 * (later.number - self.number)

    def synchronize(self) -> None:
        self.queue.waits += 1


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    queue = Queue()
    monkeypatch.setattr(torch, "Event", queue.event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: None)
    return queue


def test_a_batch_is_timed_by_events_with_one_wait(queue: Queue) -> None:
    pruning = Pruning(Magnitude(), 0.5)
    engine = Engine(
        linears(4, 4, 4), loss=mse_loss, optimizer=SGD(0.1), microbatch=2, pruning=pruning, check_loss=0, world=alone()
    )
    state = engine.state
    state.clock = clock = Clock("cuda")
    state.model_states.mark = clock.mark
    for batch in normal_batches(3, 4, 4, 4):
        queue.waits = queue.recorded = 0
        engine.train_batch(batch)
        assert queue.waits == 1
        assert not clock.events
        spans: Counter[str] = Counter(span.category for span in state.trace)
        # each of two backward passes compresses the gradients of two weights: four pieces of a second, two spans of 2 s
        assert spans == {FORWARD: 2, BACKWARD: 2, STEP: 1, COMPRESS: 2, EXPAND: 1}
        assert [span.seconds for span in state.trace if span.category == COMPRESS] == pytest.approx([2.0, 2.0])
        assert max(span.end for span in state.trace) - min(span.start for span in state.trace) < queue.recorded
