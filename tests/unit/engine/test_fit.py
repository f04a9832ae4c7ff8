"""Hooks, early end and progress bar of `fit`; parts of batches per replica; prefetched batches."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest, MissingDependency, Unsupported
from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
from suite.engine.prefetch import Prefetched
from suite.schedule import OneFOneB
from tests.support.refusals import refused

GRIDS = [Grid(), Grid(inter=2)]
PARTS = Grid(inter=2, data=2)


@cache
def first_layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)]


def batches(count: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 4, generator=generator), torch.randn(8, 3, generator=generator)) for _ in range(count)]


def engine_of(**more: Any) -> Engine:
    layers = [layer.double() for layer in copy.deepcopy(first_layers())]
    return Engine(layers, **({"loss": mse_loss, "optimizer": SGD(0.1), "microbatch": 2} | more))


def doubles(data: list[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(inputs.double(), targets.double()) for inputs, targets in data]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_fit_returns_losses_and_calls_the_hook(grid: Grid) -> None:
    expected = list(engine_of().train(doubles(batches())))
    calls: list[tuple[float, float]] = []
    losses = engine_of(grid=grid).fit(doubles(batches()), on_batch=lambda *numbers: calls.append(numbers))
    assert losses == pytest.approx(expected, rel=1e-12)
    assert [loss for loss, _ in calls] == losses
    assert all(seconds > 0 for _, seconds in calls)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_hook_ends_training_and_engine_continues(grid: Grid) -> None:
    expected = list(engine_of().train(doubles(batches())))
    engine, seen = engine_of(grid=grid), list[float]()

    def third(loss: float, seconds: float) -> bool:
        seen.append(loss)
        return len(seen) == 3

    assert len(engine.fit(doubles(batches()), on_batch=third)) == 3
    assert engine.fit(doubles(batches())[3:]) == pytest.approx(expected[3:], rel=1e-12)


def test_stream_does_not_end_early() -> None:
    engine = engine_of(grid=Grid(inter=2), schedule=OneFOneB(), update_interval=1)
    with refused(Unsupported, "on_batch", subject="batches that stream", legal="returns None"):
        engine.fit(doubles(batches()), on_batch=lambda loss, seconds: True)


def test_progress_bar_shows_loss_and_length(capsys: pytest.CaptureFixture[str]) -> None:
    losses = engine_of().fit(doubles(batches()), progress=True)
    shown = capsys.readouterr().err
    assert "5/5" in shown
    assert f"loss {losses[-1]:.4g}" in shown


def test_progress_bar_needs_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(MissingDependency, match="tqdm"):
        engine_of().fit(doubles(batches()), progress=True)


# -- parts of batches ------------------------------------------------------------------------------------------------


def parts_of(data: list[Any], world: Any) -> list[Any]:
    replica = PARTS.place(world.rank).replica
    return [(inputs[4 * replica : 4 * replica + 4], targets[4 * replica : 4 * replica + 4]) for inputs, targets in data]


def test_parts_train_and_evaluate_as_whole_batches() -> None:
    data = doubles(batches())
    expected = list(engine_of().train(data))
    score = (trained := engine_of()).fit(data) and trained.evaluate(data[:2])

    def rank(world: Any) -> tuple[list[float], float]:
        engine = engine_of(grid=PARTS, shard=True, world=world)
        return list(engine.train(parts_of(data, world))), engine.evaluate(parts_of(data, world)[:2])

    for losses, ours in threads.run(4, rank):
        assert losses == pytest.approx(expected, rel=1e-12)
        assert ours == pytest.approx(score, rel=1e-12)


def test_distributed_sampler_gives_the_parts() -> None:
    inputs, targets = (torch.cat(tensors).double() for tensors in zip(*batches(), strict=True))
    dataset = TensorDataset(inputs, targets)

    def rank(world: Any) -> list[float]:
        engine = engine_of(grid=PARTS, shard=True, world=world)
        sampler = DistributedSampler(dataset, num_replicas=2, rank=engine.place.replica, shuffle=True, seed=3)
        return list(engine.train(DataLoader(dataset, batch_size=4, sampler=sampler)))

    losses = threads.run(4, rank)
    assert losses[0] == losses[3]
    assert len(losses[0]) == 5


def test_ranks_of_one_replica_read_the_same_part() -> None:
    data = doubles(batches())

    def rank(world: Any) -> None:
        mine = parts_of(data, world)
        if world.rank == 1:
            mine = [(inputs + 1, targets) for inputs, targets in mine]
        with pytest.raises(InvalidRequest) as refusal:
            list(engine_of(grid=PARTS, shard=True, world=world).train(mine))
        assert "batch 1 has other contents on rank" in str(refusal.value)

    threads.run(4, rank)


def test_parts_of_other_sizes_are_refused() -> None:
    data = doubles(batches())

    def rank(world: Any) -> None:
        mine = parts_of(data, world)
        if PARTS.place(world.rank).replica:
            mine = [(inputs[:2], targets[:2]) for inputs, targets in mine]
        with pytest.raises(InvalidRequest) as refusal:
            list(engine_of(grid=PARTS, shard=True, world=world).train(mine))
        assert "other sizes or types" in str(refusal.value)

    threads.run(4, rank)


def test_part_that_microbatches_do_not_divide_is_refused() -> None:
    with refused(InvalidRequest, subject="a part of 3 samples", rule="microbatch divides each part"):
        engine_of(shard=True).train_batch((torch.ones(3, 4).double(), torch.ones(3, 3).double()))


def test_threads_of_one_process_read_whole_batches() -> None:
    with refused(Unsupported, "shard", True):
        engine_of(grid=Grid(data=2), shard=True)


# -- prefetched batches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_prefetched_batches_train_alike(grid: Grid) -> None:
    data = doubles(batches())
    expected = list(engine_of().train(data))
    engine = engine_of(grid=grid, prefetch=True)
    assert list(engine.train(iter(data))) == pytest.approx(expected, rel=1e-12)
    assert engine.evaluate(data) > 0


def test_one_batch_is_read_ahead() -> None:
    read = []

    def each() -> Iterator[int]:
        for number in range(4):
            read.append(number)
            yield number

    iterator = iter(Prefetched(each(), torch.device("cpu")))
    assert (next(iterator), read) == (0, [0, 1])
    assert (list(iterator), read) == ([1, 2, 3], [0, 1, 2, 3])
    assert len(Prefetched([1, 2], torch.device("cpu"))) == 2
