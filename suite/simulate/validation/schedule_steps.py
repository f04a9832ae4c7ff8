"""Steps from printed pass times: a test of the schedules alone, without the cost model.

The zero-bubble paper (arXiv 2401.10241, Table 9) prints the time of a forward pass, an input gradient, a weight
gradient and a message for each model. The suite's schedules run with these times, and the step is compared with the
measured one. The printed times hold no optimizer step and no reduction, so a simulated step is a little too short.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from suite.claims.plans import published_plans
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind
from suite.core.trace import WAIT
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.operations.generation import generations
from suite.simulate.validation.adapter import SCHEDULES, schedule_of
from suite.simulate.validation.cells import PublicCell
from suite.simulate.worker import NetworkModel, simulate

SOURCE = "arXiv 2401.10241"  # cells of this source have printed pass times
INSTANT = 1e30  # bytes per second: only the latency of a message counts
MILLI = 1e-3


@dataclass(frozen=True, slots=True)
class PrintedTimes:
    """Printed times of a pipeline rank in milliseconds.

    Attributes:
        microbatch: Sequences of the microbatch whose passes took these times.
        chunks: Stages per rank of the interleaved schedule, which divide the times.
        tf, tb, tw: Forward pass, input gradient and weight gradient of one microbatch.
        tcomm: Message between two ranks.
    """

    model: str
    stages: int
    microbatch: int
    microbatches: int
    chunks: int
    tf: float
    tb: float
    tw: float
    tcomm: float


@cache
def printed_rows() -> tuple[PrintedTimes, ...]:
    """Printed pass times, from the plans of suite/papers/schedules."""
    rows = published_plans()["schedules"]["pass_times"]
    return tuple(PrintedTimes(**row) for row in rows)


def printed_times(cell: PublicCell) -> PrintedTimes | None:
    """Printed times of a cell's model, pipeline and microbatch, at the nearest number of microbatches.

    None without any. A pass over another microbatch takes another time: the 1.5B rows hold for 6 sequences, not for 1.
    """
    if not cell.source.startswith(SOURCE) or cell.global_batch is None:
        return None
    setting = (cell.model.name.split()[-1], cell.pp, cell.microbatch)
    rows = [row for row in printed_rows() if (row.model, row.stages, row.microbatch) == setting]
    return min(rows, key=lambda row: abs(row.microbatches - microbatches_of(cell)), default=None)


def microbatches_of(cell: PublicCell) -> int:
    """Microbatches per replica and step of a cell whose batch and microbatch are printed."""
    return (cell.global_batch or 1) // ((cell.microbatch or 1) * cell.dp)


def scheduled_step(cell: PublicCell, times: PrintedTimes) -> float:
    """Seconds of a step in which each pass takes its printed time.

    Stages that update together wait for the last one, so their step is the makespan. Otherwise steps overlap, and a
    step is the longest time on one rank from its first start to its last end.
    """
    public, chunks = SCHEDULES[cell.schedule or "1f1b"], cell.vpp or 1
    forward, backward, weight = (MILLI * time / chunks for time in (times.tf, times.tb + times.tw, times.tw))
    network = NetworkModel(
        lambda first, second: Link(MILLI * times.tcomm, INSTANT),
        blocking=generations()[cell.generation].blocking_messages,
    )
    run = simulate(
        schedule_of(public.name, chunks),
        Grid(inter=cell.pp),
        FlushInterval(0, microbatches_of(cell), None, 0),
        Fixed(forward, backward, 1, weight=weight),
        network,
        traced=True,
    )
    if public.waits_for_all:
        return run.makespan
    ends: dict[int, tuple[float, float]] = {}
    for span in run.trace:
        if span.op is not None and span.op.kind is not Kind.UPDATE and span.category != WAIT:
            first, last = ends.get(span.rank, (span.start, span.end))
            ends[span.rank] = (min(first, span.start), max(last, span.end))
    return max(last - first for first, last in ends.values())


def scheduled_error(cell: PublicCell) -> float | None:
    """Throughput with printed pass times over the measured one, minus 1; None for a cell without printed times."""
    times = printed_times(cell)
    if times is None or not cell.scored or cell.schedule not in SCHEDULES:
        return None
    tokens = (cell.global_batch or 1) * cell.seq / cell.gpus
    return tokens / scheduled_step(cell, times) / (cell.tokens_per_second or 1.0) - 1
