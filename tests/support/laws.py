"""Decides how law 2 is checked on one rank of a world, so that loopback threads and MPI ranks face the same test."""

from __future__ import annotations

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
    reference = Reference(case, grid.data)
    own = engine.split[engine.place.stage]
    mine = {id(p) for p in reference.parameters(own)}
    first = compared = 0
    for number, microbatches in enumerate(BATCHES):
        where = f"{case.name} {grid} {schedule} batch {number} rank {world.rank}"
        batch = case.batch(number, microbatches, grid.data)
        expected_loss, everything = reference.gradients(batch, first)
        expected = [g for p, g in zip(reference.parameters(), everything, strict=True) if id(p) in mine]
        loss = engine.train_batch(batch)
        assert abs(loss - expected_loss) <= 1e-12 * abs(expected_loss), f"{where}: loss {loss} for {expected_loss}"
        for got, right in zip(gradients_of(engine), expected, strict=True):
            difference = (got - right.flatten()).abs().max().item() if got.numel() else 0.0
            assert difference <= tolerance, f"{where}: a gradient is off by {difference}"
            compared += 1
        if engine.place.replica == 0:
            buffers = zip(
                engine.stage.layers.buffers(), (b for k in own for b in reference.layers[k].buffers()), strict=True
            )
            assert all(torch.equal(a, b) for a, b in buffers), f"{where}: running statistics differ"
        assert engine.peak <= schedule.in_flight(engine.place, _work(microbatches)), where
        first += microbatches
        if grid.data == 1:  # replicas keep their own running statistics
            held_out = case.batch(100 + number, 2, grid.data)
            assert abs(engine.evaluate([held_out]) - reference.evaluate(held_out)) < 1e-6, f"{where}: evaluation"
    engine.close()
    return compared


def _work(microbatches: int):  # type: ignore[no-untyped-def]
    from suite.core.op import Work

    return Work(0, microbatches, None, 0)


def splits(case: Case, stages: int) -> bool:
    """Whether the case has enough layers for a grid."""
    return len(case.layers) >= stages and len(evenly(len(case.layers), stages)) == stages
