"""Spread of the league's score over other choices of the cells to which constants are fitted.

The seconds of a step are taken as linear in the inverse of a share, so two simulations of each cell serve all choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from suite.claims.on_cores import map_on_cores
from suite.papers.public.calibrate import (
    HIGHEST,
    LOWEST,
    FittedConstant,
    Shares,
    candidates,
    pair_of,
    share_of,
    shares,
    throughput,
)
from suite.papers.public.cells import PublicCell

PROBES = (0.45, 0.9)  # shares at which each cell is simulated
TURNS = 0.1  # error at which a cell turns from near to far


@dataclass(frozen=True, slots=True)
class ConstantSpread:
    """What other cells of the same group would have given.

    Attributes:
        cells: Cells to which the constant could have been fitted.
        low, high: Least and largest constant that they give.
        best, worst: Least and largest mean error over groups with these constants.
        turning: Cells whose error crosses 10 % between the two constants.
    """

    family: str
    generation: str
    cells: int
    low: float
    high: float
    best: float
    worst: float
    turning: int


@dataclass(frozen=True, slots=True)
class StepLine:
    """Seconds of a step per token as a + b / share."""

    a: float
    b: float

    def throughput(self, share: float) -> float:
        return 1.0 / (self.a + self.b / share)

    def share(self, tokens_per_second: float) -> float:
        """Share that gives this throughput, within the bounds of a fit."""
        left = 1.0 / tokens_per_second - self.a
        return HIGHEST if left <= 0 else min(HIGHEST, max(LOWEST, self.b / left))


def step_lines(cells: Sequence[PublicCell]) -> Mapping[str, StepLine]:
    """Lines through two simulations of each scored cell, by id."""
    scored = [cell for cell in cells if cell.scored]
    lines = zip(scored, map_on_cores(_step_line, scored), strict=True)
    return {cell.id: line for cell, line in lines if line is not None}


def _step_line(cell: PublicCell) -> StepLine | None:
    found = [throughput(cell, share) for share in PROBES]
    if not (found[0] and found[1]):
        return None
    b = (1 / found[0] - 1 / found[1]) / (1 / PROBES[0] - 1 / PROBES[1])
    return StepLine(1 / found[1] - b / PROBES[1], b)


def mean_error(cells: Sequence[PublicCell], lines: Mapping[str, StepLine], fitted: Shares, left_out: str = "") -> float:
    """Mean over groups of the mean absolute error."""
    groups: dict[str, list[float]] = {}
    for cell in cells:
        if cell.id in lines and cell.id != left_out and cell.tokens_per_second:
            given = lines[cell.id].throughput(share_of(pair_of(cell), fitted))
            groups.setdefault(cell.group, []).append(abs(given / cell.tokens_per_second - 1))
    return fmean(fmean(errors) for errors in groups.values())


def constant_spreads(cells: Sequence[PublicCell], constants: Sequence[FittedConstant]) -> tuple[ConstantSpread, ...]:
    """Spread of each constant and of the score over all cells to which it could have been fitted."""
    lines = step_lines(cells)
    fitted = shares(constants)
    spreads = []
    for pair, members in sorted(candidates(cells).items()):
        given = {c.id: lines[c.id].share(c.tokens_per_second or 1.0) for c in members if c.id in lines}
        scores = [mean_error(cells, lines, {**fitted, pair: share}, name) for name, share in given.items()]
        low, high = min(given.values()), max(given.values())
        own = [cell for cell in cells if cell.id in lines and pair_of(cell) == pair]
        turning = sum(near(lines[c.id], low, c) != near(lines[c.id], high, c) for c in own)
        spreads.append(ConstantSpread(*pair, len(given), low, high, min(scores), max(scores), turning))
    return tuple(spreads)


def near(line: StepLine, share: float, cell: PublicCell) -> bool:
    """Whether the error on a cell is at most 10 % with this share."""
    return abs(line.throughput(share) / (cell.tokens_per_second or 1.0) - 1) <= TURNS
