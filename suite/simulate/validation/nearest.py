"""Public cells nearest to a training setup, and the simulator's error on them.

The error on similar measurements is the best estimate of the error of a plan that nobody has run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import log

from suite.core.protocols import Schedule
from suite.schedule.placement import is_placed, is_split
from suite.simulate.operations.setup import TrainingSetup
from suite.simulate.validation.adapter import scored_setups
from suite.simulate.validation.answers import CellAnswer, answer
from suite.simulate.validation.calibrate import Shares
from suite.simulate.validation.cells import PublicCell

COUNT = 5
DIFFERENT = 1.0
"""Distance of two settings that differ: as much as a factor of e in parameters, or in devices."""


def schedule_kind(schedule: Schedule | None) -> str:
    """Kind of a schedule: none, V, split (zero bubble on a chain), interleaved, or plain."""
    if schedule is None:
        return "none"
    if is_placed(schedule) and schedule.fold:
        return "V"
    if is_split(schedule):
        return "split"
    return "interleaved" if is_placed(schedule) and schedule.chunks > 1 else "plain"


def distance(first: TrainingSetup, second: TrainingSetup) -> float:
    """Distance of two setups: in log parameters, in log devices, and for each kind of setting that differs."""
    pairs = (
        (first.machine.family, second.machine.family),
        (first.generation.name, second.generation.name),
        (first.sharding, second.sharding),
        (schedule_kind(first.schedule), schedule_kind(second.schedule)),
    )
    sizes = abs(log(first.model.parameters / second.model.parameters)) + abs(log(first.devices / second.devices))
    return sizes + DIFFERENT * sum(a != b for a, b in pairs)


def nearest_cells(
    setup: TrainingSetup, cells: Sequence[PublicCell], left_out: Collection[str] = (), count: int = COUNT
) -> tuple[PublicCell, ...]:
    """The scored cells nearest to a setup. Cells of its family of devices precede all others.

    Args:
        left_out: Ids of cells that are not chosen, such as those to which constants are fitted.
        count: Number of cells.
    """
    keyed = [
        (other.machine.family != setup.machine.family, distance(setup, other), cell.id, cell)
        for cell, other in scored_setups(cells)
        if cell.id not in left_out
    ]
    return tuple(cell for *_, cell in sorted(keyed, key=lambda each: each[:3])[:count])


def nearest_answers(
    setup: TrainingSetup, cells: Sequence[PublicCell], fitted: Shares, left_out: Collection[str] = ()
) -> tuple[CellAnswer, ...]:
    """The simulator's answers on the nearest cells, with the fitted constant of each cell."""
    return tuple(answer(cell, fitted) for cell in nearest_cells(setup, cells, left_out))
