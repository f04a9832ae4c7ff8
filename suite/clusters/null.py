"""Decides what a simulator must beat: the share of a pipeline that is not bubble, and one constant per system.

    percent of peak = constant * m / (m + S - 1)

The constant is the one that makes the system's smallest run exact, so the model knows nothing of messages, collectives
or kernels. Where a simulation is no nearer to the paper than this, its mechanism explains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from suite.core.errors import Refused
from suite.simulate.plan import Plan


def filled(plan: Plan) -> float:
    """The share of a batch in which an equal stage computes: m / (m + S - 1)."""
    return plan.microbatches / (plan.microbatches + plan.grid.inter - 1)


def percents(plans: Sequence[Plan], first: float) -> list[float]:
    """Percent of peak of each of `plans` (one system, in the order of its GPU counts); `first` is published."""
    if not plans:
        raise Refused("a null model of no plans", rule="at least 1")
    constant = first / filled(plans[0])
    return [constant * filled(plan) for plan in plans]


def saved(ours: Sequence[Plan], theirs: Sequence[Plan], first: float) -> list[float]:
    """Percent of batch time saved at each count, when `first` is published for the first of them."""
    ratios = [filled(theirs[i]) / filled(ours[i]) for i in range(len(ours))]
    constant = (1 - first / 100) / ratios[0]
    return [100 * (1 - constant * ratio) for ratio in ratios]
