"""Decides how a layer's products are measured over its width, dense beside sparse, and what a record keeps of them.

The study of SAMO's Figure 1. One rank trains nothing: it computes the layers of ways.py in turns, width by width, so
that the drift of a shared machine falls on all alike. Loads no torch: the parent of the rank reads this, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles
from typing import Any

from baselines.sputnik import UNTRIED
from suite.bench.sampling import Sampling
from suite.claims import load
from suite.config.run import RunConfig
from suite.core.errors import Refused, UnknownName
from suite.core.protocols import Carried, Value, World
from suite.core.record import Metric, Source

PRODUCTS = ("forward", "input gradient", "weight gradient")
DENSE, CSR, SPUTNIK, ALONE = "dense", "torch CSR", "Sputnik-style", "Sputnik-style kernels alone"
DTYPES = ("float64", "float32", "float16", "bfloat16")

Sweep = dict[str, dict[str, list[list[float]]]]  # by way and product, for each width, seconds


@dataclass(frozen=True, slots=True)
class Claims:
    """Ids of the claims that a study answers, and the widths that they are of."""

    ratio: str
    order: str
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The keys of executor=products: widths of square weights, rows of activations, samples at each width and turn."""

    widths: tuple[int, ...]
    batch: int
    sparsity: float
    dtype: str
    rounds: int
    claims: Claims

    @classmethod
    def of(cls, config: RunConfig) -> Plan:
        """Raises Refused for a key with a wrong value."""
        keys = config.executor.more
        widths, sparsity, claims = _widths(keys["widths"]), keys["sparsity"], keys["claims"]
        for name in ("batch", "rounds"):
            value = keys[name]
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise Refused(f"executor.{name}={value}", rule="a whole number, at least 1", legal="3")
        if keys["dtype"] not in DTYPES:
            raise UnknownName("executor.dtype", str(keys["dtype"]), DTYPES)
        least = widths[0] ** 2
        share = isinstance(sparsity, int | float) and not isinstance(sparsity, bool) and 0 <= sparsity < 1
        if not share or not round((1 - sparsity) * least):
            rule = f"a share from 0 to below 1 that leaves something of {least} entries"
            raise Refused(f"executor.sparsity={sparsity}", rule=rule, legal="0.9")
        if not isinstance(claims, Mapping) or set(claims) != {"ratio", "order", "widths"}:
            raise Refused(f"executor.claims={claims}", rule="ids of a ratio and an order, and the widths they are of")
        if not all(isinstance(claims[name], str) for name in ("ratio", "order")):
            raise Refused(f"executor.claims={dict(claims)}", rule="the id of a claim is text")
        answered = Claims(claims["ratio"], claims["order"], _widths(claims["widths"], "claims.widths"))
        return cls(widths, keys["batch"], sparsity, keys["dtype"], keys["rounds"], answered)


class Products(Sampling):
    """The one rank of a study of products. A batch is one sweep over all widths; its own content is ignored."""

    @classmethod
    def check(cls, config: RunConfig) -> None:
        """Raises Refused for a study that cannot be made."""
        ranks = config.grid.build().size
        if ranks != 1:
            raise Refused(
                f"{ranks} ranks under executor={config.executor.name}", rule="a layer is one rank's", legal="1"
            )
        Plan.of(config)

    @classmethod
    def bytes_per_rank(cls, config: RunConfig) -> list[int]:
        """The widest layer's weights and activations, in single precision or in half the bytes."""
        plan = Plan.of(config)
        width = max(plan.widths)
        return [(4 if plan.dtype == "float32" else 2) * width * (width + 2 * plan.batch)]

    def __init__(self, world: World, config: RunConfig) -> None:
        import torch

        from baselines.sputnik.ways import Study

        plan = Plan.of(config)
        self.rounds, self.device = plan.rounds, str(world.device)
        self.study = Study(
            widths=plan.widths,
            device=self.device,
            batch=plan.batch,
            sparsity=plan.sparsity,
            dtype=getattr(torch, plan.dtype),
            seed=config.seed,
        )
        self.swept: list[Sweep] = []

    def train_batch(self, batch: Value | None = None) -> None:
        """One sweep."""
        self.swept.append(self.study.sweep(self.rounds))

    def samples(self) -> dict[str, Any]:
        """Of every sweep since this was last asked; where they were made, and what a reader must know."""
        swept, self.swept = self.swept, []
        return {"sweeps": swept, "cuda": self.study.clock.cuda, "notes": list(self.study.told)}

    @classmethod
    def left(cls, config: RunConfig, told: Mapping[str, Any], sweeps: Sequence[Sequence[Sweep]]) -> Carried:
        """What a record keeps of `sweeps` (one per turn, of the one rank)."""
        return left(Plan.of(config), told, [ranks[0] for ranks in sweeps])


