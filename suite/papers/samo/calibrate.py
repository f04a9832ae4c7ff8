"""Calibration of Summit's efficiency: sparse products.

One constant of AxoNN's and SAMO's runs is the root of an equation, simulated value = one published number: the rate
of Sputnik's sparse products, from the 256-GPU row of SAMO's Table II. Every other constant comes from
public measurements or data sheets (conf/efficiency/summit.yaml). A test compares the stored constant with the root.

    suite claims fit
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from scipy.optimize import brentq

from suite.claims.blind import Hidden
from suite.claims.claim import Claim
from suite.claims.cluster_runs import SUMMIT, Lab
from suite.core.errors import HiddenOutcome, InvalidRequest
from suite.simulate.cost.efficiency import Efficiency

Error = Callable[[Lab], float]


def anchors(claims: Mapping[str, Claim]) -> dict[str, float]:
    """Published numbers by claim, to which constants are fitted.

    Raises:
        HiddenOutcome: In blind mode.
    """
    if hides := [claim.id for claim in claims.values() if isinstance(claim.value, Hidden)]:
        raise HiddenOutcome(hides[0])
    return {name: claim.value for name, claim in claims.items() if isinstance(claim.value, float)}


def with_summit(lab: Lab, efficiency: Efficiency) -> Lab:
    """Lab with other constants of Summit, and nothing simulated yet."""
    return Lab(lab.machine, {**lab.efficiencies, SUMMIT: efficiency}, lab.systems, lab.shapes)


def fit_summit(lab: Lab, published: Mapping[str, float]) -> Efficiency:
    """Summit's efficiency with fitted constants. `published` maps claim ids to published numbers."""
    printed = published["samo.table2.sputnik.gpus_256"]
    return fit_constant(lab, "sparse", 0.02, 1.0, lambda fitted: sputnik_percent(fitted) - printed)


def sputnik_percent(lab: Lab) -> float:
    return lab.samo("gpt3_13b", "sputnik", 256).percent_of_peak


def fit_constant(lab: Lab, name: str, low: float, high: float, error: Error) -> Efficiency:
    """Summit's efficiency with the value of one constant between `low` and `high` at which `error` is zero."""
    efficiency = lab.efficiencies[SUMMIT]

    def efficiency_with(value: float) -> Efficiency:
        return replace(efficiency, **{name: value})  # type: ignore[arg-type]  # a numeric constant

    root = find_root(name, lambda value: error(with_summit(lab, efficiency_with(value))), low, high)
    return efficiency_with(root)


def find_root(name: str, error: Callable[[float], float], low: float, high: float) -> float:
    """Root of `error` between `low` and `high`. Raises InvalidRequest if both ends have the same sign."""
    ends = error(low), error(high)
    if ends[0] * ends[1] > 0:
        raise InvalidRequest(
            f"no {name} from {low:g} to {high:g} gives the printed value: the error is {ends[0]:g} to {ends[1]:g}"
        )
    return float(brentq(error, low, high, xtol=1e-15, rtol=1e-4))


def fitted_constants(efficiency: Efficiency) -> dict[str, float]:
    """Fitted constants of an efficiency with their values in conf/efficiency."""
    return {name: getattr(efficiency, name) for name in efficiency.fitted}
