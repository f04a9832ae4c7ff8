"""Message studies time arrived messages only.

Ranks are threads here; tests/distributed has real ones, under MPI and gloo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import pytest
import torch

from suite.comm.p2p import threads
from suite.comm.p2p.threads import LoopbackWorld
from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.core.errors import RankError
from suite.core.protocols import ExecutorResult
from suite.microbench import communication
from suite.runner.executors import message_sizes
from suite.runner.executors.message_sizes import links, sweep
from tests.support.configs import altered
from tests.support.drawn import cells

SIZES = [8, 64, 1024, 4096]
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return resolve(["executor=messages", "grid.data=2", "executor.sizes=[8,64,1024,4096]"])


# -- what is measured ----------------------------------------------------------------------------------------------


def swept(operation: str, ranks: int = 2) -> Any:
    """The sweep of each rank over threads."""

    def rank(world: LoopbackWorld) -> Any:
        kinds = {"point_to_point": communication.round_trips, "all_reduce": communication.all_reduces}
        operations = kinds[operation](world, ["threads"])
        times = sweep(world, operations, SIZES, 5, 8192)
        for each in operations:
            each.close()
        return times

    return threads.run(ranks, rank)


@pytest.mark.parametrize(("operation", "ranks"), cells(get_args(message_sizes.Operation), [2, 3], n=2))
def test_every_size_has_its_samples_on_every_rank(operation: str, ranks: int) -> None:
    names = ["suite over threads"] + ["suite over threads bfloat16"] * (operation == "all_reduce")
    for number, times_of_rank in enumerate(swept(operation, ranks)):
        assert list(times_of_rank) == names
        for samples in times_of_rank.values():
            assert [len(each) for each in samples] == [5, 5, 5, 2]
            timed = operation == "all_reduce" or number < 2
            assert all((second > 0) == timed for each in samples for second in each), "who has no part has no time"


def last_number_wrong(value: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    value[-1] += 1
    return value


FAULTS: dict[str, Callable[..., torch.Tensor]] = {  # of the right value, what a rank starts with, and its buffer
    "last number": last_number_wrong,
    "displaced": lambda value, *_: value.roll(1),
    "another type": lambda value, *_: value.double(),
    "short": lambda value, *_: value[:-1],
    "not sent": lambda _, operand, buffer: operand,
    "not received": lambda _, operand, buffer: buffer,
}


@pytest.mark.parametrize("kind", [communication.RoundTrip, communication.AllReduce])
def test_wrong_value_is_an_error_and_the_right_one_is_not(kind: type[communication.TimedOperation]) -> None:
    """A value that has come before is none either: the buffer is cleared, and values repeat after three rounds."""
    fault: Callable[..., torch.Tensor] | None = None

    def call(operand: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        value = operation.expected()
        assert value is not None
        return fault(value, operand, buffer) if fault else buffer.copy_(value)

    operation = kind(LoopbackWorld(threads.Hub(2), 1), "it", "threads", call)
    for number in range(6):
        for fault in (None, *FAULTS.values()):
            operation.prepare(64, number)
            operation.run_timed()
            if fault is None:
                operation.check()
                continue
            with pytest.raises(RankError, match=r"it: \d+ of 16 numbers"):
                operation.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_over_the_most_ranks_are_not_rounded(dtype: torch.dtype) -> None:
    bits = communication.pattern(4096, dtype, torch.device("cpu"))
    assert {float(bit) for bit in bits.unique()} == {0.0, 1.0}
    assert not torch.equal(bits, bits.roll(1))
    shifts = [communication.shift(5, rank) for rank in range(message_sizes.MAX_RANKS)]
    total = torch.zeros_like(bits)
    for shift in shifts:
        total += bits + shift
    assert torch.equal(total.double(), bits.double() * message_sizes.MAX_RANKS + sum(shifts))
    numbers = {communication.shift(number, rank) for number in range(-1, 3) for rank in range(3)}
    assert numbers == {1, 2, 3}, "0 adds nothing"


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

    first, second = threads.run(2, rank)
    (trip,), (total,) = (curves.values() for curves in first.values())
    assert list(first) == list(get_args(message_sizes.Operation))
    assert list(first["all_reduce"]) == ["suite over threads"]
    assert trip == {"latency": pytest.approx(1e-5), "bandwidth": pytest.approx(1e10)}, "half of there and back"
    assert total == {"latency": pytest.approx(2e-5), "bandwidth": pytest.approx(5e9)}
    assert second == {"point_to_point": {}, "all_reduce": {}}


# -- records of message studies: samples, fits, panels and claims --


CURVES = {"MPI Allreduce": {"backend": "mpi", "ours": False}, "gloo all_reduce": {"backend": "gloo", "ours": False}}


def sweep_times(factor: float = 1.0, curves: Mapping[str, Any] = CURVES) -> Any:
    """A sweep with the times of a line, curve by curve: (10 us + bytes / (1 GB/s)) x its number x factor."""
    return {
        name: [[number * factor * (1e-5 + size / 1e9)] * 3 for size in SIZES] for number, name in enumerate(curves, 1)
    }


def summarize(config: RunConfig, curves: Mapping[str, Any], staged: bool, sweeps: Sequence[Any]) -> ExecutorResult:
    """The part of a record that holds the configured study."""
    return config.executor.build().summarize(config, {"curves": curves, "staged": staged}, sweeps)


# -- the claims ----------------------------------------------------------------------------------------------------

CLAIM = {
    "_target_": "suite.runner.executors.message_sizes.MessageClaim",
    "id": "axonn.fig4.allreduce_intranode",
    "terms": ["nccl", "mpi"],
    "least": 64,
    "most": 2000,
}
BOTH = {
    "NCCL all_reduce": {"backend": "nccl", "ours": False},
    "NCCL all_reduce bfloat16": {"backend": "nccl", "ours": False},
    "MPI Allreduce": {"backend": "mpi", "ours": False},
}


def test_study_like_the_papers_answers_its_claim(base: RunConfig) -> None:
    for claim, curves, staged, values in (
        (CLAIM, BOTH, False, 4),  # two sizes, two libraries
        (CLAIM, BOTH, True, 0),  # the paper's libraries read device memory
        (CLAIM, CURVES, False, 0),  # without NCCL
        (None, BOTH, False, 0),
        ({**CLAIM, "least": 1e6, "most": 5e7}, BOTH, False, 0),  # no size of the claim's
    ):
        config = altered(base, executor__operation="all_reduce", executor__claim=claim)
        summary = summarize(config, curves, staged, [(sweep_times(1.0, curves),) * 2])
        answer = summary.metrics.get(str(CLAIM["id"]))
        assert (len(answer.values) if answer else 0) == values
