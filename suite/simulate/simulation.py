"""Result of a simulated flush interval: times of drains and updates, and the rate of a full pipeline.

The throughput of a stream has two answers, with its filling and draining (the makespan) and without (the period); a
paper that times a thousand mini-batches measures the second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from suite.core.trace import Trace


@dataclass(slots=True)
class Simulation:
    """Result of a simulated flush interval. Lists are by stage, times in seconds from its start.

    Attributes:
        drained: When the stage's last update begins.
        reduced: Its gradients are reduced.
        finished: It has stepped.
        steps: When each of its updates has stepped, in order.
        peak: Most forwards open at once.
        sent: Payload bytes of its messages.
        trace: Empty unless asked for.
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

    @property
    def makespan(self) -> float:
        return max(self.finished)

    @property
    def period(self) -> float:
        """Seconds per update of a full pipeline: of the third quarter of the first stage's updates, behind where the
        pipeline fills and before it drains. A flush has one update, which takes as long as its work."""
        ends = self.steps[0]
        first, last = len(ends) // 2, 3 * len(ends) // 4
        return self.makespan if last <= first else (ends[last] - ends[first]) / (last - first)
