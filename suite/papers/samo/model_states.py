"""Bytes of SAMO's model states against sparsity, alone and combined with AxoNN's offload.

Bytes come from the layouts that ranks allocate. Its paper charges the dense baseline 20 bytes per parameter, though
AxoNN's own offload had left 4 on the GPU (X2): here the two stand side by side, and together, which no paper has.
The suite's own planner derives G_inter for each, with the efficiency of the paper's GPTs; nothing is fitted to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from suite.core.claim import Claim
from suite.core.errors import DoesNotFit
from suite.core.figure import FigurePanel
from suite.core.grid import Grid
from suite.memory import Layout, compressed, offload, offloaded, resident
from suite.papers.common.answer import Question, range_of_setting
from suite.papers.common.cluster_runs import SAMO_COUNTS, Lab
from suite.papers.common.model_states import ADAM, MOMENTUM, LayoutOf
from suite.papers.common.panel import NONE, published_number
from suite.simulate.block_model import Modelled, SimulationPlan
from suite.simulate.search import MICROBATCHES, best, divisors, plans

HALF = "float16"
ENTRIES = 1_200_000  # of which every sparsity here keeps a whole number
SHARES = tuple(step / 20 for step in range(20))  # 0 to 0.95
PRECISIONS = {  # by what a curve is named: moments, and the type of the half copies
    "Adam, mixed precision": (ADAM, HALF),
    "Adam, one precision": (ADAM, None),
    "SGD with momentum, mixed precision": (MOMENTUM, HALF),
    "SGD with momentum, one precision": (MOMENTUM, None),
}
SHORT = ("Adam mixed", "Adam full", "SGD mixed", "SGD full")  # as points
PUBLISHED = "Adam, mixed precision"
DENSE, OFFLOAD, SAMO, BOTH = "axonn_no_memopt", "axonn", "axonn_samo", "axonn_samo, offloaded"
NAMES = {"gpt3_xl": "XL", "gpt3_2_7b": "2.7B", "gpt3_6_7b": "6.7B", "gpt3_13b": "13B"}
Claims = Mapping[str, Claim]


def kept(sparsity: float) -> int:
    return round((1 - sparsity) * ENTRIES)


def pruned(left: int, moments: Sequence[str] = ADAM, half: str | None = HALF, **more: Any) -> Layout:
    """ENTRIES weights of which `left` stay. SAMO expands all of them at once, as its paper counts, but for a bucket."""
    return compressed(ENTRIES, moments, half=half, kept=left, of=ENTRIES, **more)


def saved(sparsity: float, moments: Sequence[str], half: str | None) -> float:
    """Percent of a dense network's bytes that SAMO does without at the peak of a step; below 0 where it needs more."""
    dense = resident(ENTRIES, moments, half=half).bytes()
    return 100 * (dense - pruned(kept(sparsity), moments, half).bytes()) / dense


def break_even(ours: LayoutOf, theirs: LayoutOf) -> float:
    """The least sparsity at which `ours` needs no more bytes of a device than `theirs`; found in whole entries, as
    bytes of ours grow with what is kept and those of theirs do not. nan where it never does."""
    low, high = -1, ENTRIES  # ours fits at the lower, at the upper it need not
    if ours(high).bytes() <= theirs(high).bytes():
        return 0.0
    while high - low > 1:
        middle = (low + high) // 2
        if ours(middle).bytes() <= theirs(middle).bytes():
            low = middle
        else:
            high = middle
    return 1 - low / ENTRIES if low >= 0 else NONE


# Figure 2


def least_sparsity(moments: Sequence[str], half: str | None) -> float:
    """From which SAMO needs no more memory than the dense network of the same optimizer and precision."""
    dense = resident(ENTRIES, moments, half=half)
    return break_even(lambda left: pruned(left, moments, half), lambda left: dense)


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
        FigurePanel(
            "memory of model states saved over sparsity",
            "percent",
            points,
            ours,
            {PUBLISHED: [printed.get(point, NONE) for point in points]},
            axis="sparsity, share of weights",
            quantity="memory saved",
            evidence="derived",
            figure="Figure 2",
            publication="SAMO",
        ),
        FigurePanel(
            "sparsity from which memory is saved",
            "share",
            SHORT,
            {SAMO: list(least.values())},
            {SAMO: [even if name == PUBLISHED else NONE for name in least]},
            axis="precision and optimizer",
            quantity="sparsity",
            evidence="derived",
            figure="Figure 2",
            publication="SAMO",
        ),
    ]


