"""Program of each rank for test_batches.py: batches drawn by a user's code, and batches that differ between ranks.

Argument: the transport; `ordered` has NCCL's channels and static order, on gloo. Prints one line of JSON per rank:
batches and losses by mode and in plain PyTorch, subsequent random numbers, and the error of every case in which the
last rank has different batches.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from suite import SGD, Engine, Grid
from suite.comm.p2p.message import EAGER_BYTES
from suite.core.errors import InvalidRequest, RankError
from suite.core.protocols import World
from suite.engine.process_setup import prepare
from tests.distributed.program_laws import world_of

EPOCHS = 2


def layers(dropout: float = 0.0) -> list[torch.nn.Module]:
    torch.manual_seed(5)
    return [
        torch.nn.Linear(5, 6),
        torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Dropout(dropout)),
        torch.nn.Linear(6, 6),
        torch.nn.Linear(6, 1),
    ]


def batches(drawn: list[Any], epoch: DataLoader[Any]) -> Iterator[Any]:
    for x, y in epoch:
        drawn.append((x + 0.1 * torch.randn(x.shape), y))
        yield drawn[-1]


def loader() -> DataLoader[Any]:
    torch.manual_seed(1)
    x = torch.linspace(-1, 1, 24 * 5).reshape(24, 5)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)


def grids(size: int) -> list[Grid]:
    return [Grid(inter=size), Grid(data=2, inter=size // 2)]


def make_engine(world: World, grid: Grid, dropout: float = 0.0, **more: Any) -> Engine:
    return Engine(layers(dropout), loss=mse_loss, optimizer=SGD(0.1), microbatch=2, grid=grid, world=world, **more)


def plain() -> dict[str, Any]:
    model, drawn = torch.nn.Sequential(*layers()), []
    epochs, optimizer, losses = loader(), torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(EPOCHS):
        for x, y in batches(drawn, epochs):
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"drawn": [x.sum().item() for x, _ in drawn], "losses": losses, "after": torch.rand(3).tolist()}


def drawn_in(world: World, grid: Grid, dropout: float, **more: Any) -> dict[str, Any]:
    engine, drawn, epochs = make_engine(world, grid, dropout, **more), [], loader()
    losses = [loss for _ in range(EPOCHS) for loss in engine.train(batches(drawn, epochs))]
    engine.close()
    return {"drawn": [x.sum().item() for x, _ in drawn], "losses": losses, "after": torch.rand(3).tolist()}


def errors(world: World, grid: Grid) -> dict[str, str]:
    messages, last = {}, world.rank == world.size - 1
    samples = [(torch.full((8, 5), float(n)), torch.zeros(8, 1)) for n in range(6)]
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "contents": ([(x + last, y) for x, y in samples], {}),
        "shorter stream": (samples[: 3 if last else 5], {"update_interval": 2}),
        "stream": ([(x + last, y) for x, y in samples], {"update_interval": 2}),
    }
    for name, (rank_batches, more) in cases.items():
        engine = make_engine(world, grid, **more)
        try:
            list(engine.train(rank_batches))
        except InvalidRequest as error:
            messages[name] = str(error).partition(";")[0]
        with suppress(RankError):  # some values are never received
            engine.close()
    return messages


def main(transport: str) -> None:
    prepare(1)
    world = world_of(transport, "any", EAGER_BYTES)
    report: dict[str, Any] = {"plain": plain()}
    for grid in grids(world.size):
        report[str(grid)] = {
            "flush": drawn_in(world, grid, 0.0),
            "dropout": drawn_in(world, grid, 0.4),
            "stream": drawn_in(world, grid, 0.4, update_interval=2),
            "errors": errors(world, grid),
        }
    world.close()
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
