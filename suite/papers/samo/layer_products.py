"""SAMO's Figure 1: time of dense and sparse products of a layer over its width.

One rank times the implementations in interleaved rounds, width by width, so that drift of a shared machine affects all
of them equally. `timing` is the class path of the implementations. Needs no torch, because the parent process imports
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from suite.claims import load
from suite.claims.claim import Claim
from suite.config.locate import locate
from suite.config.panels import FigurePanel
from suite.config.protocols import Sampler
from suite.config.run import RunConfig
from suite.core.bounds import Count, check_bounds
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.protocols import ExecutorResult, Missing, Ready, Value, World
from suite.core.record import Metric, Source

PRODUCTS = ("forward", "input gradient", "weight gradient")
DENSE, CSR, SPUTNIK, ALONE = "dense", "torch CSR", "Sputnik-style", "Sputnik-style kernels alone"
DTYPES = ("float64", "float32", "float16", "bfloat16")
Curves = Mapping[str, Sequence[float]]  # by name
Times = NDArray[np.float64]
EMPTY: Curves = {}
RATIO, ORDER = "samo.fig1.dense_over_sputnik", "samo.fig1.order"  # answered on CUDA in the published setting
TITLE = "A fully connected layer"  # first words of each panel's title

Sweep = dict[str, dict[str, list[list[float]]]]  # seconds by implementation, product and width


class ProductFacts(TypedDict):
    """Report of the rank.

    Attributes:
        sweeps: Times of every sweep since the last report.
        cuda: Whether kernels of a GPU were timed.
        notes: Notes for readers of the times.
    """

    sweeps: Sequence[Sweep]
    cuda: bool
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Products:
    """Study of a layer's products over its width.

    Attributes:
        timing: Class path of the implementations and their clock.
        widths: Widths of square weights, rising.
        batch: Rows of activations.
        sparsity: Share of zero weights.
        dtype: Type of weights and activations.
        rounds: Samples of a product at each width and round.
    """

    timing: str
    widths: Sequence[int] = (128, 256, 512, 1024)
    batch: Count = 576
    sparsity: float = 0.9
    dtype: str = "float32"
    rounds: Count = 2

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1 or any(after <= before for before, after in pairwise(self.widths)):
            rising = sorted({width for width in self.widths if width > 0}) or [128, 256, 512, 1024]
            legal = f"widths={rising}".replace(" ", "")
            raise InvalidRequest(f"widths={list(self.widths)}", rule="whole numbers above 0, rising", legal=legal)
        check_bounds(self)
        if self.dtype not in DTYPES:
            raise UnknownName("dtype", self.dtype, DTYPES)
        least = self.widths[0] ** 2
        if not 0 <= self.sparsity < 1 or not round((1 - self.sparsity) * least):
            rule = f"a share of at least 0 and below 1 that leaves at least one of {least} entries"
            raise InvalidRequest(f"sparsity={self.sparsity}", rule=rule, legal="sparsity=0.9")

    def reads(self, config: RunConfig) -> Sequence[str]:
        return ("seed", "grid.data")

    def probe(self, config: RunConfig) -> Ready | Missing:
        return Ready()

    def check(self, config: RunConfig) -> None:
        """Raise InvalidRequest for a run that cannot make the study."""
        ranks, executor = config.grid.build().size, config.executor.name or config.executor.kind
        if ranks != 1:
            raise InvalidRequest(f"{ranks} ranks under executor={executor}", rule="one rank times a layer", legal="1")

    def bytes_per_rank(self, config: RunConfig) -> list[int]:
        """Bytes of the widest layer's weights and activations, with 4 bytes per number in float32 and else 2."""
        width = max(self.widths)
        return [(4 if self.dtype == "float32" else 2) * width * (width + 2 * self.batch)]

    def on_rank(self, world: World, config: RunConfig) -> ProductSampler:
        """Sampler of the only rank."""
        return ProductSampler(world, self, config.seed)

    def summarize(self, config: RunConfig, facts: ProductFacts, sweeps: Sequence[Sequence[Sweep]]) -> ExecutorResult:
        """The part of a record that comes from `sweeps` (one per round, of the one rank)."""
        return study_result(self, facts, [ranks[0] for ranks in sweeps])


