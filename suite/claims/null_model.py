"""Null models: baselines that a simulation must beat.

    percent of peak = constant * m / (m + S - 1)

A null model consists of one constant per system, set by a printed value, and a simple cost. The cost is the bubble of
a pipeline of S stages and m microbatches, or a count of bytes or flops. The model has no messages, collectives or
kernels. A simulation explains nothing if it is no nearer to the paper than its null model. The null model of a quantity
of cluster runs is the same quantity on a NullLab.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from suite.claims.cluster_runs import ClusterBatch, Lab, printed_peak
from suite.core.trace import FORWARD, WAIT, Span, Trace
from suite.papers.closed_forms import equation_3
from suite.simulate.block_model import SimulationPlan
from suite.simulate.worker import Simulation


def pipeline_utilization(plan: SimulationPlan) -> float:
    """Fraction of the batch time in which each of S equal stages computes: m / (m + S - 1)."""
    return plan.microbatches / (plan.microbatches + plan.grid.inter - 1)


@dataclass(frozen=True, eq=False)
class NullLab(Lab):
    """Lab whose batches take their flops at a constant rate and the bubble of equal stages; nothing else takes time.

    Attributes:
        percents: Percent of peak without the bubble, by system; 100 for the others.
    """

    percents: Mapping[str, float] = field(default_factory=dict, kw_only=True)

    @classmethod
    def of(cls, lab: Lab, anchors: Iterable[tuple[SimulationPlan, float]] = ()) -> NullLab:
        """The null model of a lab in which each of these plans reaches its percent of peak."""
        percents = {plan.system.name: percent / pipeline_utilization(plan) for plan, percent in anchors}
        null = cls(lab.machine, lab.efficiencies, lab.systems, lab.shapes, changes=lab.changes, percents=percents)
        null.__dict__["cache"] = lab.cache  # of plans that the search found
        return null

    def batch(self, plan: SimulationPlan, *, traced: bool = False) -> ClusterBatch:
        busy, percent = pipeline_utilization(plan), self.percents.get(plan.system.name, 100.0)
        flops = equation_3(plan.shape, plan.batch, 1.0)
        seconds = 100 * flops / (percent * busy * plan.grid.size * printed_peak())
        bubble = (1 - busy) * seconds
        trace = Trace([Span(0, WAIT, 0.0, bubble), Span(0, FORWARD, bubble, seconds)])
        return ClusterBatch(
            plan, seconds, seconds, 0.0, 0.0, Simulation(plan.grid.inter, [], [], [], [], [], trace=trace)
        )
