"""Batches whose inputs or targets have names."""

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
from tests.support.refusals import refused

GENERATOR = torch.Generator().manual_seed(2)
LABELS = torch.randint(0, 3, (8,), generator=GENERATOR)
INPUTS, WEIGHTS = (torch.rand(8, size, generator=GENERATOR, dtype=torch.float64) for size in (4, 3))


def loss(outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs * weights, labels)


def score(outputs: torch.Tensor, *, weights: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (weights[:, 0].mean() + (outputs.argmax(-1) == labels).double().mean()).reshape(1)


def make_engine(model: Any = None, **more: Any) -> Engine:
    settings = {"loss": loss, "optimizer": SGD(0.1), "microbatch": 2, **more}
    return Engine(model or [nn.Linear(4, 3).double()], **settings)


@pytest.mark.parametrize("grid", [Grid(), Grid(inter=2), Grid(data=2)], ids=str)
def test_targets_by_name_train_like_targets_by_position(grid: Grid) -> None:
    torch.manual_seed(3)
    modules = [nn.Linear(4, 4).double(), nn.Linear(4, 3).double()]

    def rank(world: Any) -> list[Any]:
        by_name, by_position = (INPUTS, {"weights": WEIGHTS, "labels": LABELS}), (INPUTS, (LABELS, WEIGHTS))
        named = make_engine(copy.deepcopy(modules), grid=grid, world=world, scores=score, score_names=["score"])
        positional = make_engine(copy.deepcopy(modules), grid=grid, world=world)
        losses = [list(engine.train([one] * 3)) for engine, one in ((named, by_name), (positional, by_position))]
        scores = named.score([by_name])
        assert scores["score"] > float(WEIGHTS[:, 0].mean())
        return [losses, [scores["loss"], positional.score([by_position])["loss"]]]

    for pairs in threads.run(grid.size, rank):
        assert all(by_name == by_position for by_name, by_position in pairs)


def test_wrong_names_and_named_targets_are_refused() -> None:
    inputs, labels, weights = INPUTS, LABELS, WEIGHTS
    summed = make_engine(loss=lambda outputs, labels, weights: loss(outputs, labels, weights) * len(labels))
    with refused(InvalidRequest, "loss", rule="the mean over the samples"):
        summed.train_batch((inputs, {"labels": labels, "weights": weights}))
    with refused(InvalidRequest, subject="['x']", legal="a module as model="):
        make_engine().train_batch(({"x": inputs}, (labels, weights)))
    with refused(InvalidRequest, subject="4 and 8 samples"):
        make_engine().train_batch((inputs, {"labels": labels[:4], "weights": weights}))
