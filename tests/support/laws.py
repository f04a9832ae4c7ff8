"""Check law 2 (gradients equal the reference) for a schedule, on one rank of a world."""

from __future__ import annotations

from functools import cache

from suite.conformance.gradients import BATCHES, check_engine, gradients_of
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import COMPLETES_MICROBATCH, FlushInterval
from suite.core.protocols import Schedule, WeightPolicy, World
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
from suite.schedule.check import check
from tests.support import cases
from tests.support.cases import Case

__all__ = ["check_gradients", "engine_of", "gradients_of"]


def engine_of(case: Case, grid: Grid, schedule: Schedule, world: World, weights: WeightPolicy | None = None) -> Engine:
    """An engine whose steps do not change weights: SGD at rate 0 stores the reduced gradient as its velocity."""
    return cases.engine_of(case, world, grid, optimizer=SGD(lr=0.0), schedule=schedule, weights=weights)


def check_gradients(
    case: Case,
    grid: Grid,
    schedule: Schedule,
    world: World,
    *,
    weights: WeightPolicy | None = None,
    tolerance: float = 0.0,
) -> int:
    """Compare an engine of this rank with the reference. Returns the number of compared tensors.

    Batches that the schedule refuses are left out. A schedule that adds the gradients of microbatches in another order
    than the reference agrees with it up to rounding.
    """
    batches, in_order = orders_of(schedule, grid.inter)
    if not in_order:
        tolerance = max(tolerance, 1e-12 if "64" in case.name else 1e-5)
    engine = engine_of(case, grid, schedule, world, weights)
    return check_engine(engine, case, schedule, world, batches=batches, tolerance=tolerance)


@cache
def orders_of(schedule: Schedule, ranks: int) -> tuple[tuple[int, ...], bool]:
    """Batches of BATCHES that the schedule accepts, and whether every stage completes their microbatches in order."""
    accepted, in_order = [], True
    for microbatches in BATCHES:
        try:
            timeline = check(schedule, ranks, FlushInterval(0, microbatches, None, 0))
        except InvalidRequest:
            continue
        accepted.append(microbatches)
        for stage in range(timeline.stages):
            ops = [slot.op for slot in timeline.slots if slot.op.stage == stage]
            completed = [op.index for op in ops if op.kind in COMPLETES_MICROBATCH]
            in_order = in_order and completed == sorted(completed)
    return tuple(accepted), in_order
