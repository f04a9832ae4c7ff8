"""Everything that an engine does besides training, on the device that TORCH_DEVICE names, equals the same on a CPU.

On a CPU this repeats what other tests show, so a day draws few of these cells; on a GPU all of them run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from suite import SGD, AdamW, Engine, Grid, accelerator
from suite.comm.p2p.threads import Hub, LoopbackWorld
from suite.config.compose import resolve
from suite.engine.replay.replay import Replay
from suite.engine.system import EngineSystem
from suite.gnn.plan import Placement
from suite.gnn.train import Trainer
from suite.workload.gcn import GCN
from tests.cuda.test_cells import DEVICE
from tests.support.curves import losses_of
from tests.support.drawn import cells
from tests.support.graphs import EXCHANGES, problem, shards_of
from tests.support.small_engines import linears, mse_loss, normal_batches
from tests.support.sparse_products import ALLOWED, CASES, errors_of

BATCHES = normal_batches(6, 4, 8, 4, torch.float32)
CHECKED = dict[str, Callable[..., Any]]


def engine(device: str = DEVICE, kind: type = Engine, **more: Any) -> Any:
    layers = linears(8, 8, 8, 4, dtype=torch.float32)
    return kind(layers, loss=mse_loss, optimizer=AdamW(0.01), microbatch=1, device=device, check_loss=0, **more)


def losses(device: str, kind: type = Engine, **more: Any) -> list[float]:
    with_grid = engine(device, kind, **more)
    found = list(with_grid.train(BATCHES))
    with_grid.close()
    return found


def resumed(device: str, folder: Path) -> list[float]:
    """Losses after half of the batches, of an engine on `device` that loads what one on DEVICE has saved."""
    first, second = engine(), engine(device)
    list(first.train(BATCHES[:3]))
    second.load(first.save(folder))
    return list(second.train(BATCHES[3:]))


def answers(device: str) -> list[float]:
    """A validation loss, and outputs, which are on the host on every device."""
    trained = engine(device)
    list(trained.train(BATCHES))
    return [trained.evaluate(BATCHES[:2]), *trained.predict(BATCHES[0][0]).flatten().tolist()]


def graph_losses(device: str) -> list[float]:
    """Losses of a graph network whose only process has the whole graph."""
    (shard,) = shards_of(problem(), Placement(1), np.zeros(37, int))
    world, options = LoopbackWorld(Hub(1), 0, device=device), {"shape": GCN(3, 4), "optimizer": SGD(lr=0.5)}
    trainer = Trainer(shard, world, exchange=EXCHANGES["fused"], dtype="float64", **options)
    return [trainer.epoch() for _ in range(4)]


def decoded(device: str) -> list[int]:
    """Tokens that a small GNMT generates."""
    config = resolve(["system=axonn", "model=gnmt_narrow", "data=number_names", "grid.inter=1"])
    system = EngineSystem(world=LoopbackWorld(Hub(1), 0, device=device), config=config)
    batch = config.data.source.build().batch(0, size=4, seed=0, shape=config.network())
    (tokens,) = system.decode([batch]) or ()
    return np.asarray(tokens).flatten().tolist()


WAYS: CHECKED = {
    **{
        f"grid {inter}x{data}": lambda d, f, g=(inter, data): losses(d, grid=Grid(inter=g[0], data=g[1]))
        for inter, data in ((2, 1), (1, 2), (2, 2))
    },
    "replay 2x2": lambda device, folder: losses(device, Replay, grid=Grid(inter=2, data=2)),
    "checkpoints": lambda device, folder: losses(device, activation_checkpointing=1),
    "graph": lambda device, folder: graph_losses(device),
    "decode": lambda device, folder: decoded(device),
    "evaluate and predict": lambda device, folder: answers(device),
}


@pytest.mark.parametrize("way", cells(WAYS, n=1 if DEVICE == "cpu" else len(WAYS)))
def test_every_way_to_run_equals_a_cpu(way: str, tmp_path: Path) -> None:
    on_device, on_host = (WAYS[way](device, tmp_path) for device in (DEVICE, "cpu"))
    assert on_device == pytest.approx(on_host, rel=2e-5, abs=1e-6)


@pytest.mark.parametrize("device", dict.fromkeys((DEVICE, "cpu")))
def test_a_checkpoint_of_the_device_resumes_on_both(device: str, tmp_path: Path) -> None:
    assert resumed(device, tmp_path) == pytest.approx(losses("cpu")[3:], rel=2e-5)


def test_random_numbers_of_the_user_are_untouched() -> None:
    trained = engine()
    before = accelerator.random_states()
    list(trained.train(BATCHES[:2]))
    after = accelerator.random_states()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs the kernels of a GPU")
def test_kernels_of_a_gpu() -> None:
    """Pinned memory, sparse products, the fused step and compiled blocks."""
    assert accelerator.host_zeros(1000, torch.float32, DEVICE).is_pinned()
    small = ["system=axonn", "model=gpt_tiny", "grid.inter=1", "batch.size=4", "batch.microbatch=2", "precision=bf16"]
    plain = losses_of(EngineSystem, small, 3, DEVICE)
    for option in ("kernels.fused=true", "kernels.compile=block", "kernels.accumulate=in_place"):
        assert losses_of(EngineSystem, [*small, option], 3, DEVICE) == pytest.approx(plain, rel=2e-3), option
    for name in ("odd", "uneven rows"):
        for product, error in errors_of(CASES[name], torch.float32, device=DEVICE).items():
            assert error <= ALLOWED[torch.float32], (name, product)
