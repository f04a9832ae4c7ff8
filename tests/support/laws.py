"""Decides how law 2 is checked on one rank of a world, so that loopback threads and MPI ranks face the same test."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import torch
from cases import Case
from reference import SEED, Reference

from suite.core.grid import Grid
from suite.core.protocols import Schedule, WeightPolicy, World
from suite.engine.optimizer import SGD
from suite.engine.train import Engine
from suite.workload import evenly

BATCHES = (8, 1, 3, 5)  # microbatches per replica: many, one, fewer than stages, a short last batch


def engine_of(case: Case, grid: Grid, schedule: Schedule, world: World, weights: WeightPolicy | None = None) -> Engine:
    """An engine whose steps move nothing: plain SGD at rate 0 keeps the reduced gradient as its velocity."""
    return Engine(
        case.layers,
        loss=case.loss,
        optimizer=SGD(lr=0.0),
        microbatch=case.microbatch,
        grid=grid,
        schedule=schedule,
        weights=weights,
        tied=case.ties,
        seed=SEED,
        world=world,
    )


def gradients_of(engine: Engine) -> list[torch.Tensor]:
    """What the last update was given, per weight of this stage."""
    flat = engine.state.rule.moments["velocity"]
    return list(flat.split([p.numel() for p in engine.state.parameters]))


@dataclass(frozen=True)
class Right:
    """One batch in one process: its mean loss, and gradients and running statistics by layer; of what is held out the
    loss, on one replica."""

    loss: float
    gradients: list[list[torch.Tensor]]
    buffers: list[list[torch.Tensor]]
    evaluation: float | None


_one = Lock()  # ranks are threads here: one of them computes, for all and for every schedule


def right(case: Case, replicas: int) -> list[Right]:
    with _one:
        return _right(case, replicas)


@cache
def _right(case: Case, replicas: int) -> list[Right]:
    reference, first, found = Reference(case, replicas), 0, []
    for number, microbatches in enumerate(BATCHES):
        loss, flat = reference.gradients(case.batch(number, microbatches, replicas), first)
        first += microbatches
        each = iter(flat)
        found.append(
            Right(
                loss,
                [[next(each) for _ in layer.parameters()] for layer in reference.layers],
                [[buffer.clone() for buffer in layer.buffers()] for layer in reference.layers],
                # replicas keep their own running statistics
                reference.evaluate(_held_out(case, number)) if replicas == 1 else None,
            )
        )
    return found


def _held_out(case: Case, number: int) -> tuple[Any, Any]:
    return case.batch(100 + number, 2, 1)


def check_gradients(
    case: Case,
    grid: Grid,
    schedule: Schedule,
    world: World,
    *,
    weights: WeightPolicy | None = None,
    tolerance: float = 0.0,
) -> int:
    """Over several batches with evaluation between them: this rank's gradients against the reference (bit for bit at
    tolerance 0), the loss that every rank is told, evaluation, running statistics. The number of tensors compared."""
    engine = engine_of(case, grid, schedule, world, weights)
    own = engine.split[engine.place.stage]
    compared = 0
    for number, (microbatches, expected) in enumerate(zip(BATCHES, right(case, grid.data), strict=True)):
        where = f"{case.name} {grid} {schedule} batch {number} rank {world.rank}"
        loss = engine.train_batch(case.batch(number, microbatches, grid.data))
        off = abs(loss - expected.loss)
        assert off <= 1e-12 * abs(expected.loss), f"{where}: loss {loss} for {expected.loss}"
        gradients = [gradient for k in own for gradient in expected.gradients[k]]
        for got, wanted in zip(gradients_of(engine), gradients, strict=True):
            difference = (got - wanted.flatten()).abs().max().item() if got.numel() else 0.0
            assert difference <= tolerance, f"{where}: a gradient is off by {difference}"
            compared += 1
        if engine.place.replica == 0:
            buffers = zip(engine.stage.layers.buffers(), (b for k in own for b in expected.buffers[k]), strict=True)
            assert all(torch.equal(a, b) for a, b in buffers), f"{where}: running statistics differ"
        assert engine.peak <= schedule.in_flight(engine.place, _work(microbatches)), where
        if expected.evaluation is not None:
            off = abs(engine.evaluate([_held_out(case, number)]) - expected.evaluation)
            assert off < 1e-6, f"{where}: evaluation"
    engine.close()
    return compared


def _work(microbatches: int):  # type: ignore[no-untyped-def]
    from suite.core.op import Work

    return Work(0, microbatches, None, 0)


def splits(case: Case, stages: int) -> bool:
    """Whether the case has enough layers for a grid."""
    return len(case.layers) >= stages and len(evenly(len(case.layers), stages)) == stages