class ProductSampler(Sampler):
    """Sampler of a study of products. A batch is one sweep over all widths; its content is ignored."""

    def __init__(self, world: World, plan: Products, seed: int) -> None:
        self.rounds, self.device = plan.rounds, str(world.device)
        self.study = locate(plan.timing)(
            widths=plan.widths,
            device=self.device,
            batch=plan.batch,
            sparsity=plan.sparsity,
            dtype=plan.dtype,
            seed=seed,
        )
        self.swept: list[Sweep] = []

    def train_batch(self, batch: Value | None = None) -> None:
        """Time one sweep."""
        self.swept.append(self.study.sweep(self.rounds))

    def samples(self) -> ProductFacts:
        """Times of every sweep since the last call, with device and notes."""
        swept, self.swept = self.swept, []
        return {"sweeps": swept, "cuda": not self.study.clock.on_host, "notes": list(self.study.notes)}


# -- record ---------------------------------------------------------------------------------------------


def study_result(plan: Products, facts: ProductFacts, rounds: Sequence[Sweep]) -> ExecutorResult:
    """Part of a record with the times of the rank.

    It holds the samples by product, implementation and width, and panels of medians with printed ratios next to ours.
    On CUDA it also answers the claims of the paper.
    """
    names = [name for name in (DENSE, CSR, SPUTNIK, ALONE) if name in rounds[0]]
    samples = {  # of each product, by implementation: (products, widths, samples)
        name: np.concatenate([[sweep[name][product] for product in PRODUCTS] for sweep in rounds], axis=-1)
        for name in names
    }
    metrics = {
        f"{product}, {name}, {width}": Metric("s", "lower", tuple(map(float, samples[name][i, j])))
        for i, product in enumerate(PRODUCTS)
        for name in names
        for j, width in enumerate(plan.widths)
    }
    times = {name: np.median(samples[name].sum(axis=0), axis=-1) for name in names}
    ratios = {name: times[name] / times[DENSE] for name in names if name != DENSE}
    for name, key in ((CSR, "csr_over_dense"), (SPUTNIK, "sputnik_over_dense")):
        if name in ratios:
            note = f"three products of width {plan.widths[-1]}"
            metrics[key] = Metric("ratio", "lower", (float(ratios[name][-1]),), note)
    claims = {claim.id: claim for claim in load.claims()}
    if facts["cuda"] and _is_published(plan, claims[RATIO]):  # then the dense product is cuBLAS
        note = "medians of the three products together, including transpositions of the sparse layer"
        pairs = np.stack([times[DENSE], times[SPUTNIK]], axis=1)
        metrics[RATIO] = Metric("ratio", "", tuple(map(float, ratios[SPUTNIK])), note)
        metrics[ORDER] = Metric("second", "", tuple(map(float, pairs.flat)), note)
    ends: Any = claims[RATIO].value if isinstance(claims[RATIO].value, tuple) else ()  # none in blind mode
    printed = {
        f"Sputnik on V100, {name} printed": [end] * len(plan.widths)  # the range holds for all widths
        for name, end in zip(("least", "most"), ends, strict=False)
    }
    panels = [
        _panel(plan, "forward and both backward products", "s", times),
        _panel(plan, "time over that of the dense products", "", ratios, printed),
        *(
            _panel(plan, product, "s", {name: np.median(samples[name][i], axis=-1) for name in names})
            for i, product in enumerate(PRODUCTS)
        ),
    ]
    return ExecutorResult(Source.MEASURED, metrics=metrics, panels=panels, notes=_notes(plan, facts))


def _panel(plan: Products, title: str, unit: str, ours: Mapping[str, Times], paper: Curves = EMPTY) -> FigurePanel:
    """Panel over the widths of the weight."""
    axis, widths = "width of the weight", [str(width) for width in plan.widths]
    curves = {name: list(map(float, values)) for name, values in ours.items()}
    quantity = "time" if unit == "s" else "ratio of times"
    return FigurePanel(
        title=f"{TITLE}: {title}", unit=unit, x=widths, ours=curves, paper=paper, axis=axis, quantity=quantity
    )


def _is_published(plan: Products, claim: Claim) -> bool:
    """Whether a study has the paper's setting, mixed precision with float16."""
    ours = [str(width) for width in plan.widths], plan.batch, plan.sparsity, plan.dtype
    return ours == ([*claim.terms], claim.setting["input_batch"], claim.setting["sparsity"], "float16")


def _notes(plan: Products, facts: ProductFacts) -> tuple[str, ...]:
    """Notes for readers of the times."""
    ran = f"{100 * plan.sparsity:g} percent of the weights are zero; {plan.batch} rows, {plan.dtype}"
    if facts["cuda"]:
        clock = "device seconds between CUDA events"
    else:
        clock = "no claim is answered: the paper compares kernels of a GPU"
    checked = "every product was compared with a float64 product before timing"
    return (ran, clock, checked, *facts["notes"])
