"""Batches whose inputs or targets have names."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite import SGD, Engine, Grid
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest
from suite.engine.digests import content_of, sizes_of
from tests.support.refusals import refused

SAMPLES = 8


def layers() -> list[nn.Module]:
    torch.manual_seed(3)
    return [nn.Linear(4, 4).double(), nn.Linear(4, 3).double()]


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 3, (SAMPLES,), generator=generator)
    inputs, weights = (torch.rand(SAMPLES, size, generator=generator, dtype=torch.float64) for size in (4, 3))
    return inputs, labels, weights


def loss(outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs * weights, labels)


def score(outputs: torch.Tensor, *, weights: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (weights[:, 0].mean() + (outputs.argmax(-1) == labels).double().mean()).reshape(1)


def make_engine(model: Any = None, **more: Any) -> Engine:
    settings = {"loss": loss, "optimizer": SGD(0.1), "microbatch": 2, **more}
    return Engine(model or layers(), **settings)


@pytest.mark.parametrize("grid", [Grid(), Grid(inter=2), Grid(data=2)], ids=str)
def test_targets_by_name_train_like_targets_by_position(grid: Grid) -> None:
    inputs, labels, weights = data()
    modules = layers()  # threads share torch's generator, so no thread draws initial weights

    def rank(world: Any) -> list[Any]:
        by_name, by_position = (inputs, {"weights": weights, "labels": labels}), (inputs, (labels, weights))
        results = []
        for batch in (by_name, by_position):
            scores = {"scores": score, "score_names": ["score"]} if batch is by_name else {}
            engine = make_engine(copy.deepcopy(modules), grid=grid, world=world, **scores)
            losses = list(engine.train([batch] * 3))
            results.append((losses, engine.score([batch])["loss"]))
            if batch is by_name:
                assert engine.score([batch])["score"] > float(weights[:, 0].mean())
        return results

    for by_name, by_position in threads.run(grid.size, rank):
        assert by_name == by_position


def test_sum_as_loss_is_found_with_named_targets() -> None:
    inputs, labels, weights = data()
    engine = make_engine(loss=lambda outputs, labels, weights: loss(outputs, labels, weights) * len(labels))
    with refused(InvalidRequest, "loss", rule="the mean over the samples"):
        engine.train_batch((inputs, {"labels": labels, "weights": weights}))


def test_list_of_layers_refuses_named_inputs() -> None:
    inputs, labels, weights = data()
    with refused(InvalidRequest, subject="['x']", rule="a list of layers has no names", legal="a module as model="):
        make_engine().train_batch(({"x": inputs}, (labels, weights)))


@pytest.mark.parametrize("targets", [{"labels": np.zeros(SAMPLES)}, {"labels": torch.tensor(1)}, {1: torch.zeros(8)}])
def test_named_targets_that_are_no_tensors_are_refused(targets: Any) -> None:
    with refused(InvalidRequest, subject="targets of a batch", rule="a tuple or dict of such tensors"):
        make_engine().train_batch((data()[0], targets))


def test_named_targets_have_as_many_samples_as_inputs() -> None:
    inputs, labels, weights = data()
    with refused(InvalidRequest, subject="4 and 8 samples", rule="samples in the first dimension"):
        make_engine().train_batch((inputs, {"labels": labels[:4], "weights": weights}))


def test_digests_ignore_order_of_names_only() -> None:
    first, second = torch.arange(4), torch.arange(4, 8)
    batch = {"a": first, "b": second}
    assert content_of(batch, 1) == content_of({"b": second, "a": first}, 1)
    assert content_of(batch, 1) != content_of({"a": second, "b": first}, 1)
    assert sizes_of(batch) == sizes_of({"b": second, "a": first})
    assert sizes_of(batch) != sizes_of({"a": first, "c": second})
