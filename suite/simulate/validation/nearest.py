"""Public cells nearest to a training setup, and the simulator's error on them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from suite.simulate.nearest import COUNT, SetupFeatures, nearest
from suite.simulate.operations.products import Shares
from suite.simulate.operations.setup import TrainingSetup
from suite.simulate.validation.adapter import scored_setups
from suite.simulate.validation.answers import CellAnswer, answer
from suite.simulate.validation.cells import PublicCell


def nearest_cells(
    setup: TrainingSetup, cells: Sequence[PublicCell], left_out: Collection[str] = (), count: int = COUNT
) -> tuple[PublicCell, ...]:
    """The scored cells nearest to a setup. Cells of its family of devices precede all others.

    Args:
        left_out: Ids of cells that are not chosen, such as those to which constants are fitted.
        count: Number of cells.
    """
    scored = scored_setups(cells)
    others = ((cell.id, SetupFeatures.of(other), cell) for cell, other in scored if cell.id not in left_out)
    return nearest(SetupFeatures.of(setup), others, count)


def nearest_answers(
    setup: TrainingSetup, cells: Sequence[PublicCell], fitted: Shares, left_out: Collection[str] = ()
) -> tuple[CellAnswer, ...]:
    """The simulator's answers on the nearest cells, with the fitted constant of each cell."""
    return tuple(answer(cell, fitted) for cell in nearest_cells(setup, cells, left_out))
