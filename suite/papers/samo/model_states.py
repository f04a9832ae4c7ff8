"""Bytes of SAMO's model states over sparsity, alone and combined with AxoNN's offload.

Bytes come from the layouts that ranks allocate. The paper charges the dense baseline 20 bytes per parameter, although
AxoNN's own offload leaves 4 on the GPU (X2). This module compares SAMO with offload and combines both, which no paper
does. The plan search derives G_inter for each with the efficiency constants of the paper's GPTs; nothing is fitted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from suite.claims.answer import Question, range_of_setting
from suite.claims.claim import Claim
from suite.claims.cluster_runs import SAMO_COUNTS, Lab
from suite.claims.panel import NONE, published_number
from suite.core.errors import DoesNotFit
from suite.core.figure import FigurePanel
from suite.core.grid import Grid
from suite.memory.layout import Layout, compressed, offload, offloaded, resident
from suite.papers.model_states import ADAM, MOMENTUM, LayoutOf
from suite.papers.samo.figures import PaperPanel
from suite.simulate.block_model import SimulationPlan, SystemModel
from suite.simulate.search import MICROBATCHES, best, divisors, plans

HALF = "float16"
ENTRIES = 1_200_000  # network size for which every sparsity here keeps a whole number of entries
SHARES = tuple(step / 20 for step in range(20))  # 0 to 0.95
PRECISIONS = {  # moments, and type of the half-precision copies, by name of the curve
    "Adam, mixed precision": (ADAM, HALF),
    "Adam, one precision": (ADAM, None),
    "SGD with momentum, mixed precision": (MOMENTUM, HALF),
    "SGD with momentum, one precision": (MOMENTUM, None),
}
SHORT = ("Adam mixed", "Adam full", "SGD mixed", "SGD full")  # names of points
PUBLISHED = "Adam, mixed precision"
DENSE, OFFLOAD, SAMO, BOTH = "axonn_no_memopt", "axonn", "axonn_samo", "axonn_samo, offloaded"
NAMES = {"gpt3_xl": "XL", "gpt3_2_7b": "2.7B", "gpt3_6_7b": "6.7B", "gpt3_13b": "13B"}
Claims = Mapping[str, Claim]


def unpruned_entries(sparsity: float) -> int:
    return round((1 - sparsity) * ENTRIES)


def pruned(unpruned: int, moments: Sequence[str] = ADAM, half: str | None = HALF, **options: Any) -> Layout:
    """SAMO's layout of ENTRIES weights with `unpruned` unpruned ones. Without a bucket, SAMO expands all at once."""
    return compressed(ENTRIES, moments, half=half, kept=unpruned, of=ENTRIES, **options)


def saved(sparsity: float, moments: Sequence[str], half: str | None) -> float:
    """Percent of a dense network's bytes that SAMO saves at the peak of a step; negative if it needs more."""
    dense = resident(ENTRIES, moments, half=half).bytes()
    return 100 * (dense - pruned(unpruned_entries(sparsity), moments, half).bytes()) / dense


def break_even(ours: LayoutOf, theirs: LayoutOf) -> float:
    """Smallest sparsity at which `ours` needs no more device memory than `theirs`; nan if there is none.

    The bytes of `ours` grow with the unpruned entries and the bytes of `theirs` do not, so bisection over whole entries
    finds it.
    """
    fitting = bisect_right(
        range(ENTRIES + 1), False, key=lambda entries: ours(entries).bytes() > theirs(entries).bytes()
    )
    return 1 - (fitting - 1) / ENTRIES if fitting else NONE


# Figure 2


def least_sparsity(moments: Sequence[str], half: str | None) -> float:
    """Sparsity from which SAMO needs no more memory than dense states of the same optimizer and precision."""
    dense = resident(ENTRIES, moments, half=half)
    return break_even(lambda unpruned: pruned(unpruned, moments, half), lambda _: dense)


def fig2_panels(lab: Lab, claims: Claims) -> Sequence[FigurePanel]:
    even, ends = published_number(claims, "samo.fig2.break_even"), claims.get("samo.fig2.saving_range")
    printed = {f"{even:g}": 0.0}
    if ends and isinstance(ends.value, tuple):
        sparsities = range_of_setting(Question.of(ends), "sparsity")
        printed |= {f"{float(share):g}": end for share, end in zip(sparsities, ends.value, strict=True)}
    points = [f"{share:g}" for share in SHARES]
    ours = {name: [saved(share, *precision) for share in SHARES] for name, precision in PRECISIONS.items()}
    least = {name: least_sparsity(*precision) for name, precision in PRECISIONS.items()}
    return [
        PaperPanel(
            "memory of model states saved over sparsity",
            "percent",
            points,
            ours,
            {PUBLISHED: [printed.get(point, NONE) for point in points]},
            axis="sparsity, share of weights",
            quantity="memory saved",
            evidence="derived",
            figure="Figure 2",
        ),
        PaperPanel(
            "sparsity from which memory is saved",
            "share",
            SHORT,
            {SAMO: list(least.values())},
            {SAMO: [even if name == PUBLISHED else NONE for name in least]},
            axis="precision and optimizer",
            quantity="sparsity",
            evidence="derived",
            figure="Figure 2",
        ),
    ]


