"""Executor `schedule_grid`: every pipeline schedule over ranks, microbatches, op costs and latencies.

It answers which schedule is fastest where, without a limit of memory and at equal peak memory. Static orders are
evaluated for all op costs and latencies in one pass; message-driven schedules are simulated one setting at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.figure import FigurePanel
from suite.core.protocols import ExecutorResult, Schedule
from suite.core.record import Metric, Source
from suite.core.winner_map import EQUAL, WinnerMap
from suite.schedule.placement import places
from suite.simulate.schedule_comparison import CostSetting, ScheduleComparison, ScheduleResult

MOST_OPS = 60_000_000  # over all settings: about five minutes
SIMULATED, DERIVED = "simulated", "derived"
NO_CAP = "no cap"


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
    focus: Sequence[int]
    names: Mapping[str, str] = field(default_factory=dict)
    rivals: Sequence[Sequence[str]] = ()
    weight_memory: float = 32 / 34

    def __post_init__(self) -> None:
        for name in ("ranks", "microbatches"):
            values = list(getattr(self, name))
            rising = values and min(values) >= 1 and values == sorted(set(values))
            _require(rising, name, values, "whole numbers from 1, rising", f"{name}=[2,4,8]")
        times = list(self.latencies)
        _require(times and 0 <= min(times) <= max(times) < math.inf, "latencies", times, "at least 0", "latencies=[0]")
        for group, counts, least, legal in (("costs", (3,), 1e-9, "[1,1,1]"), ("caps", (2, 3), 0, "[1,0]")):
            rule = f"{' or '.join(map(str, counts))} finite numbers, {'above 0' if least else 'at least 0'}"
            for name, numbers in getattr(self, group).items():
                finite = len(numbers) in counts and all(least <= number < math.inf for number in numbers)
                _require(finite, group, {name: list(numbers)}, rule, f"executor.{group}.{name}={legal}")
        _require(self.schedules and self.costs, "schedules and costs", "none", "at least one of each")
        for key, listed in (("names", self.names), ("rivals", [name for pair in self.rivals for name in pair])):
            if unknown := next((name for name in listed if name not in self.schedules), None):
                raise UnknownName(f"schedule in {key}", unknown, self.schedules)
        rivals = [list(pair) for pair in self.rivals]
        _require(all(len(pair) == 2 for pair in rivals), "rivals", rivals, "pairs", "executor.rivals=[[zbv,zb_h1]]")
        _require(0 <= self.weight_memory <= 1, "weight_memory", self.weight_memory, "from 0 to 1", "weight_memory=1")
        known = len(self.focus) == 2 and self.focus[0] in self.ranks and self.focus[1] in self.microbatches
        legal = f"focus=[{self.ranks[-1]},{self.microbatches[-1]}]"
        _require(known, "focus", list(self.focus), "one of ranks and one of microbatches", legal)

    def reads(self, config: RunConfig) -> Sequence[str]:
        return ()

    def check(self, config: RunConfig) -> None:
        """Raises InvalidRequest for a grid that takes longer than about five minutes."""
        stages = sum(places(schedule, 2)[0].chunks for schedule in self.schedules.values())
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

    def competitors(self, case: str) -> list[str]:
        """Schedules that a cap admits: all of them, or those with few stages per rank."""
        limits = [] if case == NO_CAP else self.caps[case]
        most = limits[2] if len(limits) > 2 else math.inf
        return [name for name, schedule in self.schedules.items() if places(schedule, 2)[0].chunks <= most]

    def cap(self, case: str, ranks: int) -> float | None:
        """Activations that a cap allows; None without a cap."""
        return None if case == NO_CAP else self.caps[case][0] * ranks + self.caps[case][1]

    def compared(self) -> ScheduleComparison:
        """Every schedule at every point of the grid."""
        comparison = ScheduleComparison(self.settings, self.weight_memory)
        for (name, schedule), ranks, microbatches in product(self.schedules.items(), self.ranks, self.microbatches):
            comparison.add(name, schedule, ranks, microbatches)
        return comparison

    def run(self, config: RunConfig) -> ExecutorResult:
        """Panels, maps and counts of the comparison."""
        begin = time.process_time()
        comparison = self.compared()
        seconds = time.process_time() - begin
        view = _View(self, comparison)
        metrics = {
            "simulations": Metric("count", "", (float(comparison.simulations),), "orders times settings"),
            "skipped": Metric("count", "", (float(comparison.skipped),), "equal to an earlier simulation"),
            "simulated_ops": Metric("op", "", (float(comparison.ops),)),
            "ops_per_second": Metric("op/s", "higher", (comparison.ops / max(seconds, 1e-9),), "on this machine"),
        }
        panels: list[FigurePanel | WinnerMap] = [*view.curves(), *view.bars(), *view.maps()]
        return ExecutorResult(Source.SIMULATED, metrics=metrics, panels=panels, notes=view.notes())


def _require(holds: object, key: str, value: object, rule: str, legal: str = "") -> None:
    if not holds:
        raise InvalidRequest(key, value, rule, legal)


Pick = Callable[[ScheduleResult, int], float]  # quantity of an answer under one setting
_PICKS: Mapping[str, Pick] = {
    "makespan": lambda answer, setting: 100 * (answer.makespan[setting] - 1),
    "stage time": lambda answer, setting: 100 * (answer.stage_time[setting] - 1),
    "rate": lambda answer, setting: 100 * (1 - 1 / answer.stage_time[setting]),
    "in flight": lambda answer, setting: answer.in_flight[setting],
    "owed": lambda answer, setting: answer.owed[setting],
    "held": lambda answer, setting: answer.held[setting],
    "messages": lambda answer, setting: answer.messages,
}
_IDEAL = "over the ideal, minus 1"
_MOST = "Activations of the rank with the most"
Cell = tuple[int, int, int, str]  # ranks, microbatches, number of the setting, and name of the quantity


def ratio_text(ratio: Sequence[float]) -> str:
    """'2:2:1'"""
    return ":".join(f"{part:g}" for part in ratio)


@dataclass(frozen=True, slots=True)
class _View:
    """Panels and sentences of a comparison."""

    plan: ScheduleGrid
    comparison: ScheduleComparison

    # -- panels --------------------------------------------------------------------------------------------------------

    def curves(self) -> Iterator[FigurePanel]:
        """Panels over microbatches, ranks and latencies, apart for one and several stages per rank."""
        plan, costs = self.plan, f"F:I:W = {ratio_text(self.plan.settings[0].ratio)}"
        said = f"{costs}, latency {plan.settings[0].latency:g}"
        ranks, microbatches = plan.focus
        bubbles = {"Bubble of the makespan": "makespan", "Bubble of the stage time": "stage time"}
        counts = {
            "Activations held": ("held", _MOST),
            "Messages per microbatch": ("messages", "Messages between ranks"),
        }
        for family in self._families():
            caption = f"{said}. A schedule without a point refuses that number of microbatches."
            for count, (title, pick) in product(plan.ranks, bubbles.items()):
                cells = {str(each): (count, each, 0, pick) for each in plan.microbatches}
                quantity = f"{pick.capitalize()} {_IDEAL}"
                yield self._panel(title, family, cells, "microbatches", quantity, caption, f", {count} ranks")
            caption = f"{microbatches} microbatches, {costs}."
            cells = {f"{late:g}": (ranks, microbatches, at, "makespan") for at, late in enumerate(plan.latencies)}
            axis, quantity = "latency of a message, in forward passes", f"Makespan {_IDEAL}"
            yield self._panel("Bubble over latency", family, cells, axis, quantity, caption, f", {ranks} ranks")
            caption = f"{microbatches} microbatches, {said}. Activations are those of a rank for one microbatch."
            for title, (pick, quantity) in counts.items():
                cells = {str(each): (each, microbatches, 0, pick) for each in plan.ranks}
                yield self._panel(title, family, cells, "pipeline ranks", quantity, caption, unit="count")

    def bars(self) -> Iterator[FigurePanel]:
        """Panels of three bubbles and three counts of activations at one point of the grid."""
        first, (ranks, microbatches) = self.plan.settings[0], self.plan.focus
        where = f"{ranks} ranks, {microbatches} microbatches"
        caption = f"{where}, F:I:W = {ratio_text(first.ratio)}, latency {first.latency:g}."
        bubbles = "Three bubbles", "percent", "Bubble", ("makespan", "stage time", "rate")
        counts = "Three counts of activations", "count", _MOST, ("in flight", "owed", "held")
        for family, (title, unit, quantity, picks) in product(self._families(), (bubbles, counts)):
            cells = {pick: (ranks, microbatches, 0, pick) for pick in picks}
            yield self._panel(title, family, cells, "quantity", quantity, caption, unit=unit)

    def _panel(
        self,
        title: str,
        family: tuple[str, Sequence[str]],
        cells: Mapping[str, Cell],
        axis: str,
        quantity: str,
        caption: str,
        end: str = "",
        unit: str = "percent",
    ) -> FigurePanel:
        """A panel with a curve for each schedule of a family, and a point for each cell. end: of the title."""
        name, schedules = family
        return FigurePanel(
            f"{title}, {name}{end}",
            unit,
            list(cells),
            {self.plan.label(each): [self._value(each, *cell) for cell in cells.values()] for each in schedules},
            axis=axis,
            quantity=quantity,
            evidence=DERIVED if unit == "count" else SIMULATED,
            caption=caption,
        )

    def maps(self) -> Iterator[WinnerMap]:
        """One map of winners for each cost ratio, latency and cap."""
        plan = self.plan
        points = list(product(plan.ranks, plan.microbatches))
        for at, setting in enumerate(plan.settings):
            group = f"F:I:W = {ratio_text(setting.ratio)}, latency {setting.latency:g}"
            held = {
                plan.label(name): [self._value(name, *point, at, "held") for point in points] for name in plan.schedules
            }
            for case in (NO_CAP, *plan.caps):
                yield WinnerMap(
                    f"{group}, {case}",
                    "makespan over the ideal",
                    [str(each) for each in plan.microbatches],
                    [str(each) for each in plan.ranks],
                    {
                        plan.label(name): [
                            self.comparison.fitting(name, ranks, microbatches, at, plan.cap(case, ranks))
                            for ranks, microbatches in points
                        ]
                        for name in plan.competitors(case)
                    },
                    held,
                    axis="microbatches",
                    y_axis="ranks",
                    tie_break="activations held",
                    group=group,
                    case=case,
                    evidence=SIMULATED,
                )

    # -- sentences -----------------------------------------------------------------------------------------------------

    def notes(self) -> tuple[str, ...]:
        """Rules of the comparison, refusals, and the model's limits."""
        comparison, plan = self.comparison, self.plan
        reasons = (
            "ideal: microbatches x (F + I + W) of a rank; a schedule with v stages per rank has ops of 1/v of the time",
            "three bubbles: makespan over the ideal; stage time (longest time from the first start to the last end on "
            "one rank) over the ideal, which ignores the staircase of the start; and rate, its idle share",
            f"memory: forward passes without I plus {plan.weight_memory:.2f} x weight gradients owed, at once, on the "
            "rank with the most; F to I keeps all that a transformer layer saves with fused attention (34 sbh bytes), "
            "I to W the inputs and output gradients of its linear layers (32 sbh; arXiv 2401.10241, Table 1)",
            "the model leaves out: overlapped kernels (the pairs of DualPipeV run one after the other), recomputation, "
            "the bandwidth of messages, the optimizer step, the embedding and the loss, and op times that vary",
            f"{comparison.simulations} simulations of {comparison.ops} ops ran, {comparison.skipped} were skipped "
            "because their order, costs and latency equal those of another one",
        )
        refused = tuple(
            f"{plan.label(name)} is not available at {len(points)} of {len(plan.ranks) * len(plan.microbatches)} "
            f"points of the grid, such as {ranks} ranks and {microbatches} microbatches: {refusal}"
            for name, points in comparison.refusals().items()
            for (ranks, microbatches), refusal in [next(iter(points.items()))]
        )
        return (*self._rivals(), *reasons, *refused)

    def _rivals(self) -> Iterator[str]:
        """For each pair of rivals, the points at which the first one is faster, by cost ratio and latency."""
        plan = self.plan
        points = list(product(plan.ranks, plan.microbatches))
        ratios = ", ".join(ratio_text(ratio) for ratio in plan.costs.values())
        for first, second in plan.rivals:
            shared = [at for at in points if self.comparison.answer(first, *at) and self.comparison.answer(second, *at)]
            faster: dict[float, list[int]] = {}
            for setting, each in enumerate(plan.settings):
                ratio = [
                    self.comparison.fitting(first, *at, setting, None)
                    / self.comparison.fitting(second, *at, setting, None)
                    for at in shared
                ]
                faster.setdefault(each.latency, []).append(sum(value < 1 - EQUAL for value in ratio))
            counts = "; ".join(f"{', '.join(map(str, each))} at latency {late:g}" for late, each in faster.items())
            yield (
                f"{plan.label(first)} is faster than {plan.label(second)} at this number of {len(shared)} points, "
                f"for F:I:W = {ratios}: {counts}"
            )

    # -- values --------------------------------------------------------------------------------------------------------

    def _families(self) -> list[tuple[str, list[str]]]:
        """Schedules with one and with several stages per rank."""
        families: dict[str, list[str]] = {"one stage per rank": [], "several stages per rank": []}
        for name, schedule in self.plan.schedules.items():
            families[f"{'several stages' if places(schedule, 2)[0].chunks > 1 else 'one stage'} per rank"].append(name)
        return [(family, names) for family, names in families.items() if names]

    def _value(self, name: str, ranks: int, microbatches: int, setting: int, pick: str) -> float:
        answer = self.comparison.answer(name, ranks, microbatches)
        return math.nan if answer is None else _PICKS[pick](answer, setting)
