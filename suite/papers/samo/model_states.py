"""Bytes of SAMO's model states over sparsity: Figure 2, from the layouts that ranks allocate."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from suite.claims.answer import Question, range_of_setting
from suite.claims.claim import Claim
from suite.claims.cluster_runs import Lab
from suite.claims.panel import NONE, published_number
from suite.core.figure import FigurePanel
from suite.memory.layout import compressed, resident
from suite.papers.model_states import ADAM, MOMENTUM
from suite.papers.samo.figures import PaperPanel

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
Claims = Mapping[str, Claim]


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
