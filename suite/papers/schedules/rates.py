"""Answers with message times: bubble rates and gains by simulation, with the printed pass times as inputs.

The simulator runs the same orders as the checker. Each message takes the printed time, and no rank is busy with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from suite.claims.answer import Number, Question, WithNull
from suite.claims.panel import Claims, Panel, figure
from suite.claims.plans import published_plans
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind
from suite.core.trace import WAIT
from suite.papers.schedules.orders import PassTimes, schedule_of
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.worker import NetworkModel, simulate

FAST = 1e30  # bytes per second: only the latency of a message counts
SYSTEMS = {"one_f_one_b": False, "interleaved_1f1b": True, "zb_h1": False, "zb_h2": False}  # whether it has chunks


@lru_cache(maxsize=256)
def stage_time(
    name: str, ranks: int, microbatches: int, times: PassTimes, latency: float, variant: int = 1, chunks: int = 1
) -> float:
    """Longest time on one rank from its own first start to its own last end; `times` are those of all its chunks."""
    passes = [
        time / chunks for time in (times.forward, times.input_gradient + times.weight_gradient, times.weight_gradient)
    ]
    run = simulate(
        schedule_of(name, variant),
        Grid(inter=ranks),
        FlushInterval(0, microbatches, None, 0),
        Fixed(passes[0], passes[1], 1, weight=passes[2]),
        NetworkModel(lambda first, second: Link(latency, FAST)),
        traced=True,
    )
    spans: dict[int, list[float]] = {}
    for span in run.trace:
        if span.op is not None and span.op.kind is not Kind.UPDATE and span.category != WAIT:
            spans.setdefault(span.rank, []).extend((span.start, span.end))
    return max(max(ends) - min(ends) for ends in spans.values())


def time_of(setting: Mapping[str, Number], name: str, *, chunks: int = 1, room: int = 0) -> float:
    """Stage time at a printed setting: stages, microbatches, tf, tb, tw, tcomm.

    Args:
        setting: The setting.
        name: Name of the schedule.
        chunks: Chunks per rank, which share the pass times.
        room: Activations that a message-driven order may hold, as a multiple of the stages.
    """
    variant = room * int(setting["stages"]) or chunks
    times = PassTimes.of(setting)
    return stage_time(
        name, int(setting["stages"]), int(setting["microbatches"]), times, setting["tcomm"], variant, chunks
    )


def rate_of(setting: Mapping[str, Number], name: str, *, chunks: int = 1, room: int = 0) -> float:
    """Bubble over stage time."""
    total = time_of(setting, name, chunks=chunks, room=room)
    return 1 - int(setting["microbatches"]) * PassTimes.of(setting).total / total


def rate(question: Question, lab: Any, *, schedule: str, chunks: int = 1, room: int = 0) -> WithNull:
    """Bubble rate at the printed setting of the claim. Null model: 1F1B with equal stages and free messages."""
    setting: Any = question.setting
    note = f"bubble over stage time of {schedule}, simulated"
    idle = setting["stages"] - 1
    return [[rate_of(setting, schedule, chunks=chunks, room=room)]], note, [[idle / (setting["microbatches"] + idle)]]


def settings() -> Sequence[Mapping[str, Number]]:
    """Printed settings of Zero Bubble Tables 5 and 9."""
    rows: Sequence[Mapping[str, Number]] = published_plans()["schedules"]["pass_times"]
    return rows


def gains(question: Question, lab: Any, *, schedule: str, few: bool = False) -> WithNull:
    """Percent of throughput over 1F1B, one case per printed setting. The null model is no gain.

    With `few`, a flush has as many microbatches as stages.
    """
    rows = [{**row, "microbatches": row["stages"]} if few else row for row in settings()]
    cases = [[100 * (time_of(row, "one_f_one_b") / time_of(row, schedule) - 1)] for row in rows]
    microbatches = ", with as many microbatches as stages" if few else ""
    note = f"stage time of 1F1B over that of {schedule}, simulated at {len(cases)} printed settings{microbatches}"
    return cases, note, [[0.0]] * len(cases)


def interleaving_gain(question: Question, lab: Any, *, ranks: int, microbatches: int, chunks: int) -> WithNull:
    """Throughput of interleaved 1F1B over that of 1F1B, without message time. The null model is no gain."""
    plain, interleaved = (
        stage_time(name, ranks, microbatches, PassTimes(), 0.0, count, count)
        for name, count in (("one_f_one_b", 1), ("interleaved_1f1b", chunks))
    )
    note = f"stage time of 1F1B over that of interleaved 1F1B with {chunks} chunks, simulated"
    return [[plain / interleaved]], note, [[1.0]]


@figure("schedules_rates", "Table 5")
def table5(lab: Any, claims: Claims) -> Iterator[Panel]:
    """Bubble rates of Zero Bubble Table 5, a panel for each model."""
    for model in dict.fromkeys(row["model"] for row in settings()):
        rows = [row for row in settings() if row["model"] == model]
        yield Panel(
            f"Bubble rate of {str(model).upper()} (Zero Bubble)",
            "ratio",
            [str(row["microbatches"]) for row in rows],
            {
                system: [rate_of(row, system, chunks=row["chunks"] if chunked else 1) for row in rows]
                for system, chunked in SYSTEMS.items()
            },
            dict.fromkeys((*SYSTEMS, "zb_2p"), f"schedules.zb.table5.{model}_m{{x}}.{{curve}}"),
            axis="microbatches",
            quantity="bubble rate",
        )
