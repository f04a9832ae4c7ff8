"""Law 8: a resumed run ends in the state of an uninterrupted run, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from suite.config.run import RunConfig
from suite.core.protocols import Value, World
from suite.engine.engine import Engine
from suite.engine.system import EngineSystem


@dataclass
class RankState:
    """Losses, tensors by their names in the whole model, and counters of one rank."""

    losses: list[float]
    tensors: Mapping[str, torch.Tensor]
    counts: Mapping[str, int | Mapping[str, float] | None]

    def compare(self, other: RankState, where: str, tolerance: float = 0.0) -> None:
        """Raises AssertionError if a tensor or counter differs. tolerance: 0 compares tensors bit for bit."""
        assert self.counts == other.counts, f"{where}: {self.counts} and {other.counts}"
        assert self.tensors.keys() == other.tensors.keys(), where
        for name, tensor in self.tensors.items():
            actual = other.tensors[name]
            equal = (actual - tensor).abs().max() <= tolerance if tolerance else torch.equal(actual, tensor)
            assert equal, f"{where}: {name} differs"


def rank_state(engine: Engine, losses: Iterable[float] = ()) -> RankState:
    """State of a rank: weights in full and half precision, moments, buffers and counters."""
    tensors: dict[str, torch.Tensor] = {}
    for number, layer in engine.state.numbered_layers():
        for name, parameter in layer.named_parameters():
            tensors[f"{number}.{name}"] = parameter.data.clone()
            if id(parameter) in engine.state.model_states.flat.spans:
                states = engine.state.model_states.export(parameter)
                tensors |= {f"{number}.{name} {state}": tensor.clone() for state, tensor in states.items()}
        tensors |= {f"{number}.{name}": buffer.clone() for name, buffer in layer.named_buffers()}
    counts = {
        "updates": engine.state.updates,
        "pruned": engine.state.pruned_after,
        "steps": engine.state.model_states.rule.updates,
        "skipped": engine.state.update.skipped,
        "microbatches": engine.state.microbatches * engine.grid.data,
        "scale": engine.state.loss_scaler.state() if engine.state.loss_scaler else None,
    }
    return RankState(list(losses), tensors, counts)


def train(system: Any, batches: Sequence[Value]) -> list[float]:
    """Train on batches, as one stream if the system streams. Returns the losses."""
    if system.streams:
        return list(system.stream(batches)[0])
    return [float(system.train_batch(batch)) for batch in batches]


def check_resumed(
    system_class: type[EngineSystem],
    config: RunConfig,
    batches: Sequence[Value],
    folder: Path,
    world: World,
    *,
    where: str,
) -> int:
    """Train half of the batches, save, and train the other half in a new system that loads the checkpoint.

    Raises AssertionError if a loss or the final state differs from an uninterrupted system.

    Args:
        system_class: Class of the system, which this rank builds.
        config: Its config.
        batches: Batches of the run.
        folder: Folder of the checkpoint.
        world: World of the rank.
        where: Beginning of messages.

    Returns:
        Number of compared tensors.
    """
    uninterrupted, first, second = (system_class(world=world, config=config) for _ in range(3))
    half = len(batches) // 2
    expected = [loss for part in (batches[:half], batches[half:]) for loss in train(uninterrupted, part)]
    losses = train(first, batches[:half])
    assert losses == expected[:half], f"{where}: two runs differ before any checkpoint, {losses} and {expected[:half]}"
    first.save(folder)
    second.load(folder)
    losses = train(second, batches[half:])
    assert losses == expected[half:], f"{where}: losses {losses} after resuming, {expected[half:]} without"
    expected_state = rank_state(uninterrupted.engine)
    expected_state.compare(rank_state(second.engine), where)
    for system in (uninterrupted, first, second):
        system.close()
    return len(expected_state.tensors)
