"""SAMO's Figure 1: time of dense and sparse products of a layer over its width.

One rank times the implementations in interleaved rounds, width by width, so that drift of a shared machine affects all
of them equally. `timing` is the class path of the implementations. Needs no torch, because the parent process imports
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TypedDict

from suite.claims import load
from suite.config.locate import locate
from suite.config.protocols import Sampler
from suite.config.run import RunConfig
from suite.core.bounds import Count, check_bounds
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.figure import FigurePanel
from suite.core.protocols import ExecutorResult, Missing, Ready, Value, World
from suite.core.record import Metric, Source

PRODUCTS = ("forward", "input gradient", "weight gradient")
DENSE, CSR, SPUTNIK, ALONE = "dense", "torch CSR", "Sputnik-style", "Sputnik-style kernels alone"
DTYPES = ("float64", "float32", "float16", "bfloat16")
Curves = Mapping[str, Sequence[float]]  # by name
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
class Claims:
    """Claims that a study answers, with their published setting.

    Attributes:
        ratio: Id of the claim on time ratios.
        order: Id of the claim on the order of the implementations.
        widths: Widths of square weights, rising.
        batch: Rows of activations.
        sparsity: Share of zero weights.
        dtype: Type of weights and activations.
    """

    ratio: str
    order: str
    widths: Sequence[int]
    batch: int
    sparsity: float
    dtype: str

    def __post_init__(self) -> None:
        _check_widths(self.widths)


@dataclass(frozen=True, slots=True)
class Products:
    """Study of a layer's products over its width.

    Attributes:
        claims: Claims that the study answers.
        timing: Class path of the implementations and their clock.
        widths: Widths of square weights, rising.
        batch: Rows of activations.
        sparsity: Share of zero weights.
        dtype: Type of weights and activations.
        rounds: Samples of a product at each width and round.
    """

    claims: Claims
    timing: str
    widths: Sequence[int] = (128, 256, 512, 1024)
    batch: Count = 576
    sparsity: float = 0.9
    dtype: str = "float32"
    rounds: Count = 2

    def __post_init__(self) -> None:
        _check_widths(self.widths)
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


def _check_widths(widths: Sequence[int]) -> None:
    if not widths or any(width < 1 for width in widths):
        raise InvalidRequest(
            f"widths={widths}", rule="whole numbers above 0, rising", legal="widths=[128,256,512,1024]"
        )
    if any(after <= before for before, after in pairwise(widths)):
        rising = str(sorted(set(widths))).replace(" ", "")
        raise InvalidRequest(f"widths={list(widths)}", rule="rising", legal=f"widths={rising}")


# -- record ---------------------------------------------------------------------------------------------


def study_result(plan: Products, facts: ProductFacts, rounds: Sequence[Sweep]) -> ExecutorResult:
    """Part of a record with the times of the rank.

    It holds the samples by product, implementation and width, and panels of medians with printed ratios next to ours.
    On CUDA it also answers the claims of the paper.
    """
    widths = plan.widths
    names = [name for name in (DENSE, CSR, SPUTNIK, ALONE) if name in rounds[0]]
    samples_of_product = {
        (product, name): [[s for sweep in rounds for s in sweep[name][product][i]] for i in range(len(widths))]
        for name in names
        for product in PRODUCTS
    }
    # the three products of a round together
    samples_of_round = {
        name: [
            [math.fsum(s) for s in zip(*(samples_of_product[p, name][i] for p in PRODUCTS), strict=True)]
            for i in range(len(widths))
        ]
        for name in names
    }
    metrics = {
        f"{product}, {name}, {width}": Metric("s", "lower", tuple(samples[i]))
        for (product, name), samples in samples_of_product.items()
        for i, width in enumerate(widths)
    }
    times = {name: list(map(median, samples)) for name, samples in samples_of_round.items()}
    ratios = {name: [a / b for a, b in zip(times[name], times[DENSE], strict=True)] for name in names if name != DENSE}
    for name, key in ((CSR, "csr_over_dense"), (SPUTNIK, "sputnik_over_dense")):
        if name in ratios:
            metrics[key] = Metric("ratio", "lower", (ratios[name][-1],), f"three products of width {widths[-1]}")
    if facts["cuda"]:
        metrics |= _answers(plan, widths, times, ratios)
    panels = [_panel(plan, "forward and both backward products", "s", times), _ratio_panel(plan, ratios)]
    for product in PRODUCTS:
        medians = {name: list(map(median, samples_of_product[product, name])) for name in names}
        panels.append(_panel(plan, product, "s", medians))
    return ExecutorResult(Source.MEASURED, metrics=metrics, panels=panels, notes=_notes(plan, facts))


def _panel(plan: Products, title: str, unit: str, ours: Curves, paper: Curves | None = None) -> FigurePanel:
    """Panel over the widths of the weight."""
    axis, widths = "width of the weight", [str(width) for width in plan.widths]
    quantity = "time" if unit == "s" else "ratio of times"
    return FigurePanel(f"{TITLE}: {title}", unit, widths, ours, paper or {}, axis=axis, quantity=quantity)


def _ratio_panel(plan: Products, ratios: Curves) -> FigurePanel:
    """Our ratios next to both ends of the printed range, which holds for all widths; no ends in blind mode."""
    value = next((claim.value for claim in load.claims() if claim.id == plan.claims.ratio), None)
    ends = zip(("least", "most"), value, strict=True) if isinstance(value, tuple) else ()
    printed = {f"Sputnik on V100, {name} printed": [end] * len(plan.widths) for name, end in ends}
    return _panel(plan, "time over that of the dense products", "", ratios, printed)


def _answers(
    plan: Products, widths: Sequence[int], times: Mapping[str, Sequence[float]], ratios: Mapping[str, Sequence[float]]
) -> dict[str, Metric]:
    """Answers to the claims in the published setting, in which the dense product is cuBLAS on CUDA; else empty."""
    claims = plan.claims
    if (*widths, plan.batch, plan.sparsity, plan.dtype) != (
        *claims.widths,
        claims.batch,
        claims.sparsity,
        claims.dtype,
    ):
        return {}
    pairs = tuple(seconds for pair in zip(times[DENSE], times[SPUTNIK], strict=True) for seconds in pair)
    note = "medians of the three products together, including transpositions of the sparse layer"
    return {
        claims.ratio: Metric("ratio", "", tuple(ratios[SPUTNIK]), note),
        claims.order: Metric("second", "", pairs, note),
    }


def _notes(plan: Products, facts: ProductFacts) -> tuple[str, ...]:
    """Notes for readers of the times."""
    ran = f"{100 * plan.sparsity:g} percent of the weights are zero; {plan.batch} rows, {plan.dtype}"
    if facts["cuda"]:
        clock = "device seconds between CUDA events"
    else:
        clock = "no claim is answered: the paper compares kernels of a GPU"
    checked = "every product was compared with a float64 product before timing"
    return (ran, clock, checked, *facts["notes"])
