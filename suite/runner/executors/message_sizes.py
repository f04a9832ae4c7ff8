"""Microbenchmark executor: seconds of messages and all-reduces by size and backend.

The study reproduces AxoNN's Figures 3 and 4 (Section IV): seconds of a one-way message and of an all-reduce for several
libraries. It measures the calls of the library and the suite's layer over them. One set of ranks measures all curves
interleaved at each size, so drift of a shared machine affects all curves alike. Every received value is checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, median
from typing import Any, Literal, TypedDict

from suite.comm.world import LAUNCHERS_WITHOUT_MPI, launcher_kind
from suite.config.panels import FigurePanel
from suite.config.protocols import Sampler
from suite.config.run import RunConfig
from suite.core.bounds import Count, check_bounds
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.protocols import ExecutorResult, Missing, Ready, Value, World
from suite.core.record import Metric, Source
from suite.microbench.alpha_beta import fit
from suite.runner import provenance

Operation = Literal["point_to_point", "all_reduce"]
LINK_SIZES, LINK_ROUNDS = tuple(2**power for power in (3, 10, 14, 18, 20, 22)), 10  # to measure this machine's links
MAX_RANKS = 64  # up to here every type adds the values without rounding
LEAST_ROUNDS = 2
_UNIT = 4  # bytes: of a float32

Samples = Mapping[str, Sequence[Sequence[float]]]  # of one sweep: by curve, for each size, seconds


# -- what is measured ----------------------------------------------------------------------------------------------


def rounds_of(size: int, rounds: int, traffic: int) -> int:
    """Samples of a curve at one size: `rounds`, or fewer so that they send at most `traffic` bytes."""
    return max(min(rounds, traffic // size), min(rounds, LEAST_ROUNDS))


def sweep(world: World, operations: Sequence[Any], sizes: Sequence[int], rounds: int, traffic: int) -> Samples:
    """Measure all operations at all sizes on this rank.

    The operations are interleaved at each size. Every round has another random order, equal on all ranks, because an
    operation slows the next one.

    Args:
        world: World of the rank.
        operations: Operations of suite.microbench.communication.
        sizes: Sizes in bytes.
        rounds: Samples per operation and size.
        traffic: Maximum number of bytes of these samples.

    Returns:
        Seconds of each sample, by operation and size.

    Raises:
        RankError: A value did not arrive intact, or a sum is wrong.
    """
    samples: dict[str, list[list[float]]] = {each.name: [] for each in operations}
    for size in sizes:
        for each in operations:
            samples[each.name].append([])
        for number in range(-1, rounds_of(size, rounds, traffic)):
            for each in Random(f"{size} {number}").sample(operations, len(operations)):
                each.prepare(size, number)
                world.all_reduce_numbers([0.0], "sum", each.progress)  # all ranks are here: late arrival is not timed
                seconds = each.run_timed()
                # messages keep moving until the last rank has its value
                world.all_reduce_numbers([0.0], "sum", each.progress)
                each.check()
                if number >= 0:  # the first finds new memory
                    samples[each.name][-1].append(seconds)
    return samples


def links(world: World, backends: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Latency (s) and bandwidth (bytes/s) by kind of operation and name, fitted to the least time at each size.

    The least times describe the machine without its load. Collective; the result is complete on rank 0 only.
    """
    from suite.microbench import communication

    fits: dict[str, dict[str, dict[str, float]]] = {}
    for operation, make in (("point_to_point", communication.round_trips), ("all_reduce", communication.all_reduces)):
        several = make(world, backends)
        swept = sweep(world, several, LINK_SIZES, LINK_ROUNDS, max(LINK_SIZES))
        lines = {name: fit(LINK_SIZES, [min(each) for each in seconds]) for name, seconds in swept.items()}
        fits[operation] = {
            name: {"latency": line.latency, "bandwidth": line.bandwidth}
            for name, line in lines.items()
            if world.rank == 0 and math.isfinite(line.bandwidth)
        }
        for each in several:
            each.close()
    return fits


class Curve(TypedDict):
    """Samples of one operation.

    Attributes:
        backend: Backend of the operation.
        ours: Whether by the suite's layer, else by its library.
    """

    backend: str
    ours: bool


