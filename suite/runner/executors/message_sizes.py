"""Microbenchmark executor: seconds of messages and all-reduces by size and backend.

The study reproduces AxoNN's Figures 3 and 4 (Section IV): seconds of a one-way message and of an all-reduce for several
libraries. It measures the calls of the library and the suite's layer over them. One set of ranks measures all curves
interleaved at each size, so drift of a shared machine affects all curves alike. Every received value is checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, median
from typing import Any, TypedDict

from suite.comm.world import LAUNCHERS_WITHOUT_MPI, launcher_kind
from suite.config.launch import Launch
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.core.figure import FigurePanel
from suite.core.protocols import ExecutorResult, Missing, Ready, Value, World
from suite.core.record import Metric, Source
from suite.microbench.alpha_beta import fit
from suite.runner import provenance
from suite.runner.ranks.sampling import Sampling
from suite.stats.spread import relative_iqr

OPERATIONS = ("point_to_point", "all_reduce")
BACKENDS = ("mpi", "gloo", "nccl")
LINK_SIZES, LINK_ROUNDS = tuple(2**power for power in (3, 10, 14, 18, 20, 22)), 10  # to measure this machine's links
MAX_RANKS = 64  # up to here every type adds the values without rounding
LEAST_ROUNDS = 2
_UNIT = 4  # bytes: of a float32

Samples = Mapping[str, Sequence[Sequence[float]]]  # of one sweep: by curve, for each size, seconds


# -- what is measured ----------------------------------------------------------------------------------------------


def rounds_of(size: int, rounds: int, traffic: int) -> int:
    """Samples of a curve at one size: `rounds`, or fewer so that they send at most `traffic` bytes."""
    return max(min(rounds, traffic // size), min(rounds, LEAST_ROUNDS))


def check_sizes(sizes: Sequence[int]) -> None:
    """Raises InvalidRequest unless the sizes rise and are multiples of a float32 in bytes."""
    rule = f"at least one, whole, multiples of {_UNIT} bytes above 0, rising"
    legal = "sizes=[8,1024,65536]"
    if not sizes:
        raise InvalidRequest(f"sizes={sizes}", rule=rule, legal=legal)
    last = 0
    for size in sizes:
        if size <= last or size % _UNIT:
            raise InvalidRequest(f"sizes={list(sizes)}: {size}", rule=rule, legal=legal)
        last = size


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
                world.all_reduce_scalar(0.0, "sum", each.progress)  # all ranks are here: late arrival is not timed
                seconds = each.run_timed()
                # messages keep moving until the last rank has its value
                world.all_reduce_scalar(0.0, "sum", each.progress)
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


@dataclass(frozen=True, slots=True)
class Messages:
    """Study of messages of several sizes by several backends.

    Attributes:
        operation: point_to_point, one way between the first two ranks, or all_reduce over all of them.
        backends: Backends that are timed: mpi, gloo, nccl.
        sizes: bytes, rising.
        rounds: Samples of a curve at each size and turn.
        traffic: Most bytes of these samples.
        claim: Claim that the study answers.
    """

    operation: str = "point_to_point"
    backends: Sequence[str] = ("mpi", "gloo")
    sizes: Sequence[int] = LINK_SIZES
    rounds: int = 6
    traffic: int = 2**21
    claim: MessageClaim | None = None

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise UnknownName("operation", self.operation, OPERATIONS)
        check_sizes(self.sizes)
        for name, value in (("rounds", self.rounds), ("traffic", self.traffic)):
            if value < 1:
                raise InvalidRequest(f"{name}={value}", rule="a whole number, at least 1", legal=f"{name}=20")
        if not self.backends:
            raise InvalidRequest(f"backends={self.backends}", rule="a list of backends", legal="backends=[gloo]")
        for backend in self.backends:
            if backend not in BACKENDS:
                raise UnknownName("backends", backend, BACKENDS)
        if len(set(self.backends)) < len(self.backends):
            raise InvalidRequest(f"backends={list(self.backends)}", rule="each once", legal="backends=[gloo]")

    def probe(self, config: RunConfig) -> Ready | Missing:
        return Ready()

    def bytes_per_rank(self, config: RunConfig) -> list[int]:
        """Bytes of each rank: the largest message when sent and when received."""
        return [2 * max(self.sizes)] * config.grid.build().size

    def check(self, config: RunConfig) -> None:
        """Raises InvalidRequest for an impossible study. Loads no torch."""
        executor, ranks = config.executor.name or config.executor.kind, config.grid.build().size
        for backend in self.backends:
            _check_backend(backend, config.launch)
        if not 2 <= ranks <= MAX_RANKS:
            rule = f"2 to {MAX_RANKS} ranks: messages need two, and more would round the sums that are checked"
            raise InvalidRequest(f"{ranks} ranks under executor={executor}", rule=rule, legal="grid.data=2")
        if config.comm.transport != "auto":
            raise InvalidRequest(
                f"comm.transport={config.comm.transport} under executor={executor}",
                rule="executor.backends says what carries messages",
                legal=f"executor={executor} without comm.transport",
            )

    def on_rank(self, world: World, config: RunConfig) -> MessageSampler:
        """The sampler of one rank."""
        return MessageSampler(world, self)

    def summarize(self, config: RunConfig, facts: MessageFacts, sweeps: Sequence[Sequence[Samples]]) -> ExecutorResult:
        """The content of a record, from the `facts` of rank 0 and the samples of each timed batch, by rank."""
        ranks, threads = config.grid.build().size, config.launch.threads
        return summarize_sweeps(self, ranks, threads, facts["curves"], facts["staged"], sweeps)


class MessageSampler(Sampling):
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


def _check_backend(backend: str, launch: Launch) -> None:
    if backend == "nccl" and launch.device == "cpu":
        raise Unsupported(
            "executor.backends with nccl on a CPU", rule="NCCL moves CUDA memory", legal="launch.device=cuda"
        )
    if backend == "mpi" and (launcher := launcher_kind(launch.launcher, launch.mpi)) in LAUNCHERS_WITHOUT_MPI:
        raise Unsupported(
            f"executor.backends with mpi under {launcher}",
            rule="MPI starts its own ranks",
            legal="launch.launcher=mpiexec",
        )


# -- content of the record -----------------------------------------------------------------------------------------


def merge_ranks(operation: str, ranks: Sequence[Samples]) -> dict[str, list[list[float]]]:
    """Samples of one sweep: of the sending rank for messages, and the mean over the ranks for all-reduces.

    osu_latency and osu_allreduce do the same.
    """
    first = ranks[0]
    if operation == "point_to_point":
        return {name: [list(seconds) for seconds in sizes] for name, sizes in first.items()}
    return {
        name: [
            [fmean(each) for each in zip(*(rank[name][index] for rank in ranks), strict=True)]
            for index in range(len(sizes))
        ]
        for name, sizes in first.items()
    }


def summarize_sweeps(
    plan: Messages,
    ranks: int,
    threads: int,
    curves: Mapping[str, Curve],
    staged: bool,
    sweeps: Sequence[Sequence[Samples]],
) -> ExecutorResult:
    """Metrics, panels and notes of all sweeps: raw samples by curve and size, fits per sweep, panels of the medians."""
    sizes = plan.sizes
    turns = [merge_ranks(plan.operation, sweep_) for sweep_ in sweeps]
    metrics: dict[str, Metric] = {}
    medians: dict[str, list[float]] = {}
    spread: dict[str, list[float]] = {}
    lines: dict[str, list[Any]] = {}
    for name in curves:
        seen = [[second for turn in turns for second in turn[name][index]] for index in range(len(sizes))]
        for size, values in zip(sizes, seen, strict=True):
            metrics[f"{name}, {size} B"] = Metric("s", "lower", tuple(values))
        medians[name] = [median(values) for values in seen]
        spread[name] = [relative_iqr(values) for values in seen]
        if len(sizes) > 1:
            lines[name] = [fit(sizes, [median(values) for values in turn[name]]) for turn in turns]
            metrics[f"latency, {name}"] = Metric("s", "lower", tuple(line.latency for line in lines[name]))
            metrics[f"bandwidth, {name}"] = Metric("B/s", "higher", tuple(line.bandwidth for line in lines[name]))
            metrics[f"misfit, {name}"] = Metric("", "lower", tuple(line.misfit for line in lines[name]))
    metrics |= _answers(plan.claim, curves, medians, staged, sizes)
    message = plan.operation == "point_to_point"
    title = "Time of a message, one way" if message else f"Time of an all-reduce over {ranks} ranks"
    bytes_sent = [str(size) for size in sizes]
    rounds = [str(number + 1) for number in range(len(turns))]
    latency = {name: [1e6 * line.latency for line in fitted] for name, fitted in lines.items()}
    bandwidth = {name: [line.bandwidth / 1e9 for line in fitted] for name, fitted in lines.items()}
    panels = [
        FigurePanel(title, "s", bytes_sent, medians, axis="bytes"),
        FigurePanel(
            f"{title}: our layer's time over its library's", "", bytes_sent, _overheads(curves, medians), axis="bytes"
        ),
        FigurePanel(
            f"{title}: middle half of the samples over the median", "percent", bytes_sent, spread, axis="bytes"
        ),
        FigurePanel(f"{title}: latency of the line through the medians", "us", rounds, latency, axis="turn"),
        FigurePanel(f"{title}: bandwidth of the line through the medians", "GB/s", rounds, bandwidth, axis="turn"),
    ]
    notes = tuple(_notes(plan, lines, staged, ranks, threads))
    return ExecutorResult(Source.MEASURED, metrics=metrics, panels=panels, notes=notes)


def _overheads(curves: Mapping[str, Curve], medians: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Medians of each of our curves divided by those of the library's curve with the same backend and type."""
    medians_by_name = {}
    for name, curve in curves.items():
        overheads = [
            other
            for other, theirs in curves.items()
            if theirs["backend"] == curve["backend"]
            and not theirs["ours"]
            and other.endswith("bfloat16") == name.endswith("bfloat16")
        ]
        if curve["ours"] and overheads:
            medians_by_name[name] = [a / b for a, b in zip(medians[name], medians[overheads[0]], strict=True)]
    return medians_by_name


