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
            if not values or min(values) < 1 or values != sorted(set(values)):
                raise InvalidRequest(name, values, rule="whole numbers from 1, rising", legal=f"{name}=[2,4,8]")
        if not self.latencies or min(self.latencies) < 0 or not all(map(math.isfinite, self.latencies)):
            raise InvalidRequest("latencies", list(self.latencies), rule="at least 0", legal="latencies=[0]")
        for group, counts, least, legal in (("costs", (3,), 1e-9, "[1,1,1]"), ("caps", (2, 3), 0, "[1,0]")):
            for name, values in getattr(self, group).items():
                if len(values) not in counts or not all(math.isfinite(value) and value >= least for value in values):
                    rule = f"{' or '.join(map(str, counts))} finite numbers, {'above 0' if least else 'at least 0'}"
                    setting = {name: list(values)}
                    raise InvalidRequest(group, setting, rule=rule, legal=f"executor.{group}.{name}={legal}")
        if not self.schedules or not self.costs:
            raise InvalidRequest("schedules and costs", "none", rule="at least one of each")
        for key, listed in (("names", list(self.names)), ("rivals", [name for pair in self.rivals for name in pair])):
            if unknown := next((name for name in listed if name not in self.schedules), None):
                raise UnknownName(f"schedule in {key}", unknown, self.schedules)
        if any(len(pair) != 2 for pair in self.rivals):
            rivals, legal = [list(pair) for pair in self.rivals], "executor.rivals=[[zbv,zb_h1]]"
            raise InvalidRequest("rivals", rivals, rule="pairs", legal=legal)
        if not 0 <= self.weight_memory <= 1:
            raise InvalidRequest("weight_memory", self.weight_memory, rule="from 0 to 1", legal="weight_memory=1")
        places_of_focus = (self.ranks, self.microbatches)
        if len(self.focus) != 2 or any(at not in each for at, each in zip(self.focus, places_of_focus, strict=False)):
            legal = f"focus=[{self.ranks[-1]},{self.microbatches[-1]}]"
            raise InvalidRequest("focus", list(self.focus), rule="one of ranks and one of microbatches", legal=legal)

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


Pick = Callable[[ScheduleResult, int], float]  # quantity of an answer under one setting


def _makespan(answer: ScheduleResult, setting: int) -> float:
    return 100 * (answer.makespan[setting] - 1)


def _stage_time(answer: ScheduleResult, setting: int) -> float:
    return 100 * (answer.stage_time[setting] - 1)


def _rate(answer: ScheduleResult, setting: int) -> float:
    return 100 * (1 - 1 / answer.stage_time[setting])


def _in_flight(answer: ScheduleResult, setting: int) -> float:
    return answer.in_flight[setting]


def _owed(answer: ScheduleResult, setting: int) -> float:
    return answer.owed[setting]


def _held(answer: ScheduleResult, setting: int) -> float:
    return answer.held[setting]


def _messages(answer: ScheduleResult, setting: int) -> float:
    return answer.messages


_BARS: tuple[tuple[str, str, str, str, Mapping[str, Pick]], ...] = (
    (
        "Three bubbles",
        "percent",
        "Bubble",
        SIMULATED,
        {"makespan": _makespan, "stage time": _stage_time, "rate": _rate},
    ),
    (
        "Three counts of activations",
        "count",
        "Activations of the rank with the most",
        DERIVED,
        {"in flight": _in_flight, "owed": _owed, "held": _held},
    ),
)


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
        plan, first = self.plan, self.plan.settings[0]
        said = f"F:I:W = {ratio_text(first.ratio)}, latency {first.latency:g}"
        ranks, microbatches = plan.focus
        for family, names in self._families():
            for count in plan.ranks:
                for title, pick in (("Bubble of the makespan", _makespan), ("Bubble of the stage time", _stage_time)):
                    yield FigurePanel(
                        f"{title}, {family}, {count} ranks",
                        "percent",
                        [str(each) for each in plan.microbatches],
                        {
                            plan.label(name): [self._value(name, count, each, 0, pick) for each in plan.microbatches]
                            for name in names
                        },
                        axis="microbatches",
                        quantity=f"{'Makespan' if pick is _makespan else 'Stage time'} over the ideal, minus 1",
                        evidence=SIMULATED,
                        caption=f"{said}. A schedule without a point refuses that number of microbatches.",
                    )
            yield FigurePanel(
                f"Bubble over latency, {family}, {ranks} ranks",
                "percent",
                [f"{each:g}" for each in plan.latencies],
                {
                    plan.label(name): [
                        self._value(name, ranks, microbatches, at, _makespan) for at in range(len(plan.latencies))
                    ]
                    for name in names
                },
                axis="latency of a message, in forward passes",
                quantity="Makespan over the ideal, minus 1",
                evidence=SIMULATED,
                caption=f"{microbatches} microbatches, F:I:W = {ratio_text(first.ratio)}.",
            )
            for title, quantity, pick in (
                ("Activations held", "Activations of the rank with the most", _held),
                ("Messages per microbatch", "Messages between ranks", _messages),
            ):
                yield FigurePanel(
                    f"{title}, {family}",
                    "count",
                    [str(each) for each in plan.ranks],
                    {
                        plan.label(name): [self._value(name, each, microbatches, 0, pick) for each in plan.ranks]
                        for name in names
                    },
                    axis="pipeline ranks",
                    quantity=quantity,
                    evidence=DERIVED,
                    caption=f"{microbatches} microbatches, {said}. Activations are those of a rank for one microbatch.",
                )

    def bars(self) -> Iterator[FigurePanel]:
        """Panels of three bubbles and three counts of activations at one point of the grid."""
        plan, first = self.plan, self.plan.settings[0]
        ranks, microbatches = plan.focus
        for (family, names), (title, unit, quantity, evidence, picks) in product(self._families(), _BARS):
            yield FigurePanel(
                f"{title}, {family}",
                unit,
                list(picks),
                {
                    plan.label(name): [self._value(name, ranks, microbatches, 0, pick) for pick in picks.values()]
                    for name in names
                },
                axis="quantity",
                quantity=quantity,
                evidence=evidence,
                caption=f"{ranks} ranks, {microbatches} microbatches, F:I:W = {ratio_text(first.ratio)}, "
                f"latency {first.latency:g}.",
            )

    def maps(self) -> Iterator[WinnerMap]:
        """One map of winners for each cost ratio, latency and cap."""
        plan = self.plan
        points = list(product(plan.ranks, plan.microbatches))
        for at, setting in enumerate(plan.settings):
            group = f"F:I:W = {ratio_text(setting.ratio)}, latency {setting.latency:g}"
            held = {
                plan.label(name): [self._value(name, *point, at, _held) for point in points] for name in plan.schedules
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
        several = {name for name, schedule in self.plan.schedules.items() if places(schedule, 2)[0].chunks > 1}
        families = [
            ("one stage per rank", [name for name in self.plan.schedules if name not in several]),
            ("several stages per rank", [name for name in self.plan.schedules if name in several]),
        ]
        return [(family, names) for family, names in families if names]

    def _value(self, name: str, ranks: int, microbatches: int, setting: int, pick: Pick) -> float:
        answer = self.comparison.answer(name, ranks, microbatches)
        return math.nan if answer is None else pick(answer, setting)
