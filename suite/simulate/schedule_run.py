"""One schedule in virtual time, with what it holds, what its ops wait for, and its critical path.

Op times are those of a rank's share of one microbatch: a schedule with v stages per rank has ops of 1/v of them. Memory
is in activations of such a share. Messages have a latency and no size.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum

from suite.core.grid import Grid
from suite.core.jitter import Perturbation
from suite.core.op import FlushInterval, Kind, Place, message_of, needs
from suite.core.protocols import Schedule, WeightPolicy
from suite.core.trace import CATEGORY, STEP, Span
from suite.schedule.check import check, check_one_version
from suite.schedule.placement import check_policy, is_plain, messages_per_microbatch, places
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.simulation import Simulation
from suite.simulate.worker import NetworkModel, simulate
from suite.weights import Latest, Ledger

NO_SIZE = 1e30  # bytes/s
_OPS = frozenset(CATEGORY.values())


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Times of the ops of a rank, in any unit.

    Attributes:
        forward, input, weight: A forward pass, an input gradient and a weight gradient of one microbatch.
        link: A message between two ranks.
        step: An update.
        owed: Bytes held until a weight gradient, over those held until an input gradient.
        jitter: Factors on the times; every replica is then simulated.
    """

    forward: float
    input: float
    weight: float
    link: float = 0.0
    step: float = 0.0
    owed: float = 1.0
    jitter: Perturbation | None = None


@dataclass(frozen=True, slots=True)
class TimeSteps:
    """Steps over time of one rank or stage: the value y from the time x on; `peak` is the largest value."""

    x: array[float]
    y: array[float]
    peak: float


