"""Law 3: the final state of a rank equals the final state of a replay in one process, bit for bit.

A replay has no time and no messages, so any dependence on either becomes visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from suite.config.run import RunConfig
from suite.conformance.resuming import train
from suite.core.protocols import World
from suite.engine.engine import Engine
from suite.engine.replay.replay import Replay
from suite.engine.system import EngineSystem, to_tensors


def compare_with_replay(engine: Engine, replay: Replay, where: str) -> int:
    """Compare this rank's weights, moments and running statistics. Returns the number of compared weights."""
    twin, compared = replay.engines[engine.rank], 0
    for parameter, replayed in zip(
        engine.state.model_states.parameters, twin.state.model_states.parameters, strict=True
    ):
        difference = (parameter.detach() - replayed.detach()).abs().max().item() if parameter.numel() else 0.0
        stages = " and ".join(map(str, engine.place.held_stages))
        assert torch.equal(parameter, replayed), f"{where}: a weight of stage {stages} is off by {difference:g}"
        compared += 1
    for name, moment in engine.state.model_states.rule.moments.items():
        assert torch.equal(moment, twin.state.model_states.rule.moments[name]), f"{where}: {name} differs"
    pairs = zip(engine.state.numbered_layers(), twin.state.numbered_layers(), strict=True)
    for (_, layer), (_, twin_layer) in pairs:
        for buffer, expected in zip(layer.buffers(), twin_layer.buffers(), strict=True):
            assert torch.equal(buffer, expected), f"{where}: running statistics differ"
    return compared


def check_replayed(
    system_class: type[EngineSystem], config: RunConfig, epochs: Sequence[Sequence[Any]], world: World
) -> int:
    """Compare a system on the suite's engine with its replay: losses after every epoch, and the final state.

    Args:
        system_class: Class of the system, which this rank builds.
        config: Its config.
        epochs: Batches from one drain to the next.
        world: World of the rank.

    Returns:
        Number of compared weights.
    """
    system = system_class(world=world, config=config)
    replay = Replay(**system_class.engine_arguments(config))
    where = f"{config.system.name} {system.engine.grid} rank {world.rank}"
    for number, epoch in enumerate(epochs):
        losses = train(system, epoch)
        replayed = list(replay.train([to_tensors(batch) for batch in epoch]))
        for batch, (loss, expected) in enumerate(zip(losses, replayed, strict=True)):
            assert loss == expected, f"{where}: epoch {number}, batch {batch} has loss {loss}, replayed {expected}"
    compared = compare_with_replay(system.engine, replay, where)
    system.close()
    return compared
