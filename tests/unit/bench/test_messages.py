"""Decides whether a study of messages times what has arrived and nothing else.

Ranks are threads here; tests/distributed has real ones, under MPI and gloo.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from configs import altered

from suite.bench import messages
from suite.bench.messages import Messages, check_sizes, links, rounds_of, sweep
from suite.bench.runs import freeze
from suite.comm import loopback, ways
from suite.comm.loopback import LoopbackGroup, LoopbackTransport, LoopbackWorld
from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.core.errors import RankError, Refused, UnknownName, Unsupported
from suite.core.op import Op
from suite.core.protocols import Handle, Value

SIZES = [8, 64, 1024, 4096]
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return resolve(["executor=messages", "grid.data=2", "executor.sizes=[8,64,1024,4096]"])


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [[], None, 8, "8", [0], [-8], [8, -64], [6], [8, 8], [64, 8], [8.0], [True, 8], ["8"], [4, None]]
)
def test_a_list_of_sizes_that_is_none_is_refused_with_a_legal_one(sizes: Any) -> None:
    with pytest.raises(Refused, match=r"executor\.sizes=.*; rule: .*rising; legal: executor\.sizes=\[8,1024,65536\]"):
        check_sizes(sizes)


def test_every_other_list_is_taken() -> None:
    for sizes in ([4], [8, 12, 16], SIZES, (8, 1 << 24)):
        check_sizes(sizes)


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"executor__operation": "all_to_all"}, UnknownName, "all_reduce, point_to_point"),
        ({"executor__sizes": []}, Refused, "executor.sizes=[]"),
        ({"executor__rounds": 0}, Refused, "executor.rounds=0"),
        ({"executor__traffic": 1.5}, Refused, "executor.traffic=1.5"),
        ({"executor__carriers": []}, Refused, "a list of carriers"),
        ({"executor__carriers": "mpi"}, Refused, "a list of carriers"),
        ({"executor__carriers": ["gloo", "gloo"]}, Refused, "each once"),
        ({"executor__carriers": ["pigeons"]}, UnknownName, "gloo, mpi, nccl"),
        ({"executor__carriers": ["mpi", "nccl"]}, Unsupported, "legal: launch.device=cuda"),
        ({"launch__starter": "torchrun"}, Unsupported, "legal: launch.starter=mpiexec"),
        ({"grid__data": 1}, Refused, "1 ranks under executor=messages"),
        ({"grid__data": 65}, Refused, "65 ranks under executor=messages"),
        ({"comm__transport": "gloo"}, Refused, "legal: comm.transport=auto"),
    ],
)
def test_a_study_that_cannot_be_made_is_refused(
    base: RunConfig, changes: dict[str, Any], kind: type[Refused], words: str
) -> None:
    config = altered(base, **changes)
    with pytest.raises(kind) as caught:
        Messages.check(config)
    assert words in str(caught.value)
    config = config.changed({"batch.size": config.grid.data, "batch.microbatch": 1})
    refusal = freeze(config.plain(), "").refusal  # wherever it is asked
    assert refusal is not None


def test_nccl_is_taken_where_there_is_a_device(base: RunConfig) -> None:
    Messages.check(altered(base, launch__device="cuda", executor__carriers=["mpi", "gloo", "nccl"]))
    Messages.check(altered(base, launch__starter="torchrun", executor__carriers=["gloo"]))
    Messages.check(base)


def test_large_messages_have_fewer_rounds_and_two_at_least() -> None:
    found = [rounds_of(size, 10, 4096) for size in (8, 256, 409, 410, 1024, 4096, 1 << 24)]
    assert found == [10, 10, 10, 9, 4, 2, 2]
    assert rounds_of(1 << 24, 1, 4096) == 1


# -- what is measured ----------------------------------------------------------------------------------------------


def swept(operation: str, ranks: int = 2, world: Callable[[LoopbackWorld], LoopbackWorld] = lambda own: own) -> Any:
    """The sweep of each rank over threads, and the names of the ways. `world`: what is put in the world's place."""

    def rank(own: LoopbackWorld) -> Any:
        ours = world(own)
        made = (ways.trips if operation == "point_to_point" else ways.sums)(ours, ["threads"])
        found = sweep(ours, made, SIZES, 5, 8192)
        for way in made:
            way.close()
        return found

    return loopback.run(ranks, rank, deadline=30)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("operation", messages.OPERATIONS)
def test_every_size_has_its_samples_on_every_rank(operation: str, ranks: int) -> None:
    names = ["suite over threads"] + ["suite over threads bfloat16"] * (operation == "all_reduce")
    for number, found in enumerate(swept(operation, ranks)):
        assert list(found) == names
        for samples in found.values():
            assert [len(each) for each in samples] == [5, 5, 5, 2]
            timed = operation == "all_reduce" or number < 2
            assert all((second > 0) == timed for each in samples for second in each), "who has no part has no time"


def test_a_first_rank_that_starts_late_is_not_what_is_timed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ways, "LATE", 0.02)
    first, _ = swept("point_to_point")
    assert statistics.median(first["suite over threads"][0]) < 0.01


class Broken(LoopbackWorld):
    """A world whose lanes or groups do what they must not."""

    def __init__(self, own: LoopbackWorld, fault: str) -> None:
        super().__init__(own.hub, own.rank)
        self.fault = fault

    def transport(self, before: int | None, after: int | None, stages: int) -> LoopbackTransport:
        return BrokenLanes(self.hub, self.rank, before, after, stages, self.fault)  # type: ignore[call-arg]

    def group(self, ranks: Sequence[int]) -> LoopbackGroup:
        made = super().group(ranks)
        if len(ranks) == self.size and not isinstance(made, BrokenGroup) and self.fault in BrokenGroup.faults:
            made = self.groups[tuple(ranks)] = BrokenGroup(self.hub, self.rank, ranks)
            made.fault = self.fault
        return made