# Compared with AxoNN's offload


def layouts(bucket: int) -> dict[str, LayoutOf]:
    """What ranks hold of ENTRIES weights, all of them prunable, in mixed precision with Adam, by what is done about it.

    bucket: entries of an offloaded update at a time
    """
    return {
        DENSE: lambda left: resident(ENTRIES, ADAM, half=HALF),
        OFFLOAD: lambda left: offloaded(ENTRIES, ADAM, half=HALF, bucket=bucket),
        SAMO: pruned,
        BOTH: lambda left: pruned(left, bucket=bucket, offloaded=True),
    }


def compressed_and_offloaded(lab: Lab) -> Modelled:
    """AxoNN with its memory optimisation on compressed states: the remaining optimizer states are in host memory.

    The cost of its step is that of the host's link; writing the expanded weights, 2 bytes each, is about a thousandth
    of a batch and is left out, as is every write of half precision where states are offloaded
    """
    moved, pruned = lab.system(OFFLOAD), lab.system(SAMO)

    def layout(bucket: int, **told: object) -> Layout:
        return offload("master", "moments", bucket=bucket)(pruned.layout(**told))

    return replace(moved, name=BOTH, layout=partial(layout, moved.bucket_numel))


def candidates(lab: Lab, model: str, system: Modelled) -> Iterator[SimulationPlan]:
    """Every plan of `model` on the fewest GPUs of SAMO's Table I. Where stages do not divide the blocks they are taken
    to be equal, as the published plans are (plans.yaml)."""
    shape, (batch, (gpus, *_)) = lab.shapes[model], SAMO_COUNTS[model]
    yield from plans(shape, system, gpus, batch)
    for inter in divisors(gpus):
        for microbatch in MICROBATCHES:
            if inter <= shape.layers and shape.layers % inter and batch % (gpus // inter * microbatch) == 0:
                yield SimulationPlan(shape, system, Grid(data=gpus // inter, inter=inter), batch, microbatch, "share")


def chosen(lab: Lab, model: str, system: Modelled) -> tuple[float, float, float]:
    """The fewest stages that fit a device; stages and seconds per batch of the quickest plan. nan where none fits."""
    tried = list(candidates(lab, model, system))
    fewest = min((plan.grid.inter for plan in tried if plan.peak <= lab.machine.memory), default=NONE)
    try:
        best_plan = best(tried, lab.machine, lab.stack("samo"))
    except DoesNotFit:
        return NONE, NONE, NONE
    return fewest, best_plan.plan.grid.inter, best_plan.seconds


def beside_offload_panels(lab: Lab, claims: Claims) -> Sequence[FigurePanel]:
    bucket = ENTRIES // 300  # as 4 million (AxoNN VI-C) of 1.2 billion weights on a GPU
    shares, layouts_by_name = [f"{share:g}" for share in SHARES], layouts(bucket)

    def held(home: str) -> dict[str, list[float]]:
        return {
            name: [of(kept(share)).bytes(home=home) / ENTRIES for share in SHARES]
            for name, of in layouts_by_name.items()
        }

    small = layouts(1)
    small["axonn_samo, expanded in buckets"] = lambda left: pruned(left, bucket=1)
    ways = {
        name: [break_even(small[name], small[other]) for other in (DENSE, OFFLOAD)]
        for name in small
        if name not in (DENSE, OFFLOAD)
    }
    systems = {**{name: lab.system(name) for name in (DENSE, OFFLOAD, SAMO)}, BOTH: compressed_and_offloaded(lab)}
    plans_by_system = {name: [chosen(lab, model, system) for model in SAMO_COUNTS] for name, system in systems.items()}
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
                held(home),
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
            ways,
            axis="states, in buckets of one",
            quantity="sparsity",
            evidence="derived",
        ),
        planned("Fewest stages that fit 16 GB, at sparsity 0.9", "count", 0, "stages"),
        planned("Stages of the quickest plan that fits, at sparsity 0.9", "count", 1, "stages"),
        planned("Batch time of the quickest plan that fits, at sparsity 0.9", "s", 2, "batch time"),
    ]
