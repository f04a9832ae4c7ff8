"""Check law 2 (gradients equal the reference) for a schedule, on one rank of a world."""

from __future__ import annotations

from suite.conformance.gradients import check_engine, gradients_of
from suite.core.grid import Grid
from suite.core.protocols import Schedule, WeightPolicy, World
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
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
    """Compare an engine of this rank with the reference. Returns the number of compared tensors."""
    return check_engine(engine_of(case, grid, schedule, world, weights), case, schedule, world, tolerance=tolerance)
