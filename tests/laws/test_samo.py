"""SAMO equals masked dense training bit for bit, on every grid, in every precision and layout (SAMO III).

The reference has no indices: it multiplies by masks. The same update rules step compressed tensors.
"""

from __future__ import annotations

from functools import partial
from itertools import product
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
from tests.support.drawn import drawn
from tests.support.masked import MaskedTrainingCheck

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


def check(case: Case, grid: Grid, rule: Any, *, sparsity: float = 0.8, **more: Any) -> None:
    """Compare a grid of threads with masked training."""
    threads.run(grid.size, MaskedTrainingCheck(case, grid, rule, sparsity, **more).rank)


SHORT = {"batches": (4, 1, 3)}
ODD = {"bucket_numel": 11, "buckets_per_reduction": 2}
TIED, DROPOUT = (gpt_case(name, "float32", dropout=rate, layers=4) for name, rate in (("tied", 0.0), ("dropout", 0.3)))
SPARSITIES = product([None, "bfloat16"], ["weights", "all"], [0.0, 0.25, 0.5, 0.9], GRIDS[:4:3])
ROWS: list[tuple[Case, Grid, Any, dict[str, Any]]] = [
    *((TIED, grid, rule, {}) for rule in RULES for grid in GRIDS),
    (gpt_case("tied", "float64", layers=4), GRIDS[3], AdamW(0.01), SHORT),
    *(
        (TIED, grid, AdamW(0.01), {"half": half, **SHORT, **variant})
        for variant, half, grid in product(VARIANTS.values(), ["bfloat16", "float16"], GRIDS)
    ),
    *(
        (DROPOUT, grid, SGD(0.1, momentum=0.9), {**SHORT, **variant})
        for variant, grid in product(VARIANTS.values(), GRIDS[:4:3])
    ),
    *(
        (TIED, grid, AdamW(0.01), {"sparsity": rate, "what": what, "half": half, "bucket_numel": 301, **SHORT})
        for half, what, rate, grid in SPARSITIES  # with scope `all`, both ends of a tie have the same mask
    ),
    *(
        (DROPOUT, GRIDS[3], AdamW(0.01), {"half": "bfloat16", "schedule": schedule, **SHORT})
        for schedule in (GPipe(), OneFOneB())
    ),
    *(
        (odd_case(torch.float32), grid, SGD(0.1, momentum=0.9), {"half": half, "sparsity": 0.5, **ODD})
        for grid, half in product(GRIDS[:3], [None, "float16"])
    ),
]


@pytest.mark.parametrize("row", drawn(range(len(ROWS)), n=10))
def test_pruned_training_matches_masked_training(row: int) -> None:
    """Update rules, layouts, precisions, sparsities, scopes, schedules, odd shapes and dropout."""
    case, grid, rule, more = ROWS[row]
    check(case, grid, rule, **more)


@pytest.mark.parametrize("grid", drawn([GRIDS[0], GRIDS[3]], n=1), ids=str)
def test_clipping_uses_norm_of_kept_entries(grid: Grid) -> None:
    """The norm has fewer zeros to add, in another order, so equality holds to 1e-6 only."""
    check(gpt_case("tied", "float32", layers=4), grid, SGD(0.1, momentum=0.9), clip_norm=0.05, close=1e-6)
