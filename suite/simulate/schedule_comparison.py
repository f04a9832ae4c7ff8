"""Comparison of pipeline schedules over ranks, microbatches, op costs and latencies.

The work of a rank is the same under every schedule: a schedule with v stages per rank has ops of 1/v of the time, and
holds activations of 1/v of the size. Times are in forward passes of a rank's share of one microbatch. Memory is in
activations that this share saves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Place
from suite.core.protocols import Schedule
from suite.core.trace import STEP
from suite.schedule.placement import is_split, messages_per_microbatch, places
from suite.simulate.cost.measured import Fixed
from suite.simulate.schedule_run import OpTimes, ScheduleRun
from suite.simulate.static_order import OrderTimes, RankOrders, static_order, times

Fronts = Sequence[frozenset[tuple[int, int]]]  # by rank: pairs of suite.schedule.check.memory_fronts


@dataclass(frozen=True, slots=True)
class CostSetting:
    """Durations under which schedules are compared.

    Attributes:
        cost: Name of the ratio.
        ratio: Durations of a forward pass, an input gradient and a weight gradient, relative to each other.
        latency: Time of a message between two ranks, in forward passes.
    """

    cost: str
    ratio: tuple[float, float, float]
    latency: float

    @property
    def backward(self) -> float:
        """Time of a whole backward pass, in forward passes."""
        return (self.ratio[1] + self.ratio[2]) / self.ratio[0]

    @property
    def weight(self) -> float:
        """Time of a weight gradient, in forward passes."""
        return self.ratio[2] / self.ratio[0]

    @property
    def work(self) -> float:
        """Time of all ops of one microbatch on a rank, in forward passes."""
        return 1 + self.backward

    def op_costs(self, chunks: int) -> Fixed:
        """Costs of the ops of one of `chunks` stages of a rank."""
        return Fixed(1 / chunks, self.backward / chunks, weight=self.weight / chunks)


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """One schedule on one number of ranks and microbatches. Tuples have an element per setting.

    Attributes:
        makespan: Makespan over the time of the work of a rank, the ideal.
        stage_time: Longest time from the first start to the last end on one rank, over the ideal.
        held: Memory of the rank with the most: activations without a backward pass and activations whose weight
            gradient alone is missing, at once, weighted with their bytes; in activations of a rank's share.
        messages: Messages between ranks per microbatch.
    """

    makespan: tuple[float, ...]
    stage_time: tuple[float, ...]
    held: tuple[float, ...]
    messages: int


@dataclass(slots=True)
class ScheduleComparison:
    """Answers by (schedule, ranks, microbatches); the text of a refusal where a schedule cannot run.

    Attributes:
        settings: Settings of the answers.
        weight_memory: Bytes held until the weight gradient, over the bytes held until the input gradient.
        ops: Ops that were simulated, counted once for each setting.
        simulations: Simulations that ran, counted in the same way.
        skipped: Simulations whose order, costs and latency equal those of an earlier one.
    """

    settings: Sequence[CostSetting]
    weight_memory: float = 1.0
    answers: dict[tuple[str, int, int], ScheduleResult | str] = field(default_factory=dict)
    ops: int = 0
    simulations: int = 0
    skipped: int = 0
    _known: dict[RankOrders, ScheduleResult] = field(default_factory=dict, repr=False)

    def add(self, name: str, schedule: Schedule, ranks: int, microbatches: int) -> None:
        """Simulate a schedule under every setting."""
        interval = FlushInterval(0, microbatches, None, 0)
        try:
            order = static_order(schedule, ranks, interval)
        except InvalidRequest as error:
            self.answers[name, ranks, microbatches] = str(error)
            return
        if order is None:
            answer = self._driven(schedule, ranks, interval)
        elif order in self._known:
            answer = self._known[order]
            self.skipped += len(self.settings)
        else:
            answer = self._known[order] = self._ordered(order, microbatches)
        self.answers[name, ranks, microbatches] = answer

    def answer(self, name: str, ranks: int, microbatches: int) -> ScheduleResult | None:
        """The answer of a schedule; None where it cannot run."""
        found = self.answers.get((name, ranks, microbatches))
        return found if isinstance(found, ScheduleResult) else None

    def refusals(self) -> Mapping[str, Mapping[tuple[int, int], str]]:
        """Refusals by schedule and (ranks, microbatches)."""
        refused: dict[str, dict[tuple[int, int], str]] = {}
        for (name, ranks, microbatches), answer in self.answers.items():
            if isinstance(answer, str):
                refused.setdefault(name, {})[ranks, microbatches] = answer
        return refused

    def fitting(self, name: str, ranks: int, microbatches: int, setting: int, cap: float | None) -> float:
        """Makespan over the ideal; nan where the schedule cannot run or holds more than `cap` activations."""
        answer = self.answer(name, ranks, microbatches)
        if answer is None or (cap is not None and answer.held[setting] > cap + 1e-9):
            return math.nan
        return answer.makespan[setting]

    def _ordered(self, order: RankOrders, microbatches: int) -> ScheduleResult:
        """Result of a static order: one pass over its ops for all settings."""
        place, count = order.places[0], len(self.settings)
        costs = [setting.op_costs(place.chunks) for setting in self.settings]
        self.ops += order.count * count
        self.simulations += count
        result = times(order, costs, [setting.latency for setting in self.settings])
        held = [self._held(order.fronts(), place.chunks)] * count
        return self._answer(result, held, place, microbatches)

    def _driven(self, schedule: Schedule, ranks: int, interval: FlushInterval) -> ScheduleResult:
        """Result of a message-driven schedule, whose order depends on the times: one simulation for each setting."""
        place, split = places(schedule, ranks)[0], is_split(schedule)
        runs = []
        known: dict[tuple[float, ...], tuple[float, float, float]] = {}
        for setting in self.settings:
            key = (setting.backward, setting.latency, *((setting.weight,) if split else ()))
            if key in known:
                self.skipped += 1
            else:
                known[key] = self._simulated(schedule, setting, place, interval)
            runs.append(known[key])
        ends, spans, held = zip(*runs, strict=True)
        return self._answer(OrderTimes(ends, spans), held, place, interval.microbatches)

    def _simulated(
        self, schedule: Schedule, setting: CostSetting, place: Place, interval: FlushInterval
    ) -> tuple[float, float, float]:
        """Makespan, stage time and activations held of one simulation."""
        times = OpTimes(
            1.0, setting.backward - setting.weight, setting.weight, setting.latency, owed=self.weight_memory
        )
        run = ScheduleRun("", schedule, Grid(inter=place.ranks), interval, times)
        passes = [span for span in run.spans if span.category != STEP]
        self.ops += len(passes)
        self.simulations += 1
        return max(span.end for span in passes), run.stage_time, max(run.peak_activations)

    def _answer(self, result: OrderTimes, held: Sequence[float], place: Place, microbatches: int) -> ScheduleResult:
        ideal = [microbatches * setting.work for setting in self.settings]
        return ScheduleResult(
            tuple(time / one for time, one in zip(result.makespan, ideal, strict=True)),
            tuple(time / one for time, one in zip(result.stage_time, ideal, strict=True)),
            tuple(held),
            messages_per_microbatch(place),
        )

    def _held(self, fronts: Fronts, chunks: int) -> float:
        """Activations held, in activations of a rank's share."""
        return max(started + self.weight_memory * owed for rank in fronts for started, owed in rank) / chunks
