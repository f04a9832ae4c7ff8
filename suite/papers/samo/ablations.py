"""Ablations of the cluster model: refitted variants and their errors.

A simulator with a few constants can be tuned into agreement, so every variant that was tried is reported. Each variant
changes one assumption of the model in conf, fits the same constants to the same cells, and is compared on the same
held-out values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from suite.core.blind import Hidden
from suite.core.claim import Claim
from suite.core.errors import HiddenOutcome, InvalidRequest
from suite.core.figure import FigurePanel
from suite.papers.common import calibrate
from suite.papers.common.cluster_runs import Lab
from suite.papers.common.panel import NONE, published_number
from suite.papers.samo import figures as samo
from suite.simulate.block_model import SystemModel
from suite.simulate.cost.efficiency import Efficiency

T = TypeVar("T")
Claims = Mapping[str, Claim]
HELD_OUT = (512, 1024, 2048)  # GPU counts of Table II to which no constant is fitted
CELLS = "largest error of the 9 cells of Table II held out for AxoNN, AxoNN+SAMO and DeepSpeed-3D, percent"
SPUTNIK = "the same for Sputnik, percent"
SAVED = "largest error of the time saved at the largest counts, points"
PARTS = "largest error of Figure 8's parts, points"
PHASE = "error of AxoNN's 34.05 s, percent"


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of the cluster model.

    Attributes:
        name: Description of the changed assumption.
        both: Change of both efficiencies.
        samo: Change of SAMO's efficiency.
        systems: Changes of modelled systems by name.
    """

    name: str
    both: Callable[[Efficiency], Efficiency] | None = None
    samo: Callable[[Efficiency], Efficiency] | None = None
    systems: Mapping[str, Callable[[SystemModel], SystemModel]] = field(default_factory=dict)


VARIANTS = (
    Variant("as taken"),
    Variant("messages as quick as the link but delayed", both=partial(replace, lane=50e9)),
    Variant("messages at 1 GB/s at most", both=partial(replace, lane=1.0e9)),
    Variant("messages at 2 GB/s at most", both=partial(replace, lane=2.0e9)),
    Variant("messages at 3 GB/s at most", both=partial(replace, lane=3.0e9)),
    Variant("launch 0.3 ms", both=partial(replace, launch=3e-4)),
    Variant("no launch time", both=partial(replace, launch=0.0)),
    Variant("element-wise kernels by their bytes", both=partial(replace, traffic=0.8)),
    Variant("one adapter a node", samo=partial(replace, adapters=1)),
    Variant(
        "phases apart",
        systems=dict.fromkeys(("axonn_no_memopt", "axonn_samo", "sputnik"), partial(replace, sync_before_update=True)),
    ),
    Variant("ZeRO traffic 1.0", systems={"deepspeed_3d": partial(replace, allreduces_per_update=1.0)}),
    Variant("ZeRO traffic 2.0", systems={"deepspeed_3d": partial(replace, allreduces_per_update=2.0)}),
)


def refitted(lab: Lab, variant: Variant, published: Mapping[str, float]) -> Lab:
    """Lab of a variant with refitted constants. Raises InvalidRequest if a constant has no root."""
    systems = {name: _changed(system, variant.systems.get(name)) for name, system in lab.systems.items()}
    axonn = _changed(lab.efficiencies["axonn"], variant.both)
    changed_efficiency = _changed(_changed(lab.efficiencies["samo"], variant.both), variant.samo)
    changed = Lab(lab.machine, {"axonn": axonn, "samo": changed_efficiency}, systems, lab.shapes)
    fitted = replace(changed, efficiencies={**changed.efficiencies, "axonn": calibrate.fit_axonn(changed, published)})
    return replace(fitted, efficiencies={**fitted.efficiencies, "samo": calibrate.fit_samo(fitted, published)})


def _changed(value: T, change: Callable[[T], T] | None) -> T:
    return change(value) if change else value


def errors(lab: Lab, published: Mapping[str, float]) -> dict[str, float]:
    """Errors of a variant by name."""

    def cell(system: str, gpus: int) -> float:
        printed = published[f"samo.table2.{system}.gpus_{gpus}"]
        return abs(100 * (samo.percent(lab, system, gpus) / printed - 1))

    def worst(systems: Sequence[str]) -> float:
        return max(cell(system, gpus) for system in systems for gpus in HELD_OUT)

    saved = max(
        abs(lab.saved(m, samo.counts(m)[-1], over=samo.DENSE) - published[f"samo.sec6b.max_speedup.{m}"])
        for m in samo.MODELS
    )
    parts = max(
        abs(value - published[name])
        for gpus in samo.PROFILED
        for part, value in samo.savings(lab, gpus).items()
        if part != "total" and (name := f"samo.fig8.{part}.gpus_{gpus}") in published
    )
    after = published["axonn.fig6.pipeline_time.after"]
    return {
        CELLS: worst(("axonn", "axonn_samo", "deepspeed_3d")),
        SPUTNIK: worst(("sputnik",)),
        SAVED: saved,
        PARTS: parts,
        PHASE: abs(100 * (lab.study("after").pipeline / after - 1)),
    }


def anchors(claims: Claims) -> dict[str, float]:
    """Published numbers by claim, and upper ends of published ranges (54.78 percent of peak belongs to the 12B model).

    Raises:
        HiddenOutcome: In blind mode, because constants are fitted to printed outcomes.
    """
    if hides := [claim.id for claim in claims.values() if isinstance(claim.value, Hidden)]:
        raise HiddenOutcome(hides[0])
    values = {name: published_number(claims, name) for name in claims}
    for name, claim in claims.items():
        if isinstance(claim.value, tuple):
            values[name] = claim.value[1]
    return values


def variants_panels(lab: Lab, claims: Claims) -> Sequence[FigurePanel]:
    published = anchors(claims)
    rows: dict[str, list[float]] = {name: [] for name in (CELLS, SPUTNIK, SAVED, PARTS, PHASE)}
    for variant in VARIANTS:
        try:
            variant_errors = errors(refitted(lab, variant, published), published)
        except InvalidRequest:  # no constant gives the printed value
            variant_errors = dict.fromkeys(rows, NONE)
        for name, values in rows.items():
            values.append(variant_errors[name])
    names = [variant.name for variant in VARIANTS]
    return [
        FigurePanel(name, "points", names, {"error": values}, axis="variant", quantity="error")
        for name, values in rows.items()
    ]
