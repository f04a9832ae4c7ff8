"""Null models: what a simulated value must be nearer to print than.

    percent of peak = constant * m / (m + S - 1)

A null model knows the share of a pipeline that is not bubble, or a count of bytes or flops, and one constant per
system, which a printed value sets. It knows nothing of messages, collectives or kernels. Where a simulation is no
nearer to the paper than this, its mechanism explains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suite.core.errors import InvalidRequest
from suite.papers.common.closed_forms import equation_3
from suite.papers.common.cluster_runs import printed_peak
from suite.simulate.block_model import SimulationPlan


def pipeline_utilization(plan: SimulationPlan) -> float:
    """The share of a batch in which an equal stage computes: m / (m + S - 1)."""
    return plan.microbatches / (plan.microbatches + plan.grid.inter - 1)


def percents_of_peak(plans: Sequence[SimulationPlan], first: float) -> list[float]:
    """Percent of peak of each of `plans` (one system, in the order of its GPU counts); `first` is published."""
    if not plans:
        raise InvalidRequest("a null model of no plans", rule="at least 1")
    constant = first / pipeline_utilization(plans[0])
    return [constant * pipeline_utilization(plan) for plan in plans]


def percent_of_peak(plan: SimulationPlan, others: Sequence[SimulationPlan], highest: float) -> float:
    """Percent of peak of `plan`; `highest` is published as the largest percent of the system's runs, `others`."""
    if not others:
        raise InvalidRequest("a null model of no plans", rule="at least 1")
    return highest * pipeline_utilization(plan) / max(pipeline_utilization(other) for other in others)


def batch_seconds(plan: SimulationPlan, percent: float) -> float:
    """Seconds of a batch at `percent` of peak, by AxoNN's Equation 3."""
    return 100 * equation_3(plan.shape, plan.batch, 1.0) / (percent * plan.grid.size * printed_peak())


def percents_saved(ours: Sequence[SimulationPlan], theirs: Sequence[SimulationPlan], first: float) -> list[float]:
    """Percent of batch time saved at each count, when `first` is published for the first of them."""
    ratios = [pipeline_utilization(theirs[i]) / pipeline_utilization(ours[i]) for i in range(len(ours))]
    constant = (1 - first / 100) / ratios[0]
    return [100 * (1 - constant * ratio) for ratio in ratios]


@dataclass(frozen=True, slots=True)
class BubbleAlone:
    """Two pipelines whose stages compute equally long, so that the bubble alone makes one of them slower.

    ours, theirs: plans of the same batch on the same GPUs
    """

    ours: SimulationPlan
    theirs: SimulationPlan

    @property
    def saved(self) -> float:
        """Percent of their batch time that ours saves; all of it is bubble."""
        return 100 * (1 - pipeline_utilization(self.theirs) / pipeline_utilization(self.ours))

    @property
    def bubble_reduction(self) -> float:
        """Percent by which our bubble is shorter than theirs.

        Raises:
            InvalidRequest: theirs has one stage, and no bubble
        """
        idle = [1 / pipeline_utilization(plan) - 1 for plan in (self.ours, self.theirs)]
        if not idle[1]:
            raise InvalidRequest("a bubble of one stage in relation to another", rule="at least 2 stages")
        return 100 * (1 - idle[0] / idle[1])
