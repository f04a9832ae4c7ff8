"""Law 8: a resumed run is bit-identical to an uninterrupted one, whatever the precision, home, rule and grid.

The interrupted run's engines are gone; those that resume have other weights, moments and counts until they load.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import Case, gpt_case, odd_case
from resuming import Kept, trained

from suite.comm import loopback
from suite.core.grid import Grid
from suite.engine.optimizer import SGD, Adam, AdamW
from suite.engine.scale import Dynamic
from suite.memory.layout import offloaded

GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(inter=2, data=2)]
MOMENTUM = SGD(0.1, momentum=0.9, weight_decay=0.01)
OFFLOADED = {"memory": partial(offloaded, bucket=100, sets=2), "bucket": 100, "chunk": 3}
SCALED = {"half": "float16", "scaler": Dynamic(start=2.0**24, patience=2)}
VARIANTS: dict[str, tuple[Case, dict[str, Any]]] = {
    "float32 AdamW dropout": (gpt_case("dropout", "float32", dropout=0.3), {"optimizer": AdamW(0.01)}),
    "float32 SGD statistics": (odd_case(torch.float32), {"optimizer": MOMENTUM}),
    "bfloat16 AdamW": (gpt_case("tied", "float32"), {"optimizer": AdamW(0.01), "half": "bfloat16", "checkpoints": 1}),
    "bfloat16 SGD statistics": (odd_case(torch.float32), {"optimizer": MOMENTUM, "half": "bfloat16"}),
    "float16 offloaded dropout": (
        gpt_case("dropout", "float32", dropout=0.3),
        {"optimizer": AdamW(0.01), "half": "float16", **OFFLOADED},
    ),
    "float32 offloaded": (
        gpt_case("tied", "float32"),
        {"optimizer": Adam(0.01), **OFFLOADED, "memory": partial(offloaded, bucket=100, half=None), "clip": 0.5},
    ),
}


def interrupted(case: Case, grid: Grid, folder: Path, *, after: int, batches: int, **more: Any) -> list[Kept]:
    """Trains, saves, trains on in engines that have loaded: what each rank is left with."""
    if after:
        loopback.run(grid.size, lambda world: trained(case, world, grid, range(after), save=folder, **more))
    return loopback.run(grid.size, lambda world: trained(case, world, grid, range(after, batches), load=folder, **more))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_resuming_changes_nothing(grid: Grid, variant: str, tmp_path: Path) -> None:
    case, more = VARIANTS[variant]
    whole = loopback.run(grid.size, lambda world: trained(case, world, grid, range(4), **more))
    again = interrupted(case, grid, tmp_path, after=2, batches=4, **more)
    for rank, (right, resumed) in enumerate(zip(whole, again, strict=True)):
        assert resumed.losses == right.losses[2:]
        right.compare(resumed, f"{variant} {grid} rank {rank}")


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_batches_that_overflow_before_and_after(grid: Grid, tmp_path: Path) -> None:
    """The loss scale falls, is saved in the middle of its patience, rises until a batch overflows again."""
    case = gpt_case("tied", "float32")
    run = partial(trained, case, grid=grid, optimizer=AdamW(0.01), half="float16")

    def scaler() -> Dynamic:
        return Dynamic(start=2.0**19, patience=2)

    whole = loopback.run(grid.size, lambda world: run(world=world, batches=range(9), scaler=scaler()))
    first = loopback.run(grid.size, lambda world: run(world=world, batches=range(5), scaler=scaler(), save=tmp_path))
    again = loopback.run(grid.size, lambda world: run(world=world, batches=range(5, 9), scaler=scaler(), load=tmp_path))
    assert 1 <= first[0].counts["skipped"] < whole[0].counts["skipped"]
    for right, resumed in zip(whole, again, strict=True):
        assert resumed.losses == right.losses[5:]
        right.compare(resumed, str(grid))
