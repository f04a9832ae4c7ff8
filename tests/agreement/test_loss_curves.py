"""AxoNN Figure 10 in small: on every grid the losses over 50 batches of gpt_tiny are those of one process."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from baselines.pytorch import PyTorch
from suite.bench.experiment import resolve
from suite.comm import loopback
from suite.core.build import build
from suite.data.text import batch_at
from suite.engine.system import EngineSystem

BATCHES = 50
TOLERANCE = 1e-5


@cache
def text() -> Any:
    return build(resolve(["data.source.limit_bytes=1000000"])["data"]["source"])


def batch(config: dict[str, Any], number: int) -> Any:
    sequence = config["model"]["shape"]["sequence"]
    return batch_at(text().train, number, batch=config["batch"]["size"], sequence=sequence, seed=0)


@cache
def one_process() -> list[float]:
    config = resolve(["system=pytorch"])
    system = PyTorch(world=loopback.LoopbackWorld(loopback.Hub(1), 0), config=config)
    return [system.train_batch(batch(config, number)) for number in range(BATCHES)]


@pytest.mark.parametrize("system", ["axonn", "gpipe"])
@pytest.mark.parametrize(("inter", "data"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_losses_are_those_of_one_process(system: str, inter: int, data: int) -> None:
    config = resolve([f"system={system}", f"grid.inter={inter}", f"grid.data={data}"])

    def rank(world: loopback.LoopbackWorld) -> list[float]:
        made = EngineSystem(world=world, config=config)
        losses = [made.train_batch(batch(config, number)) for number in range(BATCHES)]
        made.close()
        return losses

    curves = loopback.run(inter * data, rank)
    assert all(curve == curves[0] for curve in curves), "every rank is told the same losses"
    worst = max(abs(a - b) / b for a, b in zip(curves[0], one_process(), strict=True))
    assert worst <= TOLERANCE, f"{worst:.2e}"
    assert curves[0][-1] < curves[0][0] - 0.5, "it learns"
