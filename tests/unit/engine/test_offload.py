"""Offloaded buckets: order of fetch, step and write-back on one and on three streams.

Lists of calls replace the streams of a device that this machine may lack."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest
from suite.engine.optim.optimizer import Adam
from suite.engine.optim.update import Update
from suite.engine.states import offload
from suite.engine.states.offload import CopyStreams, HostOffloader
from suite.engine.states.state import ModelState
from suite.memory.layout import ModelStateSpec, offloaded, resident
from tests.support.refusals import refused


class RecordedStreams:
    """Stand-in for CopyStreams that records its calls in order."""

    def __init__(self, device: Any, buffer_sets: int) -> None:
        self.events: list[tuple[str, int]] = []
        instances.append(self)

    @contextmanager
    def fetching(self, number: int) -> Iterator[None]:
        self.events.append(("fetch", number))
        yield

    @contextmanager
    def writing_back(self, number: int) -> Iterator[None]:
        yield
        self.events.append(("written back", number))

    def wait_for_fetch(self, number: int) -> None:
        self.events.append(("wait", number))

    def mark_stepped(self, number: int) -> None:
        self.events.append(("stepped", number))

    def close(self) -> None:
        self.events.append(("closed", -1))


instances: list[RecordedStreams] = []


@pytest.fixture
def recorded_streams(monkeypatch: pytest.MonkeyPatch) -> list[RecordedStreams]:
    instances.clear()
    monkeypatch.setattr(offload, "CopyStreams", RecordedStreams)
    return instances


def events_of(buffer_sets: int, buckets: int) -> list[tuple[str, int]]:
    fetched = [ModelStateSpec("master_bucket", "scratch", "float32", 4 * buffer_sets, life="bucket")]
    offloader = HostOffloader(fetched, 4, torch.device("cpu"))
    assert offloader.buffer_sets == buffer_sets
    state = torch.arange(4.0 * buckets)
    spans = [slice(4 * n, 4 * n + 4) for n in range(buckets)]
    for span, copies in offloader.fetch_buckets({"master": state}, spans):
        assert copies["master"].tolist() == state[span].tolist()
        copies["master"].mul_(2)
    assert state.tolist() == [2 * value for value in range(4 * buckets)]
    return instances[-1].events


def test_one_buffer_set_fetches_after_the_write_back(recorded_streams: list[RecordedStreams]) -> None:
    calls = ["fetch", "wait", "stepped", "written back"]
    assert events_of(1, 2) == [*[(call, 0) for call in calls], *[(call, 1) for call in calls], ("closed", -1)]


def test_two_buffer_sets_fetch_the_next_bucket_during_a_step(recorded_streams: list[RecordedStreams]) -> None:
    assert events_of(2, 3) == [
        ("fetch", 0),
        ("fetch", 1),
        ("wait", 0),
        ("stepped", 0),
        ("written back", 0),
        ("fetch", 2),
        ("wait", 1),
        ("stepped", 1),
        ("written back", 1),
        ("wait", 2),
        ("stepped", 2),
        ("written back", 2),
        ("closed", -1),
    ]


def test_a_failed_step_waits_for_copies_under_way(recorded_streams: list[RecordedStreams]) -> None:
    spec = ModelStateSpec("master_bucket", "scratch", "float32", 4, life="bucket")
    offloader = HostOffloader([spec], 4, torch.device("cpu"))
    buckets: Any = offloader.fetch_buckets({"master": torch.zeros(8)}, [slice(0, 4), slice(4, 8)])
    next(buckets)
    with pytest.raises(ZeroDivisionError):
        buckets.throw(ZeroDivisionError)
    assert instances[-1].events == [("fetch", 0), ("wait", 0), ("closed", -1)]


class Stream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Any) -> None:
        self.log.append(f"{self.name} waits for {event.what}")

    def synchronize(self) -> None:
        self.log.append(f"host waits for {self.name}")


def test_streams_wait_for_required_events_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket is fetched when its buffers are free, stepped when fetched, and written back when stepped."""
    log: list[str] = []
    names = iter(["come", "leave"])

    class Event:
        def record(self, stream: Stream) -> None:
            self.what = f"the end of {stream.name}'s work"
            log.append(f"{stream.name} marks")

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        log.append(f"on {stream.name}")
        yield

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("step", log))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(next(names), log))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", on)
    streams = CopyStreams(torch.device("cuda"), 1)
    for number in range(2):
        with streams.fetching(number):
            pass
        streams.wait_for_fetch(number)
        streams.mark_stepped(number)
        with streams.writing_back(number):
            pass
    streams.close()
    bucket = [
        "on come",
        "come marks",
        "step waits for the end of come's work",
        "step marks",
        "leave waits for the end of step's work",
        "on leave",
        "leave marks",
    ]
    again = ["come waits for the end of leave's work", *bucket]
    assert log == ["come waits for step", *bucket, *again, "host waits for leave"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("sets", [1, 2])
def test_cuda_offload_is_bit_identical_to_resident_states(sets: int) -> None:
    def weights(layout: Any) -> torch.Tensor:
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(1 << 20, device="cuda"))
        state = ModelState([weight], Adam(0.1).states, layout, half=torch.bfloat16, bucket_numel=100_000)
        for _ in range(3):
            state.gradient.copy_(torch.randn(1 << 20))
            state.step(Adam(0.1))
            state.finish(stepped=True)
        return state.rule.weights[0].cpu()

    assert torch.equal(weights(partial(offloaded, bucket=100_000, sets=sets)), weights(resident))


def state_of(bucket: int, layout_bucket: int, entries: int = 10) -> ModelState:
    layout = partial(offloaded, bucket=layout_bucket)
    return ModelState(
        [nn.Parameter(torch.ones(entries))], Adam(0.1).states, layout, half=torch.bfloat16, bucket_numel=bucket
    )


@pytest.mark.parametrize(("bucket", "layout"), [(5, 3), (3, 100), (3, 5), (10, 4)])
def test_layout_with_other_bucket_size_is_rejected(bucket: int, layout: int) -> None:
    with refused(InvalidRequest, "bucket_numel", str(bucket), rule="an optimizer step takes the entries"):
        state_of(bucket, layout)


def test_every_bucket_is_fetched_once_per_update(recorded_streams: list[RecordedStreams]) -> None:
    """With and without overlap: one set of streams per update, and the host waits only at its end."""

    def rank(world: threads.LoopbackWorld) -> None:
        state = state_of(3, 3)
        group = world.group(range(world.size))
        transport = world.transport((world.rank,))
        update = Update(
            state,
            Adam(0.1),
            data_parallel_group=group,
            transport=transport,
            buckets_per_reduction=2,
        )
        assert update.overlap == "chunks of 2 buckets of 3"
        list(update.run())

    threads.run(2, rank)
    assert [events.count(("closed", -1)) for events in (one.events for one in recorded_streams)] == [1, 1]
    assert [sum(what == "stepped" for what, _ in one.events) for one in recorded_streams] == [4, 4]


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
