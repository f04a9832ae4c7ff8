"""Decides what is counted of a system on one rank, so that threads and MPI ranks are held to the same prediction."""

from __future__ import annotations

from typing import Any

from suite.core.build import build
from suite.core.protocols import World
from suite.engine.system import EngineSystem


def counted(world: World, config: dict[str, Any]) -> dict[str, Any]:
    """Bytes by kind that the second batch held at most, bytes of states, and the most passes in flight."""
    data, shape = build(config["data"]["source"]), build(config["model"]["shape"])
    system = EngineSystem(world=world, config=config)
    for number in range(2):
        _, held = system.memory(data.batch(number, size=config["batch"]["size"], seed=0, shape=shape))
    found = {"held": held, "allocated": system.engine.state.allocated(), "in_flight": system.engine.peak}
    system.close()
    return found
