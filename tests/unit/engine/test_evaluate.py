"""Evaluation of batches of any size: the mean over samples, as in plain PyTorch, on every grid."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite import SGD, Engine, Grid, Replay
from suite.comm.p2p import threads
from suite.models.shared import top
from tests.support.drawn import cells

GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(data=3), Grid(data=2, inter=2)]
SIZES = [(12,), (5,), (1,), (12, 7), (24, 12, 1)]


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(6, 8, dtype=torch.float64), nn.BatchNorm1d(8, dtype=torch.float64), nn.Linear(8, 4).double()]


def batches(*sizes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, 6, generator=generator, dtype=torch.float64), torch.randint(0, 4, (n,), generator=generator))
        for n in sizes
    ]


def settings(**more: Any) -> dict[str, Any]:
    scores = {"scores": top, "score_names": ("top_1", "top_5")}
    return {"loss": F.cross_entropy, "optimizer": SGD(0.1), "microbatch": 2, **scores, **more}


def plainly(*sizes: int) -> dict[str, float]:
    """Mean over the samples of all batches, by a plain loop."""
    x, y = (torch.cat(parts) for parts in zip(*batches(*sizes), strict=True))
    outputs = nn.Sequential(*layers()).eval()(x).detach()
    top_1, top_5 = top(outputs, y).tolist()
    return {"loss": F.cross_entropy(outputs, y).item(), "top_1": top_1, "top_5": top_5}


@pytest.mark.parametrize(("grid", "sizes"), cells(GRIDS, SIZES, n=2, always=[(Grid(data=2, inter=2), (12, 7))]))
def test_evaluation_weights_batches_by_samples(grid: Grid, sizes: tuple[int, ...]) -> None:
    right, modules = plainly(*sizes), layers()  # threads share torch's generator, so no thread draws initial weights

    def rank(world: Any) -> dict[str, float]:
        with Engine(copy.deepcopy(modules), grid=grid, world=world, **settings()) as engine:
            measured = [engine.score(batches(*sizes)) for _ in range(2)]
            assert measured[0] == measured[1]
            engine.train_batch(batches(12)[0])
            assert engine.evaluate(batches(*sizes)) != measured[0]["loss"]
            return measured[0]

    replay = Replay(layers(), grid=grid, **settings())
    for measured in (*threads.run(grid.size, rank), dict(replay.score(batches(*sizes)))):
        assert measured == pytest.approx(right, rel=1e-12)
