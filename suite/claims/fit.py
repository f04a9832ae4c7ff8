"""Fit of the constants of simulated machines, each to the claim that `fitted` of its conf/efficiency names.

A fitted constant is the root of an equation, simulated value = printed value, in the constant's range. The simulated
value is the claim's own answer. A test compares the stored constants with the roots.

    suite claims fit
"""

from __future__ import annotations

from scipy.optimize import brentq

from suite.claims import load
from suite.claims.answer import answer
from suite.claims.claim import MODELLED, Check, Claim
from suite.claims.lab import BaseLab
from suite.core.errors import InvalidRequest
from suite.simulate.cost.efficiency import Efficiency

ROUNDS = 3  # over all constants of a machine, which depend weakly on one another


def fitted(lab: BaseLab, name: str) -> Efficiency:
    """The efficiency of this name with its fitted constants.

    Raises:
        InvalidRequest: No value in the range of a constant gives the printed value.
        HiddenOutcome: In blind mode.
    """
    published = {claim.id: claim for claim in load.claims()}
    constants = lab.efficiencies[name].fitted
    for _ in range(ROUNDS if len(constants) > 1 else 1):
        for constant, (claim,) in constants.items():
            lab = _with_root(lab, f"efficiency.{name}.{constant}", published[claim])
    return lab.efficiencies[name]


def _with_root(lab: BaseLab, constant: str, claim: Claim) -> BaseLab:
    """The lab with the value of a constant that gives the printed value of a claim."""
    _, owner, name = constant.split(".")
    low, *_, high = lab.efficiencies[owner].ranges[name]

    def error(value: float) -> float:
        return _excess(lab.varied(constant, value), claim)

    if (ends := (error(low), error(high)))[0] * ends[1] > 0:
        what = f"no {constant} from {low:g} to {high:g} gives the printed value"
        raise InvalidRequest(f"{what}: the error is {ends[0]:g} to {ends[1]:g}")
    return lab.varied(constant, float(brentq(error, low, high, xtol=1e-15, rtol=1e-4)))


def _excess(lab: BaseLab, claim: Claim) -> float:
    """Simulated minus printed value; of two values that the claim calls equal, their relative difference."""
    (row,) = (row for row in claim.answers if row.evidence in MODELLED)
    values = answer(claim, row, lab).values
    return values[0] / values[1] - 1 if claim.check is Check.EQUAL else values[0] - claim.value  # type: ignore[operator]
