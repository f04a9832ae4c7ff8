"""Ranges of answers over plausible values of the settings that a source does not tell.

A point answer takes the default of each unknown setting. A range changes one unknown setting at a time to each of its
plausible values (defaults.yaml), and never two at once: the number of simulations grows with the sum of the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

from suite.claims.on_cores import map_on_cores
from suite.core.errors import SuiteError
from suite.papers.public.adapter import plausible_setups, to_setup
from suite.papers.public.calibrate import Shares, pair_of, share_of, with_share
from suite.papers.public.league_file import LeagueRange
from suite.papers.public.score import CellAnswer, by_group
from suite.simulate.operations.step import simulate_step


@dataclass(frozen=True, slots=True)
class AnswerRange:
    """Least and largest simulated throughput of a cell, in tokens per second and device.

    Attributes:
        low, high: Ends of the range; the point answer lies between them.
        setups: Different setups with one changed setting.
    """

    low: float
    high: float
    setups: int

    def holds(self, tokens_per_second: float) -> bool:
        """Whether a throughput lies in the range, with its ends."""
        return self.low <= tokens_per_second <= self.high


def answer_range(answer: CellAnswer, fitted: Shares) -> AnswerRange | None:
    """Range of the answer on a cell, with the point answer as one of its values.

    Returns None for a cell that is refused, has no measured throughput, or has no unknown setting with another
    plausible value that changes its setup. A changed setup that the simulator refuses is left out.

    Args:
        answer: Point answer on the cell with the same shares.
        fitted: Constant of large products, by family of devices and generation.
    """
    cell, point = answer.cell, answer.tokens_per_second
    if point is None or cell.tokens_per_second is None:
        return None
    share, chosen = share_of(pair_of(cell), fitted), to_setup(cell)
    values = [point]
    for _, setup in plausible_setups(cell):
        if setup == chosen:  # without tensor parallelism, for example, sequence parallelism changes nothing
            continue
        try:
            values.append(simulate_step(with_share(setup, share)).tokens_per_second)
        except SuiteError:
            continue
    return AnswerRange(min(values), max(values), len(values) - 1) if len(values) > 1 else None


def answer_ranges(answers: Sequence[CellAnswer], fitted: Shares) -> dict[str, AnswerRange]:
    """Ranges by id, for the cells that have one."""
    found = map_on_cores(partial(answer_range, fitted=fitted), answers)
    return {answer.cell.id: one for answer, one in zip(answers, found, strict=True) if one is not None}


def range_groups(
    answers: Sequence[CellAnswer], ranges: Mapping[str, AnswerRange], left_out: frozenset[str] = frozenset()
) -> tuple[LeagueRange, ...]:
    """Ranges and measurements by group, for the scored cells with a range.

    Args:
        left_out: Ids of the cells to which constants are fitted.
    """
    groups = []
    for name, members in by_group(answers).items():
        cells = [one for one in members if one.cell.scored and one.cell.id in ranges and one.cell.id not in left_out]
        rows = [(ranges[one.cell.id], one.cell.tokens_per_second or 1.0) for one in cells]
        if not rows:
            continue
        groups.append(
            LeagueRange(
                name,
                len(rows),
                sum(found.holds(measured) for found, measured in rows),
                median(found.low / measured - 1 for found, measured in rows),
                median(found.high / measured - 1 for found, measured in rows),
                fmean(max(found.low / measured - 1, 1 - found.high / measured, 0.0) for found, measured in rows),
            )
        )
    return tuple(groups)
