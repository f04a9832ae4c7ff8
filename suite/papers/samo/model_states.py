"""Bytes of SAMO's model states over sparsity: Figure 2, from the layouts that ranks allocate."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from suite.claims.answer import Question, range_of_setting
from suite.claims.claim import Evidence
from suite.claims.cluster_runs import Lab
from suite.claims.panel import Claims, Panel, figure, published
from suite.memory.layout import compressed, resident
from suite.papers.model_states import ADAM, MOMENTUM

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
SAMO = "axonn_samo"


def pruned_bytes(unpruned: int, moments: Sequence[str], half: str | None) -> int:
    """Bytes of ENTRIES weights, of which `unpruned` are left, at the peak of a step that expands all at once."""
    return compressed(ENTRIES, moments, half=half, kept=unpruned, of=ENTRIES).bytes()


def saved(sparsity: float, moments: Sequence[str], half: str | None) -> float:
    """Percent of a dense network's bytes that SAMO saves; negative if it needs more."""
    dense = resident(ENTRIES, moments, half=half).bytes()
    return 100 * (dense - pruned_bytes(round((1 - sparsity) * ENTRIES), moments, half)) / dense


def least_sparsity(moments: Sequence[str], half: str | None) -> float:
    """Sparsity from which SAMO needs no more memory than dense states of the same optimizer and precision."""
    dense = resident(ENTRIES, moments, half=half).bytes()
    fitting = bisect_right(range(ENTRIES + 1), dense, key=lambda kept: pruned_bytes(kept, moments, half)) - 1
    return 1 - fitting / ENTRIES


@figure("samo_fig2", "Figure 2")
def fig2(lab: Lab, claims: Claims) -> Iterator[Panel]:
    even, ends = "samo.fig2.break_even", "samo.fig2.saving_range"
    sparsities = range_of_setting(Question.of(claims[ends]), "sparsity")
    printed: dict[str, str | float] = {f"{published(claims, even):g}": 0.0}
    printed |= {f"{float(share):g}": f"{ends} {end}" for share, end in zip(sparsities, ("low", "high"), strict=True)}
    points = [f"{share:g}" for share in SHARES]
    yield Panel(
        "memory of model states saved over sparsity",
        "percent",
        points,
        {name: [saved(share, *precision) for share in SHARES] for name, precision in PRECISIONS.items()},
        {PUBLISHED: [printed.get(point, "") for point in points]},
        axis="sparsity, share of weights",
        quantity="memory saved",
        evidence=Evidence.DERIVED,
    )
    yield Panel(
        "sparsity from which memory is saved",
        "share",
        SHORT,
        {SAMO: [least_sparsity(*precision) for precision in PRECISIONS.values()]},
        {SAMO: [even if name == PUBLISHED else "" for name in PRECISIONS]},
        axis="precision and optimizer",
        quantity="sparsity",
        evidence=Evidence.DERIVED,
    )
