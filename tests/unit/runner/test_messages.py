"""Message studies time arrived messages only.

Ranks are threads here; tests/distributed has real ones, under MPI and gloo.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from suite.comm.p2p import threads
from suite.comm.p2p.threads import LoopbackGroup, LoopbackTransport, LoopbackWorld
from suite.config.compose import resolve
from suite.config.executor import MicrobenchmarkExecutor
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, RankError, UnknownName, Unsupported
from suite.core.op import Op
from suite.core.protocols import Handle, Value
from suite.microbench import communication
from suite.runner.executors import message_sizes
from suite.runner.executors.message_sizes import Messages, check_sizes, links, rounds_of, sweep
from suite.runner.runs import freeze
from tests.support.configs import altered

SIZES = [8, 64, 1024, 4096]
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return resolve(["executor=messages", "grid.data=2", "executor.sizes=[8,64,1024,4096]"])


def study(config: RunConfig) -> Messages:
    """The study that a config describes."""
    assert isinstance(config.executor, MicrobenchmarkExecutor)
    executor = config.executor.build()
    assert isinstance(executor, Messages)
    return executor


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [[], None, 8, "8", [0], [-8], [8, -64], [6], [8, 8], [64, 8], [8.0], [True, 8], ["8"], [4, None]]
)
def test_illegal_sizes_are_refused_with_a_legal_list(base: RunConfig, sizes: Any) -> None:
    refusal = str(freeze(altered(base, executor__sizes=sizes, batch__size=2, batch__microbatch=1).plain(), "").refusal)
    legal = re.fullmatch(r"executor\.sizes=.*; rule: .*; legal: executor\.sizes=(\[.*\])", refusal)
    assert legal, refusal
    check_sizes(json.loads(legal[1]))


def test_other_lists_are_accepted() -> None:
    for sizes in ([4], [8, 12, 16], SIZES, (8, 1 << 24)):
        check_sizes(sizes)


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"executor__operation": "all_to_all"}, UnknownName, "all_reduce, point_to_point"),
        ({"executor__sizes": []}, InvalidRequest, "executor.sizes=[]"),
        ({"executor__rounds": 0}, InvalidRequest, "executor.rounds=0"),
        ({"executor__traffic": 1.5}, InvalidRequest, "executor.traffic=1.5"),
        ({"executor__backends": []}, InvalidRequest, "a list of backends"),
        ({"executor__backends": "mpi"}, InvalidRequest, "backends is a list"),
        ({"executor__backends": ["gloo", "gloo"]}, InvalidRequest, "each once"),
        ({"executor__backends": ["pigeons"]}, UnknownName, "gloo, mpi, nccl"),
        ({"executor__backends": ["mpi", "nccl"]}, Unsupported, "legal: launch.device=cuda"),
        ({"launch__launcher": "torchrun"}, Unsupported, "legal: launch.launcher=mpiexec"),
        ({"grid__data": 1}, InvalidRequest, "1 ranks under executor=messages"),
        ({"grid__data": 65}, InvalidRequest, "65 ranks under executor=messages"),
        ({"comm__transport": "gloo"}, InvalidRequest, "legal: comm.transport=auto"),
    ],
)
def test_impossible_message_study_is_refused(
    base: RunConfig, changes: dict[str, Any], kind: type[InvalidRequest], words: str
) -> None:
    config = altered(base, **changes)
    with pytest.raises(kind) as caught:
        study(config).check(config)
    assert words in str(caught.value)
    config = config.changed({"batch.size": config.grid.data, "batch.microbatch": 1})
    refusal = freeze(config.plain(), "").refusal  # wherever it is asked
    assert refusal is not None


def test_nccl_is_taken_where_there_is_a_device(base: RunConfig) -> None:
    for config in (
        altered(base, launch__device="cuda", executor__backends=["mpi", "gloo", "nccl"]),
        altered(base, launch__launcher="torchrun", executor__backends=["gloo"]),
        base,
    ):
        study(config).check(config)


def test_large_messages_have_fewer_rounds_and_two_at_least() -> None:
    rounds = [rounds_of(size, 10, 4096) for size in (8, 256, 409, 410, 1024, 4096, 1 << 24)]
    assert rounds == [10, 10, 10, 9, 4, 2, 2]
    assert rounds_of(1 << 24, 1, 4096) == 1


# -- what is measured ----------------------------------------------------------------------------------------------


def swept(operation: str, ranks: int = 2, world: Callable[[LoopbackWorld], LoopbackWorld] = lambda whole: whole) -> Any:
    """The sweep of each rank over threads, and the names of the operations. `world`: what stands in for the world."""

    def rank(whole: LoopbackWorld) -> Any:
        ours = world(whole)
        operations = (communication.round_trips if operation == "point_to_point" else communication.all_reduces)(
            ours, ["threads"]
        )
        times = sweep(ours, operations, SIZES, 5, 8192)
        for each in operations:
            each.close()
        return times

    return threads.run(ranks, rank, deadline=30)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("operation", message_sizes.OPERATIONS)
def test_every_size_has_its_samples_on_every_rank(operation: str, ranks: int) -> None:
    names = ["suite over threads"] + ["suite over threads bfloat16"] * (operation == "all_reduce")
    for number, times_of_rank in enumerate(swept(operation, ranks)):
        assert list(times_of_rank) == names
        for samples in times_of_rank.values():
            assert [len(each) for each in samples] == [5, 5, 5, 2]
            timed = operation == "all_reduce" or number < 2
            assert all((second > 0) == timed for each in samples for second in each), "who has no part has no time"


def test_late_start_of_a_rank_is_not_timed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(communication, "SEND_DELAY", 0.02)
    first, _ = swept("point_to_point")
    assert statistics.median(first["suite over threads"][0]) < 0.01


class Broken(LoopbackWorld):
    """A world whose channels or groups do what they must not."""

    def __init__(self, whole: LoopbackWorld, fault: str) -> None:
        super().__init__(whole.hub, whole.rank)
        self.fault = fault

    def transport(self, homes: Sequence[int]) -> LoopbackTransport:
        return BrokenLanes(self.hub, self.rank, homes, self.fault)  # type: ignore[call-arg]

    def group(self, ranks: Sequence[int]) -> LoopbackGroup:
        members = super().group(ranks)
        if len(ranks) == self.size and not isinstance(members, BrokenGroup) and self.fault in BrokenGroup.faults:
            members = self.groups[tuple(ranks)] = BrokenGroup(self.hub, self.rank, ranks)
            members.fault = self.fault
        return members


class BrokenLanes(LoopbackTransport):
    def __init__(self, *arguments: Any) -> None:
        *rest, self.fault = arguments
        super().__init__(*rest)
        self.last: Value | None = None

    def send(self, op: Op, value: Value) -> None:
        mended = self.fault == "mended" and self.rank == 1
        super().send(op, tuple(tensor - 1 for tensor in value) if mended else value)

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        come = super().recv_any(ops, timeout)
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
        before = tensor.clone()
        handle = super().all_reduce(tensor, op)
        handle.wait()
        if self.fault == "not added":
            tensor.copy_(before)
        elif self.fault == "added twice":
            tensor.add_(before)
        else:
            tensor[0] = before[0]
        return handle


@pytest.mark.parametrize("fault", ["last number", "mended", "displaced", "another type", "short", "what came before"])
def test_corrupted_message_ends_the_run(fault: str) -> None:
    with pytest.raises(RankError, match=r"suite over threads: \d+ of \d+ numbers of value -?\d+ \(\d+ bytes\)"):
        swept("point_to_point", world=lambda whole: Broken(whole, fault))


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("kind", [communication.RoundTrip, communication.AllReduce])
def test_message_present_before_is_no_arrival(kind: type[communication.TimedOperation], position: int) -> None:
    """Neither what a rank starts with nor the memory for what comes is what it must have in the end."""
    operation = kind(LoopbackWorld(threads.Hub(2), 1), "nothing", "threads", lambda *memory: memory[position])
    for number in range(6):
        operation.prepare(64, number)
        operation.run_timed()
        with pytest.raises(RankError, match=r"nothing: \d+ of 16 numbers"):
            operation.check()


def test_message_received_earlier_is_no_arrival() -> None:
    """Values repeat after three rounds."""
    came = iter([True, False])
    bits = communication.pattern(16, torch.float32, torch.device("cpu"))

    def turn(_: torch.Tensor, space: torch.Tensor) -> torch.Tensor:
        return space.copy_(bits + communication.shift(0, 0)) if next(came) else space

    operation = communication.RoundTrip(LoopbackWorld(threads.Hub(2), 1), "once", "threads", turn)
    operation.prepare(64, 0)
    operation.run_timed()
    operation.check()
    operation.prepare(64, 3)
    operation.run_timed()
    with pytest.raises(RankError, match="once: 16 of 16 numbers of value 3"):
        operation.check()


@pytest.mark.parametrize("fault", BrokenGroup.faults)
@pytest.mark.parametrize("ranks", [2, 3])
def test_wrong_sum_ends_the_run(fault: str, ranks: int) -> None:
    with pytest.raises(RankError, match=r"suite over threads( bfloat16)?: \d+ of \d+ numbers"):
        swept("all_reduce", ranks, world=lambda whole: Broken(whole, fault))


def test_broken_worlds_differ_by_their_faults_alone() -> None:
    for operation in message_sizes.OPERATIONS:
        swept(operation, world=lambda whole: Broken(whole, "none"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_over_the_most_ranks_are_not_rounded(dtype: torch.dtype) -> None:
    bits = communication.pattern(4096, dtype, torch.device("cpu"))
    assert {float(bit) for bit in bits.unique()} == {0.0, 1.0}
    assert not torch.equal(bits, bits.roll(1))
    total = torch.zeros_like(bits)
    for rank in range(message_sizes.MAX_RANKS):
        total += bits + communication.shift(5, rank)
    shifts = sum(communication.shift(5, rank) for rank in range(message_sizes.MAX_RANKS))
    exact = bits.double() * message_sizes.MAX_RANKS + shifts
    assert torch.equal(total.double(), exact)
    assert {communication.shift(number, rank) for number in range(-1, 3) for rank in range(3)} == {1, 2, 3}, (
        "0 adds nothing"
    )


def test_links_are_fitted_to_the_least_times(monkeypatch: Patch) -> None:
    """Times are a line's, and more than that in all rounds but one; an operation whose times fall has none."""
    go = communication.TimedOperation.run_timed

    def slowed(operation: communication.TimedOperation) -> float:
        go(operation)
        if operation.dtype == torch.bfloat16:
            return 1e-3 / operation.size
        return (2e-5 + operation.size / 5e9) * (1 + operation.number % 4)

    monkeypatch.setattr(communication.TimedOperation, "run_timed", slowed)

    def rank(world: LoopbackWorld) -> Any:
        return links(world, ["threads"])

    first, second = threads.run(2, rank, deadline=60)
    (trip,), (total,) = (curves.values() for curves in first.values())
    assert list(first) == list(message_sizes.OPERATIONS)
    assert list(first["all_reduce"]) == ["suite over threads"]
    assert trip == {"latency": pytest.approx(1e-5), "bandwidth": pytest.approx(1e10)}, "half of there and back"
    assert total == {"latency": pytest.approx(2e-5), "bandwidth": pytest.approx(5e9)}
    assert second == {"point_to_point": {}, "all_reduce": {}}
