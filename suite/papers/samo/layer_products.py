"""SAMO's Figure 1: time of a layer's dense and sparse products against its width, and its record.

One rank trains nothing: it computes the layers in turns, width by width, so that the drift of a shared machine affects
all alike. `timing` names the class that holds the implementations. Loads no torch: the parent of the rank reads this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TypedDict

from suite.config.locate import check_source, locate
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.figure import FigurePanel
from suite.core.protocols import ExecutorResult, Missing, Ready, Value, World
from suite.core.record import Metric, Source
from suite.papers.common.claims import load
from suite.runner.ranks.sampling import Sampling
from suite.stats.spread import relative_iqr

PRODUCTS = ("forward", "input gradient", "weight gradient")
DENSE, CSR, SPUTNIK, ALONE = "dense", "torch CSR", "Sputnik-style", "Sputnik-style kernels alone"
DTYPES = ("float64", "float32", "float16", "bfloat16")
Curves = Mapping[str, Sequence[float]]  # by name
TITLE = "A fully connected layer"  # with which the title of each panel begins

Sweep = dict[str, dict[str, list[list[float]]]]  # by implementation and product, for each width, seconds


class ProductFacts(TypedDict):
    """Report of the rank.

    Attributes:
        cuda: Whether kernels of a GPU were timed.
        notes: For readers of the times.
    """

    sweeps: Sequence[Sweep]
    cuda: bool
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Claims:
    """Ids of the claims that a study answers, and the setting that the paper prints for them."""

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
        widths: Of square weights, rising.
        batch: Rows of activations.
        sparsity: Share of the weights that is zero.
        rounds: Samples of a product at each width and turn.
        timing: Class path of the implementations and their clock.
    """

    claims: Claims
    timing: str
    widths: Sequence[int] = (128, 256, 512, 1024)
    batch: int = 576
    sparsity: float = 0.9
    dtype: str = "float32"
    rounds: int = 2

    def __post_init__(self) -> None:
        _check_widths(self.widths)
        for name, value in (("batch", self.batch), ("rounds", self.rounds)):
            if value < 1:
                raise InvalidRequest(f"{name}={value}", rule="a whole number, at least 1", legal=f"{name}=3")
        if self.dtype not in DTYPES:
            raise UnknownName("dtype", self.dtype, DTYPES)
        least = self.widths[0] ** 2
        if not 0 <= self.sparsity < 1 or not round((1 - self.sparsity) * least):
            rule = f"a share from 0 to below 1 that leaves something of {least} entries"
            raise InvalidRequest(f"sparsity={self.sparsity}", rule=rule, legal="sparsity=0.9")

    def probe(self, config: RunConfig) -> Ready | Missing:
        return Ready()

    def check(self, config: RunConfig) -> None:
        """Raises InvalidRequest for a run that cannot make the study."""
        ranks, executor = config.grid.build().size, config.executor.name or config.executor.kind
        if ranks != 1:
            raise InvalidRequest(f"{ranks} ranks under executor={executor}", rule="a layer is one rank's", legal="1")
        module, _, name = self.timing.rpartition(".")
        check_source(module, name)

    def bytes_per_rank(self, config: RunConfig) -> list[int]:
        """The widest layer's weights and activations, in single precision or in half the bytes."""
        width = max(self.widths)
        return [(4 if self.dtype == "float32" else 2) * width * (width + 2 * self.batch)]

    def on_rank(self, world: World, config: RunConfig) -> ProductSampler:
        """The one rank."""
        return ProductSampler(world, self, config.seed)

    def summarize(self, config: RunConfig, facts: ProductFacts, sweeps: Sequence[Sequence[Sweep]]) -> ExecutorResult:
        """The part of a record that comes from `sweeps` (one per round, of the one rank)."""
        return left(self, facts, [ranks[0] for ranks in sweeps])

    def printed(self) -> ExecutorResult:
        """The part of its record that shows the paper: the printed ratios. A record that was made in blind mode
        lacks them.
        """
        return ExecutorResult(Source.MEASURED, panels=[_ratio_panel(self, {})])


class ProductSampler(Sampling):
    """The one rank of a study of products. A batch is one sweep over all widths; its own content is ignored."""

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
        """One sweep."""
        self.swept.append(self.study.sweep(self.rounds))

    def samples(self) -> ProductFacts:
        """Samples of every sweep since the last call; their device, and notes for readers."""
        swept, self.swept = self.swept, []
        return {"sweeps": swept, "cuda": self.study.clock.cuda, "notes": list(self.study.told)}


