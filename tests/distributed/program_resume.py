"""Program of each rank for test_resume.py: law 8 on two MPI ranks, in a given folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from suite.comm.world import init_world
from suite.core.grid import Grid
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.engine.optim.optimizer import SGD, AdamW
from tests.support.cases import gpt_case, odd_case
from tests.support.resuming import trained

torch.set_num_threads(1)


def scaled() -> dict[str, Any]:
    return {
        "optimizer": AdamW(0.01),
        "half": "float16",
        "loss_scaler": DynamicLossScaler(2.0**19, patience=2),
        "bucket_numel": 400,
    }


if __name__ == "__main__":
    world = init_world()
    folder = Path(sys.argv[1])
    tied, odd = gpt_case("tied", "float32", dropout=0.3, layers=1), odd_case(torch.float64)
    compared = 0
    for grid in (Grid(inter=2), Grid(data=2)):
        for case, options in ((tied, scaled), (odd, lambda: {"optimizer": SGD(0.1, momentum=0.9)})):
            at = folder / f"{case.name} {grid}"
            whole = trained(case, world, grid, range(4), **options())
            trained(case, world, grid, range(2), save=at, **options())
            again = trained(case, world, grid, range(2, 4), load=at, **options())
            assert again.losses == whole.losses[2:], f"{at}: {again.losses} {whole.losses}"
            whole.compare(again, f"{at} rank {world.rank}")
            compared += len(whole.tensors)
    if world.rank == 0:
        print(f"{type(world).__name__}: {compared} tensors compared", flush=True)
    world.close()
