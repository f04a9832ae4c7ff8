"""Fitted constants: the rate of large products, one for each pair of a family of devices and a generation.

A constant is relative to the best published product of the device (Machine.sustained), so that it can be taken for
another family. Each is fitted to one cell, by a rule that reads no error: the pairs with the most scored cells are
fitted, each on the cell of median size (parameters times devices) of the group that has most cells of the pair. Pairs
without a constant take the median of all constants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from suite.config.typed_yaml import read_typed
from suite.core.errors import SuiteError
from suite.simulate.operations.products import Pair, Shares, with_share
from suite.simulate.operations.setup import TrainingSetup
from suite.simulate.operations.step import simulate_step
from suite.simulate.validation.adapter import machines, scored_setups, to_setup
from suite.simulate.validation.cells import PublicCell

MOST_CONSTANTS = 10
BLIND = "megatron"  # generation whose constants are from before the first comparison; none is fitted to its cells
LOWEST, HIGHEST = 0.05, 1.0  # no product is quicker than the best published one of its device (Machine.sustained)
SECANTS, CLOSE = 6, 1e-4  # most secants of a fit, and the relative error of a step at which it ends


@dataclass(frozen=True, slots=True)
class FittedConstant:
    """A constant, and the cell to which it is fitted."""

    family: str
    generation: str
    share: float
    cell: str


def constants() -> tuple[FittedConstant, ...]:
    """Fitted constants of constants.yaml."""
    return tuple(read_typed(list[FittedConstant], Path(__file__).with_name("constants.yaml")))


def pair_of(cell: PublicCell) -> Pair:
    """Family of devices and generation of a cell."""
    return machines()[cell.machine.gpu].family, cell.generation


def size(setup: TrainingSetup) -> float:
    """Entries of the model's weights times devices."""
    return setup.model.parameters * float(setup.devices)


def candidates(cells: Sequence[PublicCell]) -> dict[Pair, list[PublicCell]]:
    """Cells from which each fitted pair may choose, in ascending order of size."""
    sizes = {cell.id: size(setup) for cell, setup in scored_setups(cells)}
    scored = [cell for cell in cells if cell.id in sizes]
    counts = Counter(pair_of(cell) for cell in scored if cell.generation != BLIND)
    chosen = {}
    for pair, _ in sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:MOST_CONSTANTS]:
        groups = Counter(cell.group for cell in scored if pair_of(cell) == pair)
        group = max(groups, key=lambda name: (groups[name], name))
        members = [cell for cell in scored if cell.group == group and pair_of(cell) == pair]
        chosen[pair] = sorted(members, key=lambda cell: (sizes[cell.id], cell.id))
    return chosen


def median_cells(cells: Sequence[PublicCell]) -> dict[Pair, PublicCell]:
    """The cell to which the constant of each pair is fitted."""
    return {pair: members[(len(members) - 1) // 2] for pair, members in candidates(cells).items()}


@lru_cache(maxsize=512)
def fit(cell: PublicCell) -> float:
    """Constant with which the simulator gives the measured throughput of a cell, or the nearest bound.

    The time of a step is nearly linear in the inverse of the share, so a few secants find it. Fits are kept, because
    leaving a family out fits the cells of the other families again.
    """
    setup = to_setup(cell)
    target = setup.batch * setup.model.sequence / setup.devices / (cell.tokens_per_second or 1.0)

    def seconds(inverse: float) -> float:
        return simulate_step(with_share(setup, 1 / inverse)).seconds - target

    a, b = 1 / HIGHEST, 2.0
    excess_a, excess_b = seconds(a), seconds(b)
    for _ in range(SECANTS):
        if abs(excess_b) < CLOSE * target or excess_a == excess_b:
            break
        after = min(1 / LOWEST, max(1 / HIGHEST, b - excess_b * (b - a) / (excess_b - excess_a)))
        a, excess_a = b, excess_b
        b, excess_b = after, seconds(after)
    return 1 / b


def fit_all(cells: Sequence[PublicCell]) -> tuple[FittedConstant, ...]:
    """Constants of all fitted pairs."""
    chosen = sorted(median_cells(cells).items())
    return tuple(FittedConstant(*pair, round(fit(cell), 4), cell.id) for pair, cell in chosen)


def shares(fitted: Sequence[FittedConstant]) -> Shares:
    """Constants by pair."""
    return {(one.family, one.generation): one.share for one in fitted}


def throughput(cell: PublicCell, share: float) -> float | None:
    """Simulated tokens per second and device with this constant of large products; None for a refused cell."""
    try:
        return simulate_step(with_share(to_setup(cell), share)).tokens_per_second
    except SuiteError:
        return None
