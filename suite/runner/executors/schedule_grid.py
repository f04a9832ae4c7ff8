"""Executor `schedule_grid`: every pipeline schedule over ranks, microbatches, op costs and latencies.

It answers which schedule is fastest where, without a limit of memory and at equal peak memory. Static orders are
evaluated for all op costs and latencies in one pass; message-driven schedules are simulated one setting at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product
from typing import Any

from suite.config.panels import EQUAL, FigurePanel, WinnerMap
from suite.config.run import RunConfig
from suite.core.bounds import NonNegative, check_bounds
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.protocols import ExecutorResult, Schedule
from suite.core.record import Metric, Source
from suite.schedule.placement import places
from suite.simulate.schedule_comparison import CostSetting, ScheduleComparison, ScheduleResult

MOST_OPS = 60_000_000  # over all settings: about five minutes
SIMULATED, DERIVED = "simulated", "derived"
NO_CAP = "no cap"

Pick = Callable[[ScheduleResult, int], float]  # quantity of a result under one setting
Point = tuple[int, int, int]  # ranks, microbatches and number of the setting
BUBBLES: Mapping[str, Pick] = {
    "makespan": lambda result, setting: 100 * (result.makespan[setting] - 1),
    "stage time": lambda result, setting: 100 * (result.stage_time[setting] - 1),
}
COUNTS: Mapping[str, tuple[str, Pick]] = {  # quantity by title
    "Activations held": ("Activations of the rank with the most", lambda result, setting: result.held[setting]),
    "Messages per microbatch": ("Messages between ranks", lambda result, setting: result.messages),
}


@dataclass(frozen=True, slots=True)
class ScheduleGrid:
    """Comparison of schedules on a grid.

    Attributes:
        schedules: Schedules by name.
        names: Name on the page by name of a schedule; the same name without an entry.
        ranks, microbatches: Pipeline ranks and microbatches of one batch, rising.
        costs: Durations of a forward pass, an input gradient and a weight gradient by name of the ratio.
        latencies: Times of a message between two ranks, in forward passes of a rank.
        caps: Limits of memory by name: activations per pipeline rank, further activations, and optionally the most
            stages per rank.
        focus: Ranks and microbatches of the panels with a single point.
        rivals: Pairs of schedules that a sentence compares.
        weight_memory: Bytes held until the weight gradient over the bytes held until the input gradient.
    """

    schedules: Mapping[str, Schedule]
    ranks: Sequence[int]
    microbatches: Sequence[int]
    costs: Mapping[str, Sequence[float]]
    latencies: Sequence[float]
    caps: Mapping[str, Sequence[float]]
    focus: tuple[int, int]
    names: Mapping[str, str] = field(default_factory=dict)
    rivals: Sequence[tuple[str, str]] = ()
    weight_memory: NonNegative = 32 / 34

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in ("ranks", "microbatches"):
            values = list(getattr(self, name))
            if not values or values[0] < 1 or values != sorted(set(values)):
                raise InvalidRequest(name, values, "whole numbers from 1, rising", f"{name}=[2,4,8]")
        if not self.latencies or min(self.latencies) < 0:
            raise InvalidRequest("latencies", list(self.latencies), "at least one, none below 0", "latencies=[0]")
        for name, ratio in self.costs.items():
            if len(ratio) != 3 or min(ratio) <= 0:
                raise InvalidRequest("costs", {name: [*ratio]}, "3 numbers above 0", f"executor.costs.{name}=[1,1,1]")
        for name, cap in self.caps.items():
            if len(cap) not in (2, 3):
                raise InvalidRequest("caps", {name: [*cap]}, "2 or 3 numbers", f"executor.caps.{name}=[1,0]")
        for name in (name for pair in self.rivals for name in pair):
            if name not in self.schedules:
                raise UnknownName("schedule in rivals", name, self.schedules)
        if self.focus[0] not in self.ranks or self.focus[1] not in self.microbatches:
            legal = f"focus=[{self.ranks[-1]},{self.microbatches[-1]}]"
            raise InvalidRequest("focus", list(self.focus), "one of ranks and one of microbatches", legal)

    def reads(self, config: RunConfig) -> Sequence[str]:
        return ()

    def check(self, config: RunConfig) -> None:
        """Raises InvalidRequest for a grid that takes longer than about five minutes."""
        stages = sum(map(chunks_of, self.schedules.values()))
        ops = 3 * stages * sum(self.ranks) * sum(self.microbatches) * len(self.settings)
        if ops > MOST_OPS:
            rule = f"{ops} ops, at most {MOST_OPS}"
            raise InvalidRequest("executor.microbatches", list(self.microbatches), rule=rule, legal="a smaller grid")

    @property
    def settings(self) -> tuple[CostSetting, ...]:
        """Every cost ratio with every latency."""
        return tuple(
            CostSetting(name, (float(ratio[0]), float(ratio[1]), float(ratio[2])), float(latency))
            for (name, ratio), latency in product(self.costs.items(), self.latencies)
        )

    def label(self, name: str) -> str:
        """Name of a schedule on the page."""
        return self.names.get(name, name)

    def run(self, config: RunConfig) -> ExecutorResult:
        """Panels, maps and counts of the comparison."""
        begin = time.process_time()
        comparison = ScheduleComparison(self.settings, self.weight_memory)
        for (name, schedule), ranks, microbatches in product(self.schedules.items(), self.ranks, self.microbatches):
            comparison.add(name, schedule, ranks, microbatches)
        seconds = time.process_time() - begin
        metrics = {
            "simulations": Metric("count", "", (float(comparison.simulations),), "orders times settings"),
            "skipped": Metric("count", "", (float(comparison.skipped),), "equal to an earlier simulation"),
            "simulated_ops": Metric("op", "", (float(comparison.ops),)),
            "ops_per_second": Metric("op/s", "higher", (comparison.ops / max(seconds, 1e-9),), "on this machine"),
        }
        families: dict[str, list[str]] = {"one stage": [], "several stages": []}
        for name, schedule in self.schedules.items():
            families["several stages" if chunks_of(schedule) > 1 else "one stage"].append(name)
        curves = [self.panels(comparison, f"{family} per rank", names) for family, names in families.items() if names]
        panels: list[FigurePanel | WinnerMap] = [*chain(*curves), *self.maps(comparison)]
        return ExecutorResult(Source.SIMULATED, metrics=metrics, panels=panels, notes=self.notes(comparison))

    def panels(self, comparison: ScheduleComparison, family: str, schedules: Sequence[str]) -> Iterator[FigurePanel]:
        """Panels of a family of schedules over microbatches, ranks and latencies."""
        first, (ranks, microbatches) = self.settings[0], self.focus
        costs = f"F:I:W = {ratio_text(first.ratio)}"
        setting = f"{costs}, latency {first.latency:g}"

        def panel(title: str, pick: Pick, points: Mapping[str, Point], end: str = "", **words: Any) -> FigurePanel:
            """A panel with a curve for each schedule."""
            ours = {
                self.label(name): [_value(comparison, name, point, pick) for point in points.values()]
                for name in schedules
            }
            return FigurePanel(title=f"{title}, {family}{end}", x=list(points), ours=ours, **words)

        simulated = partial(panel, unit="percent", evidence=SIMULATED)
        for count, (name, pick) in product(self.ranks, BUBBLES.items()):
            yield simulated(
                f"Bubble of the {name}",
                pick,
                {str(each): (count, each, 0) for each in self.microbatches},
                f", {count} ranks",
                axis="microbatches",
                quantity=f"{name.capitalize()} over the ideal, minus 1",
                caption=f"{setting}. A schedule without a point refuses that number of microbatches.",
            )
        yield simulated(
            "Bubble over latency",
            BUBBLES["makespan"],
            {f"{latency:g}": (ranks, microbatches, at) for at, latency in enumerate(self.latencies)},
            f", {ranks} ranks",
            axis="latency of a message, in forward passes",
            quantity="Makespan over the ideal, minus 1",
            caption=f"{microbatches} microbatches, {costs}.",
        )
        caption = f"{microbatches} microbatches, {setting}. Activations are those of a rank for one microbatch."
        for title, (quantity, pick) in COUNTS.items():
            points = {str(each): (each, microbatches, 0) for each in self.ranks}
            words = {"axis": "pipeline ranks", "quantity": quantity, "caption": caption}
            yield panel(title, pick, points, unit="count", evidence=DERIVED, **words)

    def maps(self, comparison: ScheduleComparison) -> Iterator[WinnerMap]:
        """One map of winners for each cost ratio, latency and cap."""
        points = list(product(self.ranks, self.microbatches))
        held = COUNTS["Activations held"][1]
        for (at, setting), case in product(enumerate(self.settings), (NO_CAP, *self.caps)):
            group = f"F:I:W = {ratio_text(setting.ratio)}, latency {setting.latency:g}"
            per_rank, further, most = (*self.caps.get(case, (math.inf, 0)), math.inf)[:3]
            yield WinnerMap(
                title=f"{group}, {case}",
                quantity="makespan over the ideal",
                x=[str(each) for each in self.microbatches],
                y=[str(each) for each in self.ranks],
                values={
                    self.label(name): [
                        comparison.fitting(name, ranks, microbatches, at, per_rank * ranks + further)
                        for ranks, microbatches in points
                    ]
                    for name, schedule in self.schedules.items()
                    if chunks_of(schedule) <= most
                },
                tie_breaks={
                    self.label(name): [_value(comparison, name, (*point, at), held) for point in points]
                    for name in self.schedules
                },
                axis="microbatches",
                y_axis="ranks",
                tie_break="activations held",
                group=group,
                case=case,
                evidence=SIMULATED,
            )

    def notes(self, comparison: ScheduleComparison) -> tuple[str, ...]:
        """Comparisons of rivals, rules of the comparison, refusals, and the model's limits."""
        points = len(self.ranks) * len(self.microbatches)
        return (
            *(self._rivals(comparison, *pair) for pair in self.rivals),
            "ideal: microbatches x (F + I + W) of a rank; a schedule with v stages per rank has ops of 1/v of the time",
            "two bubbles: makespan over the ideal, and stage time (longest time from the first start to the last end "
            "on one rank) over the ideal, which ignores the staircase of the start",
            f"memory: forward passes without I plus {self.weight_memory:.2f} x weight gradients owed, at once, on the "
            "rank with the most; F to I keeps all that a transformer layer saves with fused attention (34 sbh bytes), "
            "I to W the inputs and output gradients of its linear layers (32 sbh; arXiv 2401.10241, Table 1)",
            "the model leaves out: overlapped kernels (the pairs of DualPipeV run one after the other), recomputation, "
            "the bandwidth of messages, the optimizer step, the embedding and the loss, and op times that vary",
            f"{comparison.simulations} simulations of {comparison.ops} ops ran, {comparison.skipped} were skipped "
            "because their order, costs and latency equal those of another one",
            *(
                f"{self.label(name)} is not available at {len(refused)} of {points} points of the grid, such as "
                f"{ranks} ranks and {microbatches} microbatches: {refusal}"
                for name, refused in comparison.refusals().items()
                for (ranks, microbatches), refusal in [next(iter(refused.items()))]
            ),
        )

    def _rivals(self, comparison: ScheduleComparison, first: str, second: str) -> str:
        """The number of points at which the first of two schedules is faster, by cost ratio and latency."""
        pairs = [
            (comparison.answer(first, *point), comparison.answer(second, *point))
            for point in product(self.ranks, self.microbatches)
        ]
        shared = [(a.makespan, b.makespan) for a, b in pairs if a and b]
        faster: dict[float, list[str]] = {}
        for at, setting in enumerate(self.settings):
            faster.setdefault(setting.latency, []).append(str(sum(a[at] < b[at] * (1 - EQUAL) for a, b in shared)))
        counts = "; ".join(f"{', '.join(each)} at latency {latency:g}" for latency, each in faster.items())
        return (
            f"{self.label(first)} is faster than {self.label(second)} at this number of {len(shared)} points, "
            f"for F:I:W = {', '.join(map(ratio_text, self.costs.values()))}: {counts}"
        )


def _value(comparison: ScheduleComparison, name: str, point: Point, pick: Pick) -> float:
    """A quantity of a schedule; nan where it cannot run."""
    *at, setting = point
    result = comparison.answer(name, *at)
    return math.nan if result is None else pick(result, setting)


def chunks_of(schedule: Schedule) -> int:
    """Stages per rank."""
    return places(schedule, 2)[0].chunks


def ratio_text(ratio: Sequence[float]) -> str:
    """'2:2:1'"""
    return ":".join(f"{part:g}" for part in ratio)
