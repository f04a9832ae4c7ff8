"""Ablations of the cluster model: alternatives to its assumptions, and their errors.

AxoNN and SAMO run with one set of constants, of which one is fitted. Every alternative that was tried is reported:
other kernels, constants fitted to one of the papers, other messages and links. Each variant changes one assumption,
fits the share of sparse products again, and is compared on the same published values. A constant that a variant fits
itself makes the cell that it is fitted to exact, so that cell leaves the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import TypeVar

from suite.claims.blind import Hidden
from suite.claims.claim import Claim
from suite.claims.cluster_runs import AXONN_COUNTS, SUMMIT, Lab
from suite.claims.panel import NONE, published_number
from suite.core.errors import HiddenOutcome, InvalidRequest
from suite.core.figure import FigurePanel
from suite.papers.samo import figures as samo
from suite.papers.samo.calibrate import fit_constant, fit_summit, with_summit
from suite.simulate.block_model import SystemModel
from suite.simulate.cost.efficiency import Efficiency

T = TypeVar("T")
Claims = Mapping[str, Claim]
Published = Mapping[str, float]
CALIBRATED = ("sputnik", 256)  # cell of Table II to which every variant fits the share of sparse products
CELLS = "largest error of the other 15 cells of Table II, percent"
MEAN = "mean error of these cells, percent"
SAVED = "largest error of the time saved at the largest counts, points"
PARTS = "largest error of Figure 8's parts, points"
AFTER = "error of AxoNN's pipeline phase of 34.05 s, percent"
BEFORE = "error of AxoNN's pipeline phase of 46.08 s, percent"
REDUCED = "error of AxoNN's reduction of 4.32 s, percent"
WEAK = "how far AxoNN's four networks leave the printed 49.4 to 54.78 percent of peak, points"
ROWS = (CELLS, MEAN, SAVED, PARTS, AFTER, BEFORE, REDUCED, WEAK)


@dataclass(frozen=True, slots=True)
class FittedTo:
    """A constant that a variant fits: `value` of a lab equals the published number of `claim`."""

    constant: str
    low: float
    high: float
    claim: str
    value: Callable[[Lab], float]


def _cell(system: str, gpus: int) -> Callable[[Lab], float]:
    return lambda lab: samo.percent(lab, system, gpus)


PRODUCTS_OF_AXONN = FittedTo(
    "products", 0.3, 1.0, "axonn.abstract.percent_of_peak", lambda lab: max(_weak_percents(lab))
)
PRODUCTS_OF_SAMO = FittedTo("products", 0.3, 1.0, "samo.table2.axonn.gpus_256", _cell("axonn", 256))
COMPRESSION_OF_TABLE = FittedTo("compress", 0.0, 2e-10, "samo.table2.axonn_samo.gpus_256", _cell("axonn_samo", 256))
COMPRESSION_OF_FIGURE = FittedTo(
    "compress", 0.0, 2e-10, "samo.fig8.overhead.gpus_128", lambda lab: samo.savings(lab, 128)["overhead"]
)
_PIPELINE = "axonn.fig6.pipeline_time.before"
MESSAGES = FittedTo("message", 0.0, 0.02, _PIPELINE, lambda lab: lab.study("before").pipeline)
DELAY = FittedTo("delay", 0.0, 0.02, _PIPELINE, lambda lab: lab.study("before").pipeline)
REDUCTION = FittedTo(
    "network", 0.1, 1.0, "axonn.fig6.data_parallel_time.after", lambda lab: lab.study("after").reduction
)


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of the cluster model.

    Attributes:
        name: Description of the changed assumption.
        software: Change of the efficiency.
        systems: Changes of modelled systems by name.
        fits: A constant that is fitted to a published number.
    """

    name: str
    software: Callable[[Efficiency], Efficiency] | None = None
    systems: Mapping[str, Callable[[SystemModel], SystemModel]] = field(default_factory=dict)
    fits: FittedTo | None = None


VARIANTS = (
    Variant("as taken"),
    Variant("kernels of the generation fused", software=partial(replace, generation="fused")),
    Variant("kernels of the generation unfused", software=partial(replace, generation="unfused")),
    Variant("products by their flops and other kernels by their bytes", software=partial(replace, generation="")),
    Variant("products fitted to AxoNN's largest percent of peak", fits=PRODUCTS_OF_AXONN),
    Variant("products fitted to AxoNN's cell of Table II on 256 GPUs", fits=PRODUCTS_OF_SAMO),
    Variant("compression fitted to AxoNN+SAMO's cell of Table II on 256 GPUs", fits=COMPRESSION_OF_TABLE),
    Variant("compression fitted to Figure 8's 12 percent", fits=COMPRESSION_OF_FIGURE),
    Variant("time of each message fitted to AxoNN's 46.08 s", fits=MESSAGES),
    Variant(
        "messages at 1.5 GB/s with a delay fitted to AxoNN's 46.08 s", software=partial(replace, lane=1.5e9), fits=DELAY
    ),
    Variant("messages at 1.5 GB/s", software=partial(replace, lane=1.5e9)),
    Variant("one adapter a node", software=partial(replace, adapters=1)),
    Variant("network fitted to AxoNN's reduction of 4.32 s", fits=REDUCTION),
    Variant(
        "phases apart",
        systems=dict.fromkeys(("axonn_no_memopt", "axonn_samo", "sputnik"), partial(replace, sync_before_update=True)),
    ),
    Variant("ZeRO traffic 1.0", systems={"deepspeed_3d": partial(replace, allreduces_per_update=1.0)}),
    Variant("ZeRO traffic 2.0", systems={"deepspeed_3d": partial(replace, allreduces_per_update=2.0)}),
)


