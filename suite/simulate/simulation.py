"""Result of a simulated flush interval: times of drains and updates, and the rate of a full pipeline.

A stream has two throughputs: with filling and draining (the makespan) and without (the period). A paper that times a
thousand mini-batches measures the second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from suite.core.trace import Trace


@dataclass(slots=True)
class Simulation:
    """Result of a simulated flush interval. Lists are by pipeline rank, times in seconds from its start.

    Attributes:
        stages: Stages of the pipeline.
        drained: Time at which the last update of the rank begins.
        reduced: Time at which the gradients of that update are reduced.
        finished: Time at which its optimizer step has ended.
        steps: Times at which the optimizer steps of all updates have ended.
        peak: Most forward passes at once whose backward pass or weight gradient had not run.
        sent: Payload bytes of the messages.
        fronts: Pairs (forward passes without a backward pass, weight gradients owed) that no other pair exceeds, as in
            suite.schedule.check.Timeline.
        trace: Spans; empty unless requested.
    """

    stages: int
    drained: list[float]
    reduced: list[float]
    finished: list[float]
    peak: list[int]
    sent: list[int]
    events: int = 0
    trace: Trace = field(default_factory=Trace)
    steps: list[list[float]] = field(default_factory=list)
    fronts: list[frozenset[tuple[int, int]]] = field(default_factory=list)

    @property
    def makespan(self) -> float:
        return max(self.finished)

    @property
    def period(self) -> float:
        """Seconds per update of a full pipeline.

        They are averaged over the third quarter of the first rank's updates, after the pipeline fills and before it
        drains. A flush has one update, whose period is the makespan.
        """
        ends = self.steps[0]
        first, last = len(ends) // 2, 3 * len(ends) // 4
        return self.makespan if last <= first else (ends[last] - ends[first]) / (last - first)
