"""Law 5 for networks of images: plain PyTorch and the engine have equal losses, on one rank and with replicas.

The statistics of a batch norm cover a microbatch of one replica. On one rank a network with batch norms agrees up to
rounding. On two replicas, a network without batch norms agrees, and one with them agrees until the first update.
"""

from __future__ import annotations

from typing import Any

import pytest

from baselines.pytorch import PyTorch
from suite.comm.p2p.threads import Hub, LoopbackWorld, run
from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.engine.system import EngineSystem

SMALL = ["data=digits", "optimizer=sgd", "optimizer.lr=0.02", "batch.size=16", "batch.microbatch=4"]


def curve(kind: Any, world: Any, config: RunConfig, batches: int = 4) -> list[float]:
    """Training losses of some batches, followed by validation losses."""
    data, shape = config.data.source.build(), config.model.shape.build()
    system = kind(world=world, config=config)
    size = config.batch.size
    losses = [system.train_batch(data.batch(n, size=size, seed=0, shape=shape)) for n in range(batches)]
    held_out = next(iter(data.validation_batches(size=size, shape=shape)))
    return [*losses, system.evaluate([held_out])]


def reference(overrides: list[str]) -> list[float]:
    config = resolve([*SMALL, *overrides, "system=pytorch"])
    return curve(PyTorch, LoopbackWorld(Hub(1), 0), config)


@pytest.mark.parametrize(
    ("model", "dtype", "within"),
    [
        ("vgg_narrow", "float32", 1e-5),
        ("wideresnet_narrow", "float64", 1e-9),
        ("wideresnet_narrow", "float32", 1e-5),
    ],
)
def test_one_rank_trains_as_plain_pytorch_does(model: str, dtype: str, within: float) -> None:
    overrides = [f"model={model}", f"model.dtype={dtype}"]
    config = resolve([*SMALL, *overrides, "system=axonn_no_memopt"])
    ours = curve(EngineSystem, LoopbackWorld(Hub(1), 0), config)
    theirs = reference(overrides)
    trained = slice(None) if dtype == "float64" else slice(-1)  # running statistics magnify rounding in an evaluation
    assert ours[trained] == pytest.approx(theirs[trained], rel=within)
    assert len(set(theirs)) == 5, "weights move"


@pytest.mark.parametrize(
    "overrides", [["grid.data=2"], ["grid.inter=2"], ["grid.inter=2", "activation_checkpointing=1"]]
)
def test_replicas_and_stages_train_a_network_without_norms_alike(overrides: list[str]) -> None:
    config = resolve([*SMALL, "model=vgg_narrow", "model.shape.convolutions=[1,1,1,1,1]", *overrides])
    curves = run(2, lambda world: curve(EngineSystem, world, config))
    assert curves[0] == curves[1]
    theirs = reference(["model=vgg_narrow", "model.shape.convolutions=[1,1,1,1,1]"])
    assert curves[0] == pytest.approx(theirs, rel=1e-5)