def _answers(
    asked: MessageClaim | None,
    curves: Mapping[str, Curve],
    medians: Mapping[str, Sequence[float]],
    staged: bool,
    sizes: Sequence[int],
) -> dict[str, Metric]:
    """Metric that answers the claim of the config, whose terms are backends, with one case per message size.

    The values are the medians of the libraries' own calls. There is no metric if a backend was not measured, or if
    device memory was staged through host memory, because the paper's messages are not staged.
    """
    if not asked or staged:
        return {}
    calls = {
        curve["backend"]: name
        for name, curve in curves.items()
        if not curve["ours"] and not name.endswith("bfloat16")  # the types that both have
    }
    if not set(asked.terms) <= set(calls):
        return {}
    cases = [index for index, size in enumerate(sizes) if asked.least <= size <= asked.most]
    values = tuple(medians[calls[term]][index] for index in cases for term in asked.terms)
    origin = f"medians at {', '.join(str(sizes[index]) for index in cases)} bytes, by the libraries' own calls"
    return {asked.id: Metric("second", "", values, origin)} if values else {}


def _notes(plan: Messages, lines: Mapping[str, Sequence[Any]], staged: bool, ranks: int, threads: int) -> Iterable[str]:
    """Notes for readers of the times."""
    if plan.operation == "point_to_point":
        yield "one way is half of there and back, between ranks 0 and 1; the value that comes back is checked"
    else:
        yield "a sum's time is the mean over its ranks; the sum is checked on every rank"
    if lines:
        off = {name: max(line.misfit for line in fitted) for name, fitted in lines.items()}
        worst = max(off, key=lambda name: off[name])
        yield (
            "latency + size / bandwidth: least squares on relative errors through the medians of each turn; "
            f"a median is off its line by at most {100 * off[worst]:.0f} percent ({worst})"
        )
    cores: int = provenance.machine()["cores"]
    if ranks * threads > cores:
        yield f"oversubscribed: {ranks} ranks on {cores} cores"
    if staged:
        yield "staged: device memory is copied through the host's, so that no claim is answered"