class MessageFacts(TypedDict):
    """Report of a rank.

    Attributes:
        sweeps: Samples of each sweep.
        curves: Curves by name.
        staged: Whether messages are staged through host memory.
    """

    sweeps: Sequence[Samples]
    curves: Mapping[str, Curve]
    staged: bool


@dataclass(frozen=True, slots=True)
class MessageClaim:
    """Claim that a study of messages answers, with a case for each size from `least` to `most` bytes.

    `terms` are backends, measured by the calls of their library.
    """

    id: str
    terms: Sequence[str]
    least: float
    most: float

    def answer(
        self, calls: Mapping[tuple[str, bool], str], medians: Mapping[str, Sequence[float]], sizes: Sequence[int]
    ) -> dict[str, Metric]:
        """Metric with the medians of the libraries' calls; none without a size, or a term that was measured."""
        cases = [index for index, size in enumerate(sizes) if self.least <= size <= self.most]
        if not cases or any((term, False) not in calls for term in self.terms):
            return {}
        values = tuple(medians[calls[term, False]][index] for index in cases for term in self.terms)
        origin = f"medians at {', '.join(str(sizes[index]) for index in cases)} bytes, by the libraries' own calls"
        return {self.id: Metric("second", "", values, origin)}


@dataclass(frozen=True, slots=True)
class Messages:
    """Study of messages of several sizes by several backends.

    Attributes:
        operation: point_to_point, one way between the first two ranks, or all_reduce over all of them.
        backends: Backends that are timed.
        sizes: bytes, rising.
        rounds: Samples of a curve at each size and turn.
        traffic: Most bytes of these samples.
        claim: Claim that the study answers.
    """

    operation: Operation = "point_to_point"
    backends: Sequence[Literal["mpi", "gloo", "nccl"]] = ("mpi", "gloo")
    sizes: Sequence[int] = LINK_SIZES
    rounds: Count = 6
    traffic: Count = 2**21
    claim: MessageClaim | None = None

    def __post_init__(self) -> None:
        check_bounds(self)
        sizes = list(self.sizes)
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1 or any(size % _UNIT for size in sizes):
            rule = f"at least one, multiples of {_UNIT} bytes above 0, rising"
            raise InvalidRequest("sizes", sizes, rule, "sizes=[8,1024,65536]")

    def reads(self, config: RunConfig) -> Sequence[str]:
        return ("grid", "comm.eager_bytes", "comm.pair_exchange", "comm.order")

    def probe(self, config: RunConfig) -> Ready | Missing:
        return Ready()

    def bytes_per_rank(self, config: RunConfig) -> list[int]:
        """Bytes of each rank: the largest message when sent and when received."""
        return [2 * max(self.sizes)] * config.grid.build().size

    def check(self, config: RunConfig) -> None:
        """Raises InvalidRequest for an impossible study. Loads no torch."""
        launch, ranks, executor = config.launch, config.grid.build().size, config.executor.name
        launcher = launcher_kind(launch.launcher, launch.mpi)
        if "nccl" in self.backends and launch.device == "cpu":
            raise Unsupported("executor.backends", "nccl", "NCCL moves CUDA memory", "launch.device=cuda")
        if "mpi" in self.backends and launcher in LAUNCHERS_WITHOUT_MPI:
            rule, legal = f"MPI starts its own ranks, and not {launcher}", "launch.launcher=mpiexec"
            raise Unsupported("executor.backends", "mpi", rule, legal)
        if not 2 <= ranks <= MAX_RANKS:
            rule = f"2 to {MAX_RANKS} ranks: messages need two, and more would round the sums that are checked"
            raise InvalidRequest(f"{ranks} ranks under executor={executor}", rule=rule, legal="grid.data=2")

    def on_rank(self, world: World, config: RunConfig) -> MessageSampler:
        """The sampler of one rank."""
        return MessageSampler(world, self)

    def summarize(self, config: RunConfig, facts: MessageFacts, sweeps: Sequence[Sequence[Samples]]) -> ExecutorResult:
        """Metrics, panels and notes of all sweeps: samples by curve and size, fits per sweep, panels of the medians.

        Args:
            config: Configuration of the run.
            facts: Report of rank 0.
            sweeps: Samples of each timed batch, by rank.
        """
        curves, sizes, ranks = facts["curves"], self.sizes, config.grid.build().size
        turns = [merge_ranks(self.operation, each) for each in sweeps]
        metrics: dict[str, Metric] = {}
        medians: dict[str, list[float]] = {}
        for name in curves:
            seen = [[second for turn in turns for second in turn[name][index]] for index in range(len(sizes))]
            medians[name] = [median(values) for values in seen]
            for size, values in zip(sizes, seen, strict=True):
                metrics[f"{name}, {size} B"] = Metric("s", "lower", tuple(values))
            if len(sizes) > 1:
                lines = [fit(sizes, [median(values) for values in turn[name]]) for turn in turns]
                metrics[f"latency, {name}"] = Metric("s", "lower", tuple(line.latency for line in lines))
                metrics[f"bandwidth, {name}"] = Metric("B/s", "higher", tuple(line.bandwidth for line in lines))
                metrics[f"misfit, {name}"] = Metric("", "lower", tuple(line.misfit for line in lines))
        # name of a library's own calls, by backend and whether they are in bfloat16
        calls = {(curve["backend"], _is_half(name)): name for name, curve in curves.items() if not curve["ours"]}
        if self.claim and not facts["staged"]:  # the messages of the paper are not staged
            metrics |= self.claim.answer(calls, medians, sizes)
        ours = {name: calls.get((curve["backend"], _is_half(name))) for name, curve in curves.items() if curve["ours"]}
        overheads = {
            name: [a / b for a, b in zip(medians[name], medians[call], strict=True)]
            for name, call in ours.items()
            if call
        }
        if self.operation == "point_to_point":
            title = "Time of a message, one way"
            notes = ["one way is half of there and back, between ranks 0 and 1; the value that comes back is checked"]
        else:
            title = f"Time of an all-reduce over {ranks} ranks"
            notes = ["a sum's time is the mean over its ranks; the sum is checked on every rank"]
        panels = [
            FigurePanel(
                title=f"{title}{text}",
                unit=unit,
                x=list(map(str, sizes)),
                ours=values_of,
                axis="bytes",
                quantity=quantity,
            )
            for text, unit, values_of, quantity in (
                ("", "s", medians, "time"),
                (": our layer's time over its library's", "", overheads, "ratio of times"),
            )
        ]
        if len(sizes) > 1:
            notes.append("latency + size / bandwidth: least squares on relative errors through the medians of a turn")
        if ranks * config.launch.threads > (cores := provenance.machine()["cores"]):
            notes.append(f"oversubscribed: {ranks} ranks on {cores} cores")
        if facts["staged"]:
            notes.append("staged: device memory is copied through the host's, so that no claim is answered")
        return ExecutorResult(Source.MEASURED, metrics=metrics, panels=panels, notes=tuple(notes))


