"""Decides what is said of the models that were tried and not taken: each refitted by the same rule, with its errors.

A simulator with a few constants can be steered into agreement; the guard is to show every structure that was tried.
Each variant changes one thing of the model that stands in conf, fits the same constants to the same cells, and is
measured by the same held-out values. What none of them sees is listed first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from suite.clusters import calibrate, samo
from suite.clusters.figure import NONE, Panel, figure, number
from suite.clusters.lab import Lab
from suite.core.claim import Claim
from suite.core.errors import Refused

Claims = Mapping[str, Claim]
HELD_OUT = (512, 1024, 2048)  # rows of Table II that no constant has seen
CELLS = "largest error of the 9 cells of Table II held out for AxoNN, AxoNN+SAMO and DeepSpeed-3D, percent"
SPUTNIK = "the same for Sputnik, percent"
SAVED = "largest error of the time saved at the largest counts, points"
PARTS = "largest error of Figure 8's parts, points"
PHASE = "error of AxoNN's 34.05 s, percent"


@dataclass(frozen=True, slots=True)
class Variant:
    """name: what is different. both, samo: constants of both stacks, or of SAMO's; systems: fields of modelled ones."""

    name: str
    both: Mapping[str, Any] = field(default_factory=dict)
    samo: Mapping[str, Any] = field(default_factory=dict)
    systems: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


VARIANTS = (
    Variant("as taken"),
    Variant("messages as quick as the link but delayed", both={"lane": 50e9}),
    Variant("messages at 1 GB/s at most", both={"lane": 1.0e9}),
    Variant("messages at 2 GB/s at most", both={"lane": 2.0e9}),
    Variant("messages at 3 GB/s at most", both={"lane": 3.0e9}),
    Variant("launch 0.3 ms", both={"launch": 3e-4}),
    Variant("no launch time", both={"launch": 0.0}),
    Variant("element-wise kernels by their bytes", both={"traffic": 0.8}),
    Variant("one adapter a node", samo={"adapters": 1}),
    Variant("phases apart", systems={name: {"apart": True} for name in ("axonn_no_memopt", "axonn_samo", "sputnik")}),
    Variant("ZeRO traffic 1.0", systems={"deepspeed_3d": {"reductions": 1.0}}),
    Variant("ZeRO traffic 2.0", systems={"deepspeed_3d": {"reductions": 2.0}}),
)


def refitted(lab: Lab, variant: Variant, published: Mapping[str, float]) -> Lab:
    """The lab of a variant, its constants fitted anew. Raises Refused where a constant has no root."""
    systems = {name: replace(system, **variant.systems.get(name, {})) for name, system in lab.systems.items()}
    axonn = replace(lab.stacks["axonn"], **variant.both)
    own = replace(lab.stacks["samo"], **{**variant.both, **dict(variant.samo)})
    changed = Lab(lab.machine, {"axonn": axonn, "samo": own}, systems, lab.shapes)
    fitted = Lab(lab.machine, {**changed.stacks, "axonn": calibrate.axonn(changed, published)}, systems, lab.shapes)
    return Lab(lab.machine, {**fitted.stacks, "samo": calibrate.samo(fitted, published)}, systems, lab.shapes)


def errors(lab: Lab, published: Mapping[str, float]) -> dict[str, float]:
    """The errors by which variants are told apart."""

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
    """The published numbers by claim; of a range its upper end (54.78 percent of peak is the 12B model's)."""
    found = {name: number(claims, name) for name in claims}
    for name, claim in claims.items():
        if isinstance(claim.value, tuple):
            found[name] = claim.value[1]
    return found


def _variants(lab: Lab, claims: Claims) -> Sequence[Panel]:
    published = anchors(claims)
    rows: dict[str, list[float]] = {name: [] for name in (CELLS, SPUTNIK, SAVED, PARTS, PHASE)}
    for variant in VARIANTS:
        try:
            found = errors(refitted(lab, variant, published), published)
        except Refused:  # no constant makes the printed value
            found = dict.fromkeys(rows, NONE)
        for name, values in rows.items():
            values.append(found[name])
    names = [variant.name for variant in VARIANTS]
    return [Panel(name, "", names, {"error": values}) for name, values in rows.items()]


variants: Callable[..., Any] = figure("samo_variants", "Table II, Figures 6 to 8; what was tried", _variants)
