"""Evaluation of batches of any size: the mean over samples, as in plain PyTorch, on every grid."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite import SGD, Engine, Grid
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest
from suite.engine.replay import Replay
from suite.models.accuracy import top
from tests.support.refusals import refused

GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(data=3), Grid(data=2, inter=2)]
SIZES = [(12,), (5,), (1,), (12, 7), (24, 12, 1)]


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(6, 8, dtype=torch.float64), nn.BatchNorm1d(8, dtype=torch.float64), nn.Linear(8, 4).double()]


def batches(sizes: tuple[int, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, 6, generator=generator, dtype=torch.float64), torch.randint(0, 4, (n,), generator=generator))
        for n in sizes
    ]


def settings(**more: Any) -> dict[str, Any]:
    scores = {"scores": top, "score_names": ("top_1", "top_5")}
    return {"loss": F.cross_entropy, "optimizer": SGD(0.1), "microbatch": 2, **scores, **more}


def plainly(sizes: tuple[int, ...]) -> dict[str, float]:
    """Mean over the samples of all batches, by a plain loop."""
    model, total, samples = nn.Sequential(*layers()).eval(), torch.zeros(3, dtype=torch.float64), 0
    for x, y in batches(sizes):
        with torch.no_grad():
            outputs = model(x)
            total += len(y) * torch.cat([F.cross_entropy(outputs, y).reshape(1), top(outputs, y)])
        samples += len(y)
    return dict(zip(("loss", "top_1", "top_5"), (total / samples).tolist(), strict=True))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_evaluation_weights_batches_by_samples(grid: Grid, sizes: tuple[int, ...]) -> None:
    right, modules = plainly(sizes), layers()  # threads share torch's generator, so no thread draws initial weights

    def rank(world: Any) -> dict[str, float]:
        engine = Engine(copy.deepcopy(modules), grid=grid, world=world, **settings())
        measured = [engine.score(batches(sizes)) for _ in range(2)]
        assert measured[0] == measured[1]
        engine.train_batch(batches((12,))[0])
        assert engine.evaluate(batches(sizes)) != measured[0]["loss"]
        engine.close()
        return measured[0]

    for measured in threads.run(grid.size, rank):
        assert measured == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize("grid", GRIDS[1:], ids=str)
def test_replay_evaluates_like_ranks(grid: Grid) -> None:
    replay = Replay(layers(), grid=grid, **settings())
    assert dict(replay.score(batches((24, 5)))) == pytest.approx(plainly((24, 5)), rel=1e-12)


def test_empty_batch_is_rejected() -> None:
    engine = Engine(layers(), **settings())
    with refused(InvalidRequest, subject="a batch of 0 samples", rule="at least 1 sample"):
        engine.evaluate(batches((0,)))


def test_scores_need_one_name_each() -> None:
    for names in (("top_1",), ("a", "b", "c")):
        with refused(InvalidRequest, "scores", subject="score_names"):
            Engine(layers(), **settings(score_names=names)).evaluate(batches((4,)))


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("half", [None, "bfloat16"])
def test_loss_is_independent_of_score_dtype(kind: torch.dtype, half: str | None) -> None:
    modules = [layer.float() for layer in layers()]

    def hits(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.argmax(1) == targets).any().reshape(1).to(kind)

    settings = {"loss": F.cross_entropy, "optimizer": SGD(0.1), "microbatch": 3, "half": half}
    samples = [(x.float(), y) for x, y in batches((12, 7))]
    right = Engine(copy.deepcopy(modules), **settings).evaluate(samples)
    measured = Engine(modules, scores=hits, score_names=("hits",), **settings).score(samples)
    assert measured["loss"] == pytest.approx(right, rel=1e-7)


@pytest.mark.parametrize("scores", [lambda x, y: 1.0, lambda x, y: torch.eye(2)])
def test_scores_must_be_flat_tensor(scores: Any) -> None:
    with refused(InvalidRequest, "scores", "<lambda>", legal="torch.stack([...]) of the numbers"):
        Engine(layers(), **settings(scores=scores)).score(batches((4,)))


def test_large_integer_score_is_exact() -> None:
    engine = Engine(layers(), **settings(scores=lambda x, y: torch.tensor([2**24 + 1]), score_names=("count",)))
    assert engine.score(batches((2,)))["count"] == 2**24 + 1
