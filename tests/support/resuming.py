"""Decides what a run is left with, so that a resumed one can be compared with it bit by bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cases import Case
from reference import SEED

from suite.core.grid import Grid
from suite.core.protocols import World
from suite.engine.train import Engine

COUNTS = (3, 1, 2, 1)  # microbatches of the batches, over two replicas twice as many


@dataclass
class Kept:
    """Losses, tensors by their names in the whole model, and counts of one rank."""

    losses: list[float]
    tensors: Mapping[str, torch.Tensor]
    counts: Mapping[str, Any]

    def compare(self, other: Kept, where: str, tolerance: float = 0.0) -> None:
        """The tensors of both, and the counts. At a tolerance of 0 bit for bit."""
        assert self.counts == other.counts, f"{where}: {self.counts} and {other.counts}"
        assert self.tensors.keys() == other.tensors.keys(), where
        for name, right in self.tensors.items():
            got = other.tensors[name]
            same = torch.equal(got, right) if not tolerance else (got - right).abs().max() <= tolerance
            assert same, f"{where}: {name} differs"


def engine_of(case: Case, world: World, grid: Grid, **more: Any) -> Engine:
    return Engine(
        case.layers,
        loss=case.loss,
        grid=grid,
        world=world,
        **{"microbatch": case.microbatch, "tied": case.ties, "seed": SEED, **more},
    )


def batch_of(case: Case, number: int) -> Any:
    """The batch of that number: of one size on every grid of at most two replicas."""
    return case.batch(number, COUNTS[number % len(COUNTS)], 2)


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


def trained(
    case: Case,
    world: World,
    grid: Grid,
    batches: Iterable[int],
    *,
    load: Path | None = None,
    save: Path | None = None,
    **more: Any,
) -> Kept:
    """A new engine: what it loads, then the batches of these numbers, then what it saves."""
    engine = engine_of(case, world, grid, **more)
    if load is not None:
        engine.load(load)
    losses = [engine.train_batch(batch_of(case, number)) for number in batches]
    if save is not None:
        engine.save(save)
    kept = kept_by(engine, losses)
    engine.close()
    return kept
