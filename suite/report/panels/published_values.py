"""Published values of a sweep panel, in the unit in which the panel shows ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from suite.claims.claim import Claim
from suite.core.experiment import PanelSpec

SECONDS = {"s": 1.0, "second": 1.0, "hour": 3600.0, "day": 86400.0}  # the units of records and of claims
_BYTES = {"B": 1.0, "byte": 1.0, "megabyte": 1e6, "gigabyte": 1e9}


@dataclass(frozen=True, slots=True)
class Printed:
    """A published value as the panel shows it, and its claim."""

    value: float
    claim: Claim


PrintedCurves = Mapping[str, Mapping[str, Printed]]  # by curve and point


def conversion_factor(unit: str, target_unit: str) -> float:
    """The factor from `unit` to `target_unit`; nan where they measure different quantities."""
    if unit == target_unit:
        return 1.0
    scales = (scale for scale in (SECONDS, _BYTES) if {unit, target_unit} <= scale.keys())
    return next((scale[unit] / scale[target_unit] for scale in scales), math.nan)


def published_values(
    spec: PanelSpec, sample_unit: str, panel_unit: str, claims: Mapping[str, Claim]
) -> tuple[PrintedCurves, list[str]]:
    """The published values of a panel, divided as ours are, and a sentence for each value that cannot be shown.

    Args:
        spec: The panel.
        sample_unit: Unit of the samples of our runs.
        panel_unit: Unit in which the panel shows them.
        claims: Claims by id.
    """
    curves: dict[str, dict[str, Printed]] = {}
    faults: list[str] = []
    for curve, ids in spec.paper.items():
        samples: dict[str, Printed] = {}
        normalized: dict[str, Printed] = {}  # printed in the unit of the panel, so not divided again
        for name, claim_id in ids.items():
            point, where = spec.label(name), f"paper, {curve} at {name}"
            claim = claims.get(claim_id)
            if claim is None:
                faults.append(f"{where}: there is no claim {claim_id!r}")
            elif not isinstance(claim.value, float):
                faults.append(f"{where}: claim {claim.id} is no number")
            elif point in samples or point in normalized:
                faults.append(f"{where}: the point has a claim already")
            elif math.isfinite(factor := conversion_factor(claim.unit, sample_unit)):
                samples[point] = Printed(claim.value * factor, claim)
            elif claim.unit == panel_unit:
                normalized[point] = Printed(claim.value, claim)
            else:
                faults.append(f"{where}: claim {claim.id} is in {claim.unit!r}, the panel in {sample_unit!r}")
        divisor, scale = 1.0, 1.0
        if spec.divisor:
            divisor = samples[spec.divisor].value if spec.divisor in samples else math.nan
        elif spec.share:
            complete = {spec.label(name) for name in spec.metrics} <= samples.keys()
            divisor, scale = sum(printed.value for printed in samples.values()) if complete else math.nan, 100.0
        if samples and not divisor > 0:
            faults.append(f"paper, {curve}: there is nothing to divide by")
            samples = {}
        normalized |= {
            point: replace(printed, value=scale * printed.value / divisor) for point, printed in samples.items()
        }
        if normalized:
            curves[curve] = normalized
    return curves, faults