def _widths(widths: Any, key: str = "widths") -> tuple[int, ...]:
    whole = isinstance(widths, Sequence) and not isinstance(widths, str) and widths
    if not whole or any(not isinstance(w, int) or isinstance(w, bool) or w < 1 for w in widths):
        raise Refused(f"executor.{key}={widths}", rule="whole numbers above 0, rising", legal="[128,256,512,1024]")
    if any(after <= before for before, after in pairwise(widths)):
        raise Refused(f"executor.{key}={list(widths)}", rule="rising", legal=str(sorted(set(widths))))
    return tuple(widths)


# -- what a record keeps ---------------------------------------------------------------------------------------------


def left(plan: Plan, told: Mapping[str, Any], turns: Sequence[Sweep]) -> Carried:
    """Raw samples by product, way and width; panels of medians, with the ratios to the dense products beside what the
    paper prints; on CUDA answers to its claims."""
    widths = plan.widths
    ways = [way for way in (DENSE, CSR, SPUTNIK, ALONE) if way in turns[0]]
    seen = {
        (product, way): [[s for turn in turns for s in turn[way][product][at]] for at in range(len(widths))]
        for way in ways
        for product in PRODUCTS
    }
    # a round's three products one after the other
    whole = {
        way: [[math.fsum(s) for s in zip(*(seen[p, way][at] for p in PRODUCTS), strict=True)] for at, _ in _at(widths)]
        for way in ways
    }
    metrics = {
        f"{product}, {way}, {width}": Metric("s", "lower", tuple(samples[at]))
        for (product, way), samples in seen.items()
        for at, width in _at(widths)
    }
    times = {way: list(map(median, samples)) for way, samples in whole.items()}
    ratios = {way: [a / b for a, b in zip(times[way], times[DENSE], strict=True)] for way in ways if way != DENSE}
    if told["cuda"]:
        metrics |= _answers(plan, widths, times, ratios)
    axis, title = f"width of the weight: {','.join(map(str, widths))}", "A fully connected layer"
    series = _panel(f"{title}: forward and both backward products|s|{axis}", times)
    series |= _panel(f"{title}: time over that of the dense products||{axis}", ratios)
    series |= _printed(f"{title}: time over that of the dense products||{axis}", plan.claims.ratio, len(widths))
    for product in PRODUCTS:
        medians = {way: list(map(median, seen[product, way])) for way in ways}
        series |= _panel(f"{title}: {product}|s|{axis}", medians)
    spread = {way: list(map(_middle_half, samples)) for way, samples in whole.items()}
    series |= _panel(f"{title}: middle half of the samples over the median|percent|{axis}", spread)
    return Carried(Source.MEASURED, metrics=metrics, series=series, notes=_notes(plan, told))


def _at(widths: Sequence[int]) -> list[tuple[int, int]]:
    return list(enumerate(widths))


def _panel(head: str, curves: Mapping[str, Sequence[float]], whose: str = "ours") -> dict[str, list[float]]:
    """As suite.report.panels reads it."""
    return {f"{head}|{whose}|{name}": list(values) for name, values in curves.items()}


def _printed(head: str, claim: str, points: int) -> dict[str, list[float]]:
    """The ends of the range that the paper prints for all widths together."""
    value = next((found.value for found in load() if found.id == claim), None)
    if not isinstance(value, tuple):
        return {}
    ends = {
        f"Sputnik on V100, {name} printed": [end] * points for name, end in zip(("least", "most"), value, strict=True)
    }
    return _panel(head, ends, "paper")


def _answers(
    plan: Plan, widths: Sequence[int], times: Mapping[str, Sequence[float]], ratios: Mapping[str, Any]
) -> dict[str, Metric]:
    """The claims that the config names, of the paper's widths alone: one of the dense product is cuBLAS's on CUDA."""
    asked = plan.claims
    if tuple(widths) != asked.widths:
        return {}
    pairs = tuple(seconds for pair in zip(times[DENSE], times[SPUTNIK], strict=True) for seconds in pair)
    note = "medians of the three products together, the sparse layer's transpositions among them"
    return {
        asked.ratio: Metric("ratio", "", tuple(ratios[SPUTNIK]), note),
        asked.order: Metric("second", "", pairs, note),
    }


def _middle_half(values: Sequence[float]) -> float:
    """In percent of the median: how far apart the quartiles are."""
    if len(values) < 2:
        return math.nan
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return 100 * (high - low) / middle


def _notes(plan: Plan, told: Mapping[str, Any]) -> tuple[str, ...]:
    """What a reader of the times must know."""
    ran = f"{100 * plan.sparsity:g} percent of the weights are zero; {plan.batch} rows, {plan.dtype}"
    if told["cuda"]:
        own = ["seconds of the device, between events", "Sputnik-style: Triton kernels after Gale et al. (2020)"]
    else:
        own = [
            "Sputnik-style on a CPU: torch's kernels in the layer that trains; torch CSR is its plain product",
            "no claim is answered: the paper compares kernels of a GPU",
            UNTRIED,
        ]
    checked = "every product was compared with a float64 one before it was timed"
    return (ran, *own, checked, *told["notes"])