def _is_half(name: str) -> bool:
    """Whether a curve is of values in bfloat16."""
    return name.endswith("bfloat16")


def merge_ranks(operation: str, ranks: Sequence[Samples]) -> dict[str, list[list[float]]]:
    """Samples of one sweep: of the sending rank for messages, and the mean over the ranks for all-reduces.

    osu_latency and osu_allreduce do the same.
    """
    timed = ranks[:1] if operation == "point_to_point" else ranks
    return {
        name: [
            [fmean(each) for each in zip(*size, strict=True)]
            for size in zip(*(rank[name] for rank in timed), strict=True)
        ]
        for name in ranks[0]
    }


class MessageSampler(Sampler):
    """One rank's part of a study of messages. A batch is one sweep over all sizes; its own content is ignored."""

    def __init__(self, world: World, plan: Messages) -> None:
        from suite.microbench import communication

        self.world, self.plan = world, plan
        message = plan.operation == "point_to_point"
        make = communication.round_trips if message else communication.all_reduces
        self.operations = make(world, plan.backends)
        self.staged = any(communication.copied(world, backend) for backend in plan.backends)
        self.swept: list[Samples] = []

    def train_batch(self, batch: Value | None = None) -> None:
        """Measure one sweep."""
        plan = self.plan
        self.swept.append(sweep(self.world, self.operations, plan.sizes, plan.rounds, plan.traffic))

    def samples(self) -> MessageFacts:
        """Samples of all sweeps since the last call, and the curves in order."""
        swept, self.swept = self.swept, []
        curves: dict[str, Curve] = {each.name: {"backend": each.backend, "ours": each.ours} for each in self.operations}
        return {"sweeps": swept, "curves": curves, "staged": self.staged}

    def close(self) -> None:
        for each in self.operations:
            each.close()
