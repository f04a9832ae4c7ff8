"""Law 8: final state of a run, for a bit-for-bit comparison with a resumed run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from suite.config.run import RunConfig
from suite.core.protocols import Value, World
from suite.engine.engine import Engine


@dataclass
class Kept:
    """Losses, tensors by their names in the whole model, and counts of one rank."""

    losses: list[float]
    tensors: Mapping[str, torch.Tensor]
    counts: Mapping[str, int | Mapping[str, float] | None]

    def compare(self, other: Kept, where: str, tolerance: float = 0.0) -> None:
        """The tensors of both, and the counts. At a tolerance of 0 bit for bit."""
        assert self.counts == other.counts, f"{where}: {self.counts} and {other.counts}"
        assert self.tensors.keys() == other.tensors.keys(), where
        for name, right in self.tensors.items():
            got = other.tensors[name]
            same = torch.equal(got, right) if not tolerance else (got - right).abs().max() <= tolerance
            assert same, f"{where}: {name} differs"


def kept_by(engine: Engine, losses: Iterable[float] = ()) -> Kept:
    """Weights in full and in half precision, moments, buffers, counts."""
    tensors: dict[str, torch.Tensor] = {}
    for number, layer in zip(engine.split[engine.place.stage], engine.stage.layers, strict=True):
        for name, parameter in layer.named_parameters():
            tensors[f"{number}.{name}"] = parameter.data.clone()
            if id(parameter) in engine.state.flat.at:
                states = engine.state.export(parameter)
                tensors |= {f"{number}.{name} {state}": tensor.clone() for state, tensor in states.items()}
        tensors |= {f"{number}.{name}": buffer.clone() for name, buffer in layer.named_buffers()}
    counts = {
        "updates": engine.updates,
        "pruned": engine.pruned,
        "steps": engine.state.rule.updates,
        "skipped": engine.update.skipped,
        "microbatches": engine.microbatches * engine.grid.data,
        "scale": engine.scaler.state() if engine.scaler else None,
    }
    return Kept(list(losses), tensors, counts)


def losses_of(system: Any, batches: Sequence[Value]) -> list[float]:
    """Trains on them: one stream where the system streams."""
    if system.streams:
        return list(system.stream(batches)[0])
    return [float(system.train_batch(batch)) for batch in batches]


def check_resumed(
    made: Any, config: RunConfig, batches: Sequence[Value], folder: Path, world: World, *, where: str
) -> int:
    """Half of the batches, a checkpoint, and the other half in a system that has loaded it: losses and all that the
    rank is left with are those of a system that was not interrupted. How many tensors were compared."""
    whole, first, again = (made(world=world, config=config) for _ in range(3))
    half = len(batches) // 2
    right = [loss for some in (batches[:half], batches[half:]) for loss in losses_of(whole, some)]
    resumed = losses_of(first, batches[:half])
    assert resumed == right[:half], f"{where}: two runs differ before any checkpoint, {resumed} and {right[:half]}"
    first.save(folder)
    again.load(folder)
    resumed = losses_of(again, batches[half:])
    assert resumed == right[half:], f"{where}: losses {resumed} after resuming, {right[half:]} without"
    expected_state = kept_by(whole.engine)
    expected_state.compare(kept_by(again.engine), where)
    for system in (whole, first, again):
        system.close()
    return len(expected_state.tensors)
