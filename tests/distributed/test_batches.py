"""Batches on real ranks: drawn as in a plain PyTorch loop, and rejected on every rank if they differ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from suite import SGD, Engine, Grid
from suite.core.errors import InvalidRequest, RankError
from suite.core.protocols import World
from tests.support.drawn import drawn
from tests.support.ranks import on_ranks

EPOCHS = 2
ROWS = [(grid, name) for grid in (Grid(inter=2), Grid(data=2)) for name in ("mpi", "gloo", "ordered")]
ROWS += [(grid, name) for grid in (Grid(inter=4), Grid(data=2, inter=2)) for name in ("mpi", "gloo")]


def layers(dropout: float = 0.0) -> list[torch.nn.Module]:
    torch.manual_seed(5)
    return [
        torch.nn.Linear(5, 6),
        torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Dropout(dropout)),
        torch.nn.Linear(6, 6),
        torch.nn.Linear(6, 1),
    ]


def batches(seen: list[Any], epoch: DataLoader[Any]) -> Iterator[Any]:
    for x, y in epoch:
        seen.append((x + 0.1 * torch.randn(x.shape), y))
        yield seen[-1]


def loader() -> DataLoader[Any]:
    torch.manual_seed(1)
    x = torch.linspace(-1, 1, 24 * 5).reshape(24, 5)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)


def make_engine(world: World, grid: Grid, dropout: float = 0.0, **more: Any) -> Engine:
    return Engine(layers(dropout), loss=mse_loss, optimizer=SGD(0.1), microbatch=2, grid=grid, world=world, **more)


def plain() -> tuple[list[float], Any]:
    """Losses of plain PyTorch, and the sums of its batches with subsequent random numbers."""
    model, seen = torch.nn.Sequential(*layers()), list[Any]()
    epochs, optimizer, losses = loader(), torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(EPOCHS):
        for x, y in batches(seen, epochs):
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, ([x.sum().item() for x, _ in seen], torch.rand(3).tolist())


def draw(world: World, grid: Grid, dropout: float, every: int | None) -> tuple[list[float], Any]:
    engine, seen, epochs = make_engine(world, grid, dropout, update_interval=every), list[Any](), loader()
    losses = [loss for _ in range(EPOCHS) for loss in engine.train(batches(seen, epochs))]
    engine.close()
    return losses, ([x.sum().item() for x, _ in seen], torch.rand(3).tolist())


@pytest.mark.ranks
@pytest.mark.parametrize(("grid", "transport"), drawn(ROWS, n=1), ids=str)
def test_ranks_draw_like_plain_pytorch(grid: Grid, transport: str) -> None:
    losses, drawn_by_pytorch = plain()
    for dropout, every in ((0.0, None), (0.4, None), (0.4, 2)):
        (first, *others) = on_ranks(grid.size, draw, grid, dropout, every, transport=transport)
        assert first[1] == drawn_by_pytorch, (dropout, every)
        assert others == [first] * (grid.size - 1), "every rank draws and reports the same"
        assert dropout or first[0] == pytest.approx(losses, rel=1e-5)


def differ(world: World, grid: Grid, contents: bool, every: int | None) -> str:
    """The error of this rank where the last rank has other contents, or a shorter stream."""
    last = world.rank == world.size - 1
    samples = [(torch.full((8, 5), float(n)), torch.zeros(8, 1)) for n in range(6)]
    rank_batches = [(x + last, y) for x, y in samples] if contents else samples[: 3 if last else 5]
    engine = make_engine(world, grid, update_interval=every)
    with pytest.raises(InvalidRequest) as refusal:
        list(engine.train(rank_batches))
    with suppress(RankError):  # some values are never received
        engine.close()
    return str(refusal.value).partition(";")[0]


@pytest.mark.ranks
@pytest.mark.parametrize(("grid", "transport"), drawn(ROWS, n=1), ids=str)
def test_batches_that_differ_are_refused_on_every_rank(grid: Grid, transport: str) -> None:
    where = f"on rank {grid.size - 1} than on rank 0"
    for contents, every, message in (
        (True, None, f"batch 1 has other contents {where}"),
        (False, 2, f"a stream has other sizes or types {where}"),
        (True, 2, f"one of the batches 1 to 6 has other contents {where}"),
    ):
        found = on_ranks(grid.size, differ, grid, contents, every, transport=transport)
        assert found == [message] * grid.size