@dataclass(frozen=True)
class ScheduleRun:
    """One schedule, simulated on demand at the times of its ops.

    Attributes:
        policy: Weight versions that passes read.
        checked: Whether every law is checked first, as for a schedule that nobody has checked.
    """

    name: str
    schedule: Schedule
    grid: Grid
    interval: FlushInterval
    times: OpTimes
    policy: WeightPolicy = field(default_factory=Latest)
    checked: bool = False

    @cached_property
    def place(self) -> Place:
        """Place of the first rank."""
        return places(self.schedule, self.grid.inter)[0]

    @cached_property
    def chunks(self) -> float:
        """Stages per rank."""
        return self.place.stages / self.place.ranks

    @property
    def ops(self) -> int:
        """Most passes that a simulation drives."""
        return 3 * self.interval.microbatches * self.place.stages * (self.grid.data if self.times.jitter else 1)

    @cached_property
    def simulation(self) -> Simulation:
        """The simulated interval. Raises InvalidRequest for what cannot run, IllegalSchedule for a broken law."""
        times, every = self.times, self.interval.update_interval
        check_policy(self.policy, self.schedule)
        self.policy.check(self.place.stages, every)
        if self.checked or (every is not None and not is_plain(self.schedule)):
            check_one_version(self.schedule, check(self.schedule, self.grid.inter, self.interval), every)
        forward, gradient, weight = (time / self.chunks for time in (times.forward, times.input, times.weight))
        link = Link(times.link, NO_SIZE)
        return simulate(
            self.schedule,
            self.grid,
            self.interval,
            Fixed(forward, gradient + weight, weight=weight, step=times.step),
            NetworkModel(lambda source, goal: link),
            symmetric=times.jitter is None,
            traced=True,
            slower=times.jitter,
        )

    @cached_property
    def spans(self) -> list[Span]:
        """Passes and updates of all simulated ranks, in order of start."""
        return [span for span in self.simulation.trace if span.category in _OPS]

    @cached_property
    def rows(self) -> list[list[Span]]:
        """Passes and updates of each simulated rank."""
        rows: list[list[Span]] = [[] for _ in range(1 + max(span.rank for span in self.spans))]
        for span in self.spans:
            rows[span.rank].append(span)
        return rows

    @property
    def ideal(self) -> float:
        """Time of a rank's work without any idle time."""
        times = self.times
        each = fsum((times.forward, times.input, times.weight))
        return self.interval.microbatches * each + self.interval.updates * times.step

    @cached_property
    def idle(self) -> float:
        """Idle share of the ranks' time."""
        busy = fsum(span.end - span.start for span in self.spans)
        return 1 - busy / (len(self.rows) * self.simulation.makespan)

    @property
    def stage_time(self) -> float:
        """Longest time from the first start to the last end of a pass on one rank (arXiv 2401.10241, Section 4)."""
        return max(passes[-1].end - passes[0].start for passes in map(_passes, self.rows))

    @cached_property
    def peak_activations(self) -> list[float]:
        """Most activations of each pipeline rank, in those of a rank's share of a microbatch."""
        owed = self.times.owed
        return [max(started + owed * late for started, late in front) / self.chunks for front in self.simulation.fronts]

    @property
    def messages(self) -> int:
        """Messages between ranks per microbatch."""
        return messages_per_microbatch(self.place)

    @cached_property
    def memory(self) -> list[TimeSteps]:
        """Activations that each simulated rank holds over time, as steps."""
        owed, steps = self.times.owed, list[TimeSteps]()
        forward = Kind.FORWARD
        change = {forward: 1.0, Kind.BACKWARD: -1.0, Kind.INPUT: owed - 1, Kind.WEIGHT: -owed}
        for row in self.rows:
            times, values, now = [0.0], [0.0], 0.0
            for _, _, start, end, op, _ in row:
                assert op is not None
                if (kind := op[1]) in change:
                    now += change[kind]
                    times.append(start if kind is forward else end)
                    values.append(now / self.chunks)
            steps.append(TimeSteps(array("d", times), array("d", values), max(values)))
        return steps

    @cached_property
    def versions(self) -> list[TimeSteps]:
        """Weight versions alive on each stage of the first replica over time, as steps; empty for a flush."""
        steps = list[TimeSteps]()
        for stage in range(self.place.stages if self.interval.update_interval is not None else 0):
            ledger, times, values = Ledger(self.policy, self.interval, self.place.stages), [0.0], [1.0]
            for span in self.rows[self.place.rank_of(stage)]:
                op = span.op
                assert op is not None
                if op.kind is Kind.WEIGHT or (op.stage != stage and op.kind is not Kind.UPDATE):
                    continue
                ledger.run(message_of(op._replace(stage=stage)))
                times.append(span.end)
                values.append(float(len(ledger.alive)))
            steps.append(TimeSteps(array("d", times), array("d", values), ledger.peak))
        return steps

    @cached_property
    def makers(self) -> dict[tuple[int, object], int]:
        """Index in `spans` of the op that sends each message, by replica and message."""
        inter, split, weight = self.grid.inter, Kind.INPUT, Kind.WEIGHT
        return {
            (rank // inter, message_of(op) if op[1] is split else op): index
            for index, (rank, _, _, _, op, _) in enumerate(self.spans)
            if op is not None and op[1] is not weight
        }

    @cached_property
    def previous(self) -> list[int | None]:
        """Index of the op before each op on its rank; None for the first one."""
        last: dict[int, int] = {}
        found = []
        for index, span in enumerate(self.spans):
            found.append(last.get(span.rank))
            last[span.rank] = index
        return found

    def needed(self, index: int) -> int | None:
        """Index of the op whose message op number `index` needs; None without one."""
        span = self.spans[index]
        assert span.op is not None
        need = needs(span.op, self.place.stages)
        return None if need is None else self.makers[span.rank // self.grid.inter, need]

    def cause(self, index: int) -> int | None:
        """Index of the op whose end or message lets op number `index` start; None for an op that starts at once.

        An update waits for the last op before it on any replica.
        """
        span, previous, needed = self.spans[index], self.previous[index], self.needed(index)
        if span.op is not None and span.op.kind is Kind.UPDATE:
            replicas = range(len(self.rows) // self.grid.inter)
            same = [self.previous[self.makers[replica, span.op]] for replica in replicas]
            return max((at for at in same if at is not None), key=lambda at: self.spans[at].end, default=None)
        waits = previous is None or self.spans[previous].end < span.start
        return needed if waits and needed is not None else previous

    @cached_property
    def critical(self) -> list[int]:
        """Indices of a chain of ops, each of which starts when the one before it allows, up to the last op."""
        chain = [max(range(len(self.spans)), key=lambda index: self.spans[index].end)]
        while self.spans[chain[-1]].start > 0 and (before := self.cause(chain[-1])) is not None:
            chain.append(before)
        return chain[::-1]

    def explain(self, index: int) -> str:
        """Sentences about op number `index`: its times, the message that it needs, and its wait."""
        span, previous, needed = self.spans[index], self.previous[index], self.needed(index)
        lines = [f"{span.op} on rank {span.rank}, from {span.start:g} to {span.end:g}."]
        free = self.spans[previous].end if previous is not None else 0.0
        if needed is not None:
            sender = self.spans[needed]
            arrival = sender.end + (self.times.link if sender.rank != span.rank else 0.0)
            lines.append(f"It needs the output of {sender.op}, which arrives at {arrival:g}.")
        idle, last = span.start - free, self.cause(index)
        if span.op is not None and span.op.kind is Kind.UPDATE and last is not None and last != previous:
            lines.append(f"It waits for {self.spans[last].op} on rank {self.spans[last].rank}.")
        if idle > 0:
            lines.append(f"The rank is idle for {idle:g} before it.")
        elif previous is not None:
            lines.append(f"It starts when {self.spans[previous].op} ends.")
        return " ".join(lines)


def _passes(row: Iterable[Span]) -> list[Span]:
    return [span for span in row if span.category != STEP]