def refitted(lab: Lab, variant: Variant, published: Published) -> Lab:
    """Lab of a variant with refitted constants. Raises InvalidRequest if a constant has no root."""
    systems = {name: _changed(system, variant.systems.get(name)) for name, system in lab.systems.items()}
    software = _changed(lab.efficiencies[SUMMIT], variant.software)
    changed = Lab(lab.machine, {**lab.efficiencies, SUMMIT: software}, systems, lab.shapes)
    if fits := variant.fits:
        target = published[fits.claim]
        software = fit_constant(changed, fits.constant, fits.low, fits.high, lambda fit: fits.value(fit) - target)
        changed = with_summit(changed, software)
    return with_summit(changed, fit_summit(changed, published))


def _changed(value: T, change: Callable[[T], T] | None) -> T:
    return change(value) if change else value


def _weak_percents(lab: Lab) -> list[float]:
    """AxoNN's percent of peak for the networks of its weak scaling."""
    return [lab.weak(model, "axonn").percent_of_peak for model in AXONN_COUNTS]


def errors(lab: Lab, published: Published, fits: FittedTo | None = None) -> dict[str, float]:
    """Errors of a variant by name. The cell to which a variant fits a constant is left out."""

    def cell(system: str, gpus: int) -> float:
        printed = published[f"samo.table2.{system}.gpus_{gpus}"]
        return abs(100 * (samo.percent(lab, system, gpus) / printed - 1))

    def seconds(claim: str, value: float) -> float:
        return abs(100 * (value / published[claim] - 1))

    left_out = {f"samo.table2.{CALIBRATED[0]}.gpus_{CALIBRATED[1]}", fits.claim if fits else ""}
    cells = [
        cell(system, gpus)
        for system in samo.SYSTEMS
        for gpus in samo.counts("gpt3_13b")
        if f"samo.table2.{system}.gpus_{gpus}" not in left_out
    ]
    saved = max(
        abs(lab.saved(m, samo.counts(m)[-1], over=samo.DENSE) - published[f"samo.sec6b.max_speedup.{m}"])
        for m in samo.MODELS
    )
    parts = max(
        abs(value - published[name])
        for gpus in samo.PROFILED
        for part, value in samo.savings(lab, gpus).items()
        if part != "total" and (name := f"samo.fig8.{part}.gpus_{gpus}") in published and name not in left_out
    )
    low, high = published["axonn.abstract.percent_of_peak.low"], published["axonn.abstract.percent_of_peak"]
    weak = _weak_percents(lab)
    after = lab.study("after")
    return {
        CELLS: max(cells),
        MEAN: fmean(cells),
        SAVED: saved,
        PARTS: parts,
        AFTER: seconds("axonn.fig6.pipeline_time.after", after.pipeline),
        BEFORE: seconds("axonn.fig6.pipeline_time.before", lab.study("before").pipeline),
        REDUCED: seconds("axonn.fig6.data_parallel_time.after", after.reduction),
        WEAK: max(max(weak) - high, low - min(weak), 0.0),
    }


def anchors(claims: Claims) -> dict[str, float]:
    """Published numbers by claim, and both ends of published ranges.

    The upper end has the id of its claim, the lower end that of its claim and `.low`.

    Raises:
        HiddenOutcome: In blind mode, because constants are fitted to printed outcomes.
    """
    if hides := [claim.id for claim in claims.values() if isinstance(claim.value, Hidden)]:
        raise HiddenOutcome(hides[0])
    values = {name: published_number(claims, name) for name in claims}
    for name, claim in claims.items():
        if isinstance(claim.value, tuple):
            values[f"{name}.low"], values[name] = claim.value
    return values


def variants_panels(lab: Lab, claims: Claims) -> Sequence[FigurePanel]:
    published = anchors(claims)
    rows: dict[str, list[float]] = {name: [] for name in ROWS}
    for variant in VARIANTS:
        try:
            variant_errors = errors(refitted(lab, variant, published), published, variant.fits)
        except InvalidRequest:  # no constant gives the printed value
            variant_errors = dict.fromkeys(rows, NONE)
        for name, values in rows.items():
            values.append(variant_errors[name])
    names = [variant.name for variant in VARIANTS]
    return [
        FigurePanel(name, "points", names, {"error": values}, axis="variant", quantity="error")
        for name, values in rows.items()
    ]