def _check_widths(widths: Sequence[int]) -> None:
    if not widths or any(width < 1 for width in widths):
        raise InvalidRequest(
            f"widths={widths}", rule="whole numbers above 0, rising", legal="widths=[128,256,512,1024]"
        )
    if any(after <= before for before, after in pairwise(widths)):
        rising = str(sorted(set(widths))).replace(" ", "")
        raise InvalidRequest(f"widths={list(widths)}", rule="rising", legal=f"widths={rising}")


# -- what a record keeps ---------------------------------------------------------------------------------------------


def left(plan: Products, told: ProductFacts, turns: Sequence[Sweep]) -> ExecutorResult:
    """Raw samples by product, implementation and width; panels of medians, with the ratios to the dense products
    next to the printed ones; on CUDA answers to the claims of the paper."""
    widths = plan.widths
    names = [name for name in (DENSE, CSR, SPUTNIK, ALONE) if name in turns[0]]
    seen = {
        (product, name): [[s for turn in turns for s in turn[name][product][at]] for at in range(len(widths))]
        for name in names
        for product in PRODUCTS
    }
    # a round's three products one after the other
    whole = {
        name: [
            [math.fsum(s) for s in zip(*(seen[p, name][at] for p in PRODUCTS), strict=True)] for at, _ in _at(widths)
        ]
        for name in names
    }
    metrics = {
        f"{product}, {name}, {width}": Metric("s", "lower", tuple(samples[at]))
        for (product, name), samples in seen.items()
        for at, width in _at(widths)
    }
    times = {name: list(map(median, samples)) for name, samples in whole.items()}
    ratios = {name: [a / b for a, b in zip(times[name], times[DENSE], strict=True)] for name in names if name != DENSE}
    if told["cuda"]:
        metrics |= _answers(plan, widths, times, ratios)
    panels = [_panel(plan, "forward and both backward products", "s", times), _ratio_panel(plan, ratios)]
    for product in PRODUCTS:
        medians = {name: list(map(median, seen[product, name])) for name in names}
        panels.append(_panel(plan, product, "s", medians))
    spread = {name: list(map(relative_iqr, samples)) for name, samples in whole.items()}
    panels.append(_panel(plan, "middle half of the samples over the median", "percent", spread))
    return ExecutorResult(Source.MEASURED, metrics=metrics, panels=panels, notes=_notes(plan, told))


def _at(widths: Sequence[int]) -> list[tuple[int, int]]:
    return list(enumerate(widths))


def _panel(plan: Products, title: str, unit: str, ours: Curves, paper: Curves | None = None) -> FigurePanel:
    """A panel over the widths of the weight."""
    axis, widths = "width of the weight", [str(width) for width in plan.widths]
    return FigurePanel(f"{TITLE}: {title}", unit, widths, ours, paper or {}, axis=axis)


def _ratio_panel(plan: Products, ratios: Curves) -> FigurePanel:
    """Our ratios next to the two ends of the range that the paper prints for all widths; no ends in blind mode."""
    value = next((claim.value for claim in load() if claim.id == plan.claims.ratio), None)
    ends = zip(("least", "most"), value, strict=True) if isinstance(value, tuple) else ()
    printed = {f"Sputnik on V100, {name} printed": [end] * len(plan.widths) for name, end in ends}
    return _panel(plan, "time over that of the dense products", "", ratios, printed)


def _answers(
    plan: Products, widths: Sequence[int], times: Mapping[str, Sequence[float]], ratios: Mapping[str, Sequence[float]]
) -> dict[str, Metric]:
    """The claims that the config names, in the paper's setting alone: the dense product is cuBLAS on CUDA."""
    claims_of_plan = plan.claims
    if (*widths, plan.batch, plan.sparsity, plan.dtype) != (
        *claims_of_plan.widths,
        claims_of_plan.batch,
        claims_of_plan.sparsity,
        claims_of_plan.dtype,
    ):
        return {}
    pairs = tuple(seconds for pair in zip(times[DENSE], times[SPUTNIK], strict=True) for seconds in pair)
    note = "medians of the three products together, the sparse layer's transpositions among them"
    return {
        claims_of_plan.ratio: Metric("ratio", "", tuple(ratios[SPUTNIK]), note),
        claims_of_plan.order: Metric("second", "", pairs, note),
    }


def _notes(plan: Products, told: ProductFacts) -> tuple[str, ...]:
    """Notes for readers of the times."""
    ran = f"{100 * plan.sparsity:g} percent of the weights are zero; {plan.batch} rows, {plan.dtype}"
    if told["cuda"]:
        notes = "seconds of the device, between events"
    else:
        notes = "no claim is answered: the paper compares kernels of a GPU"
    checked = "every product was compared with a float64 one before it was timed"
    return (ran, notes, checked, *told["notes"])