# Comparison with AxoNN's offload


def layouts(bucket: int) -> dict[str, LayoutOf]:
    """Layouts of ENTRIES prunable weights in mixed precision with Adam, by system.

    Each layout is a function of the unpruned entries. `bucket` is the number of entries in an offloaded bucket.
    """
    return {
        DENSE: lambda _: resident(ENTRIES, ADAM, half=HALF),
        OFFLOAD: lambda _: offloaded(ENTRIES, ADAM, half=HALF, bucket=bucket),
        SAMO: pruned,
        BOTH: lambda unpruned: pruned(unpruned, bucket=bucket, offloaded=True),
    }


def compressed_and_offloaded(lab: Lab) -> SystemModel:
    """AxoNN with its memory optimization on compressed states: the remaining optimizer states are in host memory.

    The host link determines the cost of a step. Writes of half-precision weights are left out, as for every
    offloaded system. They take about a thousandth of a batch.
    """
    axonn, samo = lab.system(OFFLOAD), lab.system(SAMO)

    def layout(bucket: int, **sizes: object) -> Layout:
        return offload(bucket=bucket)(samo.layout(**sizes))

    return replace(axonn, name=BOTH, layout=partial(layout, axonn.bucket_numel))


def candidates(lab: Lab, model: str, system: SystemModel) -> Iterator[SimulationPlan]:
    """All plans of `model` on the fewest GPUs of SAMO's Table I.

    If the number of stages does not divide the blocks, the stages are assumed to be equal, as in plans.yaml.
    """
    shape, (batch, (gpus, *_)) = lab.shapes[model], SAMO_COUNTS[model]
    yield from plans(shape, system, gpus, batch)
    for inter in divisors(gpus):
        for microbatch in MICROBATCHES:
            if inter <= shape.layers and shape.layers % inter and batch % (gpus // inter * microbatch) == 0:
                yield SimulationPlan(shape, system, Grid(data=gpus // inter, inter=inter), batch, microbatch, "share")


def best_stages(lab: Lab, model: str, system: SystemModel) -> tuple[float, float, float]:
    """Fewest stages that fit; stages and seconds per batch of the fastest plan. All are nan if no plan fits."""
    candidate_plans = list(candidates(lab, model, system))
    fewest = min((plan.grid.inter for plan in candidate_plans if plan.peak <= lab.machine.memory), default=NONE)
    try:
        best_plan = best(candidate_plans, lab.machine, lab.efficiency())
    except DoesNotFit:
        return NONE, NONE, NONE
    return fewest, best_plan.plan.grid.inter, best_plan.seconds


def beside_offload_panels(lab: Lab, claims: Claims) -> Sequence[FigurePanel]:
    bucket = ENTRIES // 300  # in proportion to 4 million (AxoNN VI-C) of 1.2 billion weights on a GPU
    shares, layouts_by_name = [f"{share:g}" for share in SHARES], layouts(bucket)

    def bytes_per_parameter(home: str) -> dict[str, list[float]]:
        return {
            name: [layout(unpruned_entries(share)).bytes(home=home) / ENTRIES for share in SHARES]
            for name, layout in layouts_by_name.items()
        }

    unit_buckets = layouts(1)
    unit_buckets["axonn_samo, expanded in buckets"] = lambda unpruned: pruned(unpruned, bucket=1)
    break_evens = {
        name: [break_even(layout, unit_buckets[other]) for other in (DENSE, OFFLOAD)]
        for name, layout in unit_buckets.items()
        if name not in (DENSE, OFFLOAD)
    }
    systems = {**{name: lab.system(name) for name in (DENSE, OFFLOAD, SAMO)}, BOTH: compressed_and_offloaded(lab)}
    plans_by_system = {name: [best_stages(lab, m, system) for m in SAMO_COUNTS] for name, system in systems.items()}
    models = [f"{NAMES[model]} on {gpus}" for model, (_, (gpus, *_)) in SAMO_COUNTS.items()]

    def planned(title: str, unit: str, which: int, quantity: str) -> FigurePanel:
        columns = {name: [values[which] for values in rows] for name, rows in plans_by_system.items()}
        return FigurePanel(title, unit, models, columns, axis="GPT-3 on V100", quantity=quantity)

    return [
        *(
            FigurePanel(
                f"Model states {where} per parameter over sparsity",
                "byte",
                shares,
                bytes_per_parameter(home),
                axis="sparsity, share of weights",
                quantity="model states per parameter",
                evidence="derived",
            )
            for home, where in (("device", "on the device"), ("host", "in host memory"))
        ),
        FigurePanel(
            "Sparsity from which a device holds no more than",
            "share",
            ["dense", "offload"],
            break_evens,
            axis="states, in buckets of one",
            quantity="sparsity",
            evidence="derived",
        ),
        planned("Fewest stages that fit 16 GB, at sparsity 0.9", "count", 0, "stages"),
        planned("Stages of the quickest plan that fits, at sparsity 0.9", "count", 1, "stages"),
        planned("Batch time of the quickest plan that fits, at sparsity 0.9", "s", 2, "batch time"),
    ]