class BrokenLanes(LoopbackTransport):
    def __init__(self, *arguments: Any) -> None:
        *rest, self.fault = arguments
        super().__init__(*rest)
        self.last: Value | None = None

    def send(self, op: Op, value: Value) -> None:
        mended = self.fault == "mended" and self.rank == 1
        super().send(op, tuple(tensor - 1 for tensor in value) if mended else value)

    def arrived(self, wish: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        come = super().arrived(wish, timeout)
        assert come is not None
        op, (value,) = come
        before, self.last = self.last, (value.clone(),)
        if self.fault == "last number":
            value = value.clone()
            value[-1] += 1
        elif self.fault == "mended" and self.rank == 1:  # wrong there, and right again when it is back
            value = value + 1
        elif self.fault == "displaced":
            value = value.roll(1)
        elif self.fault == "another type":
            value = value.double()
        elif self.fault == "short":
            value = value[:-1]
        elif self.fault == "what came before" and before is not None and before[0].shape == value.shape:
            (value,) = before
        return op, (value,)


class BrokenGroup(LoopbackGroup):
    faults = ("not added", "added twice", "one number not")
    fault = ""

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Handle:
        if tensor.dtype == torch.float64:  # the barrier's
            return super().all_reduce(tensor, op)
        own = tensor.clone()
        handle = super().all_reduce(tensor, op)
        handle.wait()
        if self.fault == "not added":
            tensor.copy_(own)
        elif self.fault == "added twice":
            tensor.add_(own)
        else:
            tensor[0] = own[0]
        return handle


@pytest.mark.parametrize("fault", ["last number", "mended", "displaced", "another type", "short", "what came before"])
def test_a_lane_that_spoils_a_value_ends_the_run(fault: str) -> None:
    with pytest.raises(RankError, match=r"suite over threads: \d+ of \d+ numbers of value -?\d+ \(\d+ bytes\)"):
        swept("point_to_point", world=lambda own: Broken(own, fault))


@pytest.mark.parametrize("held", [0, 1])
@pytest.mark.parametrize("kind", [ways.Trip, ways.Sum])
def test_what_lay_there_before_is_no_arrival(kind: type[ways.Way], held: int) -> None:
    """Neither what a rank starts with nor the memory for what comes is what it must have in the end."""
    way = kind(LoopbackWorld(loopback.Hub(2), 1), "nothing", "threads", lambda *memory: memory[held])
    for number in range(6):
        way.ready(64, number)
        way.go()
        with pytest.raises(RankError, match=r"nothing: \d+ of 16 numbers"):
            way.check()


def test_what_came_long_ago_is_no_arrival() -> None:
    """Values repeat after three rounds."""
    came = iter([True, False])
    bits = ways.pattern(16, torch.float32, torch.device("cpu"))

    def turn(_: torch.Tensor, space: torch.Tensor) -> torch.Tensor:
        return space.copy_(bits + ways.shift(0, 0)) if next(came) else space

    way = ways.Trip(LoopbackWorld(loopback.Hub(2), 1), "once", "threads", turn)
    way.ready(64, 0)
    way.go()
    way.check()
    way.ready(64, 3)
    way.go()
    with pytest.raises(RankError, match="once: 16 of 16 numbers of value 3"):
        way.check()


@pytest.mark.parametrize("fault", BrokenGroup.faults)
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_sum_that_is_wrong_ends_the_run(fault: str, ranks: int) -> None:
    with pytest.raises(RankError, match=r"suite over threads( bfloat16)?: \d+ of \d+ numbers"):
        swept("all_reduce", ranks, world=lambda own: Broken(own, fault))


def test_the_broken_worlds_are_broken_by_their_faults_alone() -> None:
    for operation in messages.OPERATIONS:
        swept(operation, world=lambda own: Broken(own, "none"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_over_the_most_ranks_are_not_rounded(dtype: torch.dtype) -> None:
    bits = ways.pattern(4096, dtype, torch.device("cpu"))
    assert {float(bit) for bit in bits.unique()} == {0.0, 1.0}
    assert not torch.equal(bits, bits.roll(1))
    total = torch.zeros_like(bits)
    for rank in range(messages.MOST_RANKS):
        total += bits + ways.shift(5, rank)
    shifts = sum(ways.shift(5, rank) for rank in range(messages.MOST_RANKS))
    exact = bits.double() * messages.MOST_RANKS + shifts
    assert torch.equal(total.double(), exact)
    assert {ways.shift(number, rank) for number in range(-1, 3) for rank in range(3)} == {1, 2, 3}, "0 adds nothing"


def test_a_machine_is_its_least_times(monkeypatch: Patch) -> None:
    """Times are a line's, and more than that in all rounds but one; a way whose times fall has none."""
    go = ways.Way.go

    def slowed(way: ways.Way) -> float:
        go(way)
        if way.type == torch.bfloat16:
            return 1e-3 / way.size
        return (2e-5 + way.size / 5e9) * (1 + way.number % 4)

    monkeypatch.setattr(ways.Way, "go", slowed)

    def rank(world: LoopbackWorld) -> Any:
        return links(world, ["threads"])

    first, second = loopback.run(2, rank, deadline=60)
    (trip,), (total,) = (found.values() for found in first.values())
    assert list(first) == list(messages.OPERATIONS)
    assert list(first["all_reduce"]) == ["suite over threads"]
    assert trip == {"latency": pytest.approx(1e-5), "bandwidth": pytest.approx(1e10)}, "half of there and back"
    assert total == {"latency": pytest.approx(2e-5), "bandwidth": pytest.approx(5e9)}
    assert second == {"point_to_point": {}, "all_reduce": {}}
