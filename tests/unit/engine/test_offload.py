"""Model states: gradients as views, and offloaded buckets, whose three streams a log stands in for."""

from __future__ import annotations

import weakref
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from suite import accelerator
from suite.core.errors import InvalidRequest
from suite.engine.optim.optimizer import Adam
from suite.engine.optim.update import check_attached
from suite.engine.states.offload import HostOffloader
from suite.engine.states.state import ModelState
from suite.memory.layout import ModelStateSpec, offloaded, resident
from tests.support.refusals import refused


def weights(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def test_replaced_gradient_or_weight_is_detected() -> None:
    parameters = weights(((3,), (2,)))
    parameters[0].grad = torch.tensor([5.0, 6.0, 7.0])
    state = ModelState(parameters, ("velocity",), resident)
    assert state.gradient.tolist() == [5.0, 6.0, 7.0, 0.0, 0.0]  # gradients that exist are kept
    parameters[0].grad = torch.tensor([1.0, 2.0, 3.0])
    with refused(InvalidRequest, subject=".grad of a weight"):
        check_attached(state)
    state.attach_gradients()
    check_attached(state)
    assert state.gradient.tolist() == [1.0, 2.0, 3.0, 0.0, 0.0]
    parameters[1].grad = None  # as after zero_grad()
    with refused(InvalidRequest, subject=".grad of a weight"):
        check_attached(state)
    state.attach_gradients()
    parameters[1].sum().backward()
    assert state.gradient.tolist() == [1.0, 2.0, 3.0, 1.0, 1.0]
    parameters[1].data = parameters[1].data.clone()
    with refused(InvalidRequest, subject=".data of a weight"):
        check_attached(state)


class Stream:
    """A stream that logs what it waits for; its events have numbers."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.events = name, log, 0

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Event) -> None:
        self.log.append(f"{self.name} waits for {event.name}")

    def synchronize(self) -> None:
        self.log.append(f"host waits for {self.name}")

    def record_event(self) -> Event:
        event = Event(f"{self.name} {self.events}")
        self.log.append(event.name)
        self.events += 1
        return event

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class Event(NamedTuple):
    name: str


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The log of all streams of offloaders, which believe that they are on a device."""
    log: list[str] = []
    names = cycle(["fetch", "write-back"])
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: Stream("step", log))
    monkeypatch.setattr(torch, "Stream", lambda device: Stream(next(names), log))
    streams = accelerator.copy_streams
    monkeypatch.setattr(accelerator, "copy_streams", lambda device: streams("cuda"))
    return log


def offloader_of(buffer_sets: int) -> HostOffloader:
    fetched = [ModelStateSpec("master_bucket", "scratch", "float32", 4 * buffer_sets, life="bucket")]
    return HostOffloader(fetched, 4, torch.device("cpu"))


def steps_of(number: int) -> list[str]:
    """What follows the fetch of a bucket."""
    return [
        f"step waits for fetch {number}",
        f"step {number}",
        f"write-back waits for step {number}",
        f"write-back {number}",
    ]


EVENTS = {
    1: ["fetch 0", *steps_of(0), "fetch waits for write-back 0", "fetch 1", *steps_of(1)],
    2: [
        *("fetch 0", "fetch 1", *steps_of(0)),
        *("fetch waits for write-back 0", "fetch 2", *steps_of(1), *steps_of(2)),
    ],
}


@pytest.mark.parametrize("buffer_sets", EVENTS)
def test_bucket_is_fetched_when_its_buffers_are_free(buffer_sets: int, log: list[str]) -> None:
    """One set of buffers fetches after the write-back; two sets fetch the next bucket during a step."""
    buckets = buffer_sets + 1
    state = torch.arange(4.0 * buckets)
    spans = [slice(4 * n, 4 * n + 4) for n in range(buckets)]
    for span, copies in offloader_of(buffer_sets).fetch_buckets({"master": state}, spans):
        assert copies["master"].tolist() == state[span].tolist()
        copies["master"].mul_(2)
    assert state.tolist() == [2 * value for value in range(4 * buckets)]
    assert log == ["fetch waits for step", *EVENTS[buffer_sets], "host waits for write-back"]


def test_a_failed_step_waits_for_copies_under_way(log: list[str]) -> None:
    buckets: Any = offloader_of(1).fetch_buckets({"master": torch.zeros(8)}, [slice(0, 4), slice(4, 8)])
    next(buckets)
    with pytest.raises(ZeroDivisionError):
        buckets.throw(ZeroDivisionError)
    assert log[1:] == ["fetch 0", "step waits for fetch 0", "host waits for write-back"]


def state_of(bucket: int, layout_bucket: int) -> ModelState:
    layout = partial(offloaded, bucket=layout_bucket)
    weight = nn.Parameter(torch.ones(10))
    return ModelState([weight], Adam(0.1).states, layout, half=torch.bfloat16, bucket_numel=bucket)


def test_layout_with_other_bucket_size_is_rejected() -> None:
    for bucket, layout in ((5, 3), (3, 100), (3, 5), (10, 4)):
        with refused(InvalidRequest, "bucket_numel", str(bucket), rule="an optimizer step takes the entries"):
            state_of(bucket, layout)


class Watched(ModelState):
    """Model states that count, before each weight is copied, how many original weights are alive."""

    drawn: tuple[Any, ...] = ()
    seen: tuple[int, ...] = ()

    def _part(self, flat: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
        self.seen += (sum(storage() is not None for storage in self.drawn),)
        return super()._part(flat, parameter)


def test_setup_frees_each_weight_before_copying_next() -> None:
    """AxoNN's public code frees none before all are copied, so its peak at setup is higher than in any step."""
    parameters = [nn.Parameter(torch.full((7,), float(number))) for number in range(5)]
    Watched.drawn = tuple(weakref.ref(p.data.untyped_storage()) for p in parameters)
    state = Watched(parameters, Adam(0.1).states, partial(offloaded, bucket=4), half=torch.bfloat16, bucket_numel=4)
    assert state.seen[:6] == (5, 4, 3, 2, 1, 0)
