"""Engine API: order of losses, no side effects, refusals, several engines, initial weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite.comm.p2p import threads
from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
from tests.support.cases import Case, gpt_case
from tests.support.drawn import drawn


def engine_of(case: Case, world: threads.LoopbackWorld, grid: Grid | None = None, **more: Any) -> Engine:
    more = {"optimizer": SGD(0.1), "microbatch": case.microbatch, "tied": case.ties, "seed": 4, **more}
    return Engine(case.layers, loss=case.loss, grid=grid or Grid(), world=world, **more)


def test_two_engines_in_one_world_alternate() -> None:
    case = gpt_case("tied", "float64")

    def rank(world: threads.LoopbackWorld) -> list[float]:
        grid = Grid(data=2, inter=2)
        engines = [engine_of(case, world, grid, optimizer=SGD(lr)) for lr in (0.1, 0.5, 0.1)]
        losses = [engine.train_batch(case.batch(n, 3, 2)) for n in range(2) for engine in engines]
        for engine in engines:
            engine.close()
        return losses

    for losses in threads.run(4, rank):
        assert losses[0] == losses[1] == losses[2]
        assert losses[3] == losses[5] != losses[4]


@pytest.mark.parametrize("grid", drawn([Grid(data=2), Grid(data=3), Grid(data=2, inter=2)], n=1), ids=str)
def test_replicas_start_from_weights_of_replica_0(grid: Grid) -> None:
    def make_layers(rank: int) -> list[nn.Module]:
        generator = torch.Generator().manual_seed(40 + rank)
        layers = [nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 5)]
        for layer in layers:
            for tensor in (*layer.parameters(), *layer.buffers()):
                if tensor.is_floating_point():
                    tensor.data = torch.randn(tensor.shape, generator=generator)
        return layers

    def rank(world: threads.LoopbackWorld) -> None:
        layers = make_layers(world.rank)
        own = copy.deepcopy(layers)
        engine = Engine(layers, loss=F.mse_loss, optimizer=SGD(0.1), microbatch=1, grid=grid, world=world)
        root = make_layers(grid.data_parallel_group(world.rank)[0])
        for number, layer in engine.state.numbered_layers():
            for name, tensor in layer.state_dict().items():
                assert torch.equal(tensor, root[number].state_dict()[name])
                if engine.place.replica and tensor.is_floating_point():
                    assert not torch.equal(tensor, own[number].state_dict()[name])
        engine.close()

    threads.run(grid.size, rank)
