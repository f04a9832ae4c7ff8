"""Law 3: the final state of a rank equals the final state of a replay in one process, bit for bit.

A replay has no time and no messages, so any dependence on either becomes visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from suite.config.run import RunConfig
from suite.conformance.resuming import losses_of
from suite.core.protocols import World
from suite.engine.engine import Engine
from suite.engine.replay import Replay
from suite.engine.system import tensors


def compare(engine: Engine, replay: Replay, where: str) -> int:
    """This rank's weights, moments and statistics. How many weights were compared."""
    twin, compared = replay.engines[engine.rank], 0
    for parameter, replayed in zip(engine.state.parameters, twin.state.parameters, strict=True):
        mine, other = parameter.detach(), replayed.detach()
        off = (mine - other).abs().max().item() if mine.numel() else 0.0
        assert torch.equal(mine, other), f"{where}: a weight of stage {engine.place.stage} is off by {off:g}"
        compared += 1
    for name, moment in engine.state.rule.moments.items():
        assert torch.equal(moment, twin.state.rule.moments[name]), f"{where}: {name} differs"
    for mine, other in zip(engine.stage.layers.buffers(), twin.stage.layers.buffers(), strict=True):
        assert torch.equal(mine, other), f"{where}: running statistics differ"
    return compared


def check_replayed(made: Any, config: RunConfig, epochs: Sequence[Sequence[Any]], world: World) -> int:
    """Of a system on the suite's engine, built as its ranks build it: losses after every epoch (from drain to drain),
    and at the end all that this rank holds. How many weights were compared."""
    system = made(world=world, config=config)
    replay = Replay(**made.settings(config))
    where = f"{config.system.name} {system.engine.grid} rank {world.rank}"
    for number, epoch in enumerate(epochs):
        replayed = losses_of(system, epoch)
        right = list(replay.train([tensors(batch) for batch in epoch]))
        at = next((at for at, (a, b) in enumerate(zip(replayed, right, strict=True)) if a != b), None)
        assert at is None, (
            f"{where}: epoch {number}, batch {at} has loss {replayed[at or 0]}, replayed {right[at or 0]}"
        )
    compared = compare(system.engine, replay, where)
    system.close()
    return compared
