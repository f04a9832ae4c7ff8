"""SAMO equals masked dense training bit for bit, on every grid, in every precision and layout (SAMO III).

The reference has no indices: it multiplies by masks. The same update rules step compressed tensors.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from baselines.gpipe import GPipe
from suite.comm.p2p import threads
from suite.core.grid import Grid
from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.memory.layout import compressed
from suite.schedule import OneFOneB
from tests.support.cases import Case, gpt_case, odd_case
from tests.support.masked import MaskedTrainingCheck
from tests.support.pairwise import cells

GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(inter=2, data=2)]
RULES = [SGD(0.1, momentum=0.9, weight_decay=0.01), Adam(0.01, weight_decay=0.1), AdamW(0.01)]
OFFLOADED = partial(compressed, offloaded=True, bucket=100)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "overlap": {"bucket_numel": 333, "buckets_per_reduction": 2},
    "offload": {"memory": partial(compressed, offloaded=True, bucket=77), "bucket_numel": 77},
    "two sets": {
        "memory": partial(compressed, offloaded=True, bucket=77, sets=2),
        "bucket_numel": 77,
        "buckets_per_reduction": 1,
    },
    "activation_checkpointing": {"activation_checkpointing": 1},
    "everything": {
        "memory": partial(compressed, offloaded=True, bucket=100),
        "bucket_numel": 100,
        "buckets_per_reduction": 3,
        "activation_checkpointing": 1,
    },
}


def label(value: Any) -> str:
    return str(value) if isinstance(value, Grid) else type(value).__name__


def check(case: Case, grid: Grid, rule: Any, *, sparsity: float = 0.8, **more: Any) -> None:
    """Compare a grid of threads with masked training."""
    threads.run(grid.size, MaskedTrainingCheck(case, grid, rule, sparsity, **more).rank)


@pytest.mark.parametrize(("rule", "grid"), cells(RULES, GRIDS), ids=label)
def test_pruned_training_matches_masked_in_one_precision(grid: Grid, rule: Any) -> None:
    check(gpt_case("tied", "float32", layers=4), grid, rule)


def test_pruned_training_matches_masked_in_double_precision() -> None:
    check(gpt_case("tied", "float64", layers=4), GRIDS[3], AdamW(0.01), batches=(4, 1, 3))


@pytest.mark.parametrize(
    ("variant", "half", "grid"),
    cells(VARIANTS, ["bfloat16", "float16"], GRIDS, always=[("everything", "bfloat16", grid) for grid in GRIDS]),
    ids=str,
)
def test_pruned_training_matches_masked_in_mixed_precision(variant: str, half: str, grid: Grid) -> None:
    check(gpt_case("tied", "float32", layers=4), grid, AdamW(0.01), half=half, batches=(4, 1, 3), **VARIANTS[variant])


@pytest.mark.parametrize(("variant", "grid"), cells(VARIANTS, [GRIDS[3], GRIDS[0]]), ids=str)
def test_pruned_variants_match_masked_in_one_precision(variant: str, grid: Grid) -> None:
    case = gpt_case("dropout", "float32", dropout=0.3, layers=4)
    check(case, grid, SGD(0.1, momentum=0.9), batches=(4, 1, 3), **VARIANTS[variant])


@pytest.mark.parametrize(
    ("half", "what", "sparsity"),
    cells([None, "bfloat16"], ["weights", "all"], [0.0, 0.25, 0.5, 0.9], strength=2),
    ids=str,
)
def test_every_sparsity_matches_masked_training(sparsity: float, what: str, half: str | None) -> None:
    """With scope `all`, both ends of a tie have the same mask."""
    for grid in (Grid(), Grid(inter=2, data=2)):
        case = gpt_case("tied", "float32", layers=4)
        check(case, grid, AdamW(0.01), sparsity=sparsity, what=what, half=half, batches=(4, 1, 3), bucket_numel=301)


@pytest.mark.parametrize("schedule", [GPipe(), OneFOneB()], ids=repr)
def test_every_schedule_matches_reference(schedule: Any) -> None:
    case = gpt_case("dropout", "float32", dropout=0.3, layers=4)
    check(case, Grid(inter=2, data=2), AdamW(0.01), half="bfloat16", batches=(4, 1, 3), schedule=schedule)


@pytest.mark.parametrize("grid", GRIDS[:3], ids=str)
@pytest.mark.parametrize("half", [None, "float16"], ids=str)
def test_odd_shapes_match_reference(grid: Grid, half: str | None) -> None:
    check(
        odd_case(torch.float32),
        grid,
        SGD(0.1, momentum=0.9),
        half=half,
        sparsity=0.5,
        bucket_numel=11,
        buckets_per_reduction=2,
    )


@pytest.mark.parametrize("grid", [GRIDS[0], GRIDS[3]], ids=str)
def test_clipping_uses_norm_of_kept_entries(grid: Grid) -> None:
    """The norm has fewer zeros to add, in another order, so equality holds to 1e-6 only."""
    check(gpt_case("tied", "float32", layers=4), grid, SGD(0.1, momentum=0.9), clip_norm=0.05, close=1e-6)
