"""Null models: baselines that a simulation must beat.

    percent of peak = constant * m / (m + S - 1)

A null model consists of one constant per system, set by a printed value, and a simple cost. The cost is the bubble of
a pipeline of S stages and m microbatches, or a count of bytes or flops. The model has no messages, collectives or
kernels. A simulation explains nothing if it is no nearer to the paper than its null model.
"""

from __future__ import annotations

from collections.abc import Sequence

from suite.claims.cluster_runs import printed_peak
from suite.core.errors import InvalidRequest
from suite.papers.closed_forms import equation_3
from suite.simulate.block_model import SimulationPlan


def pipeline_utilization(plan: SimulationPlan) -> float:
    """Fraction of the batch time in which each of S equal stages computes: m / (m + S - 1)."""
    return plan.microbatches / (plan.microbatches + plan.grid.inter - 1)


def percents_of_peak(plans: Sequence[SimulationPlan], first: float) -> list[float]:
    """Percent of peak of the plans of one system, given the published percent `first` of the first plan."""
    if not plans:
        raise InvalidRequest("a null model of no plans", rule="at least 1")
    constant = first / pipeline_utilization(plans[0])
    return [constant * pipeline_utilization(plan) for plan in plans]


def percent_of_peak(plan: SimulationPlan, others: Sequence[SimulationPlan], highest: float) -> float:
    """Percent of peak of `plan`, given the published maximum `highest` over the system's plans `others`."""
    if not others:
        raise InvalidRequest("a null model of no plans", rule="at least 1")
    return highest * pipeline_utilization(plan) / max(pipeline_utilization(other) for other in others)


def batch_seconds(plan: SimulationPlan, percent: float) -> float:
    """Batch time in seconds at `percent` of peak (AxoNN Equation 3)."""
    return 100 * equation_3(plan.shape, plan.batch, 1.0) / (percent * plan.grid.size * printed_peak())


def percents_saved(ours: Sequence[SimulationPlan], theirs: Sequence[SimulationPlan], first: float) -> list[float]:
    """Percent of batch time saved at each GPU count, given the published percent `first` of the first count."""
    ratios = [pipeline_utilization(theirs[i]) / pipeline_utilization(ours[i]) for i in range(len(ours))]
    constant = (1 - first / 100) / ratios[0]
    return [100 * (1 - constant * ratio) for ratio in ratios]


def saved_by_bubble(ours: SimulationPlan, theirs: SimulationPlan) -> float:
    """Percent by which `ours` reduces the batch time of `theirs`, with the same batch and GPUs, by its bubble alone."""
    return 100 * (1 - pipeline_utilization(theirs) / pipeline_utilization(ours))


def bubble_reduction(ours: SimulationPlan, theirs: SimulationPlan) -> float:
    """Percent by which the bubble of `ours` is shorter. Raises InvalidRequest if `theirs` has one stage and none."""
    idle = [1 / pipeline_utilization(plan) - 1 for plan in (ours, theirs)]
    if not idle[1]:
        raise InvalidRequest("a pipeline of one stage has no bubble to compare with", rule="at least 2 stages")
    return 100 * (1 - idle[0] / idle[1])
