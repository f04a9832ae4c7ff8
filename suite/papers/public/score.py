"""Errors of the simulator on public cells: by cell, by group, and over all groups.

An error is simulated over measured throughput, minus 1. The league's number is the mean over groups, because a few
sources have most of the cells. A cell that the simulator refuses counts as an error of 100 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

from suite.core.errors import SuiteError
from suite.papers.public.adapter import to_setup
from suite.papers.public.calibrate import Shares, pair_of, share_of, with_share
from suite.papers.public.cells import PublicCell
from suite.papers.public.variants import CHOSEN, ModelVariant
from suite.simulate.operations.step import simulate_step

REFUSED = 1.0
DISTINCT = {"high": 0.03, "medium": 0.10, "low": 0.40}
"""Relative difference of two measurements from which their order is meaningful, by quality."""


@dataclass(frozen=True, slots=True)
class CellAnswer:
    """Answer of the simulator on a cell.

    Attributes:
        tokens_per_second: Simulated tokens per second and device; None for a refused cell.
        memory: Simulated bytes of the fullest device.
        fits: Whether they fit the device.
        refusal: Reason of a refusal; empty for an answer.
    """

    cell: PublicCell
    tokens_per_second: float | None = None
    memory: float | None = None
    fits: bool | None = None
    refusal: str = ""

    @property
    def error(self) -> float:
        """Simulated over measured throughput, minus 1."""
        measured = self.cell.tokens_per_second
        if self.tokens_per_second is None or measured is None:
            return REFUSED
        return self.tokens_per_second / measured - 1


def answer(cell: PublicCell, fitted: Shares, variant: ModelVariant = CHOSEN) -> CellAnswer:
    """Point answer on a cell: unknown settings take the defaults of their software generation.

    Args:
        fitted: Constant of large products, by family of devices and generation.
    """
    try:
        setup = variant.of(to_setup(cell))
        step = simulate_step(with_share(setup, share_of(pair_of(cell), fitted)))
    except SuiteError as error:
        return CellAnswer(cell, refusal=str(error))
    return CellAnswer(cell, step.tokens_per_second, step.peak_memory, step.fits)


@dataclass(frozen=True, slots=True)
class GroupScore:
    """Errors of one group: mean and largest absolute error, and median signed error."""

    group: str
    cells: int
    mean: float
    largest: float
    bias: float


@dataclass(frozen=True, slots=True)
class LeagueScore:
    """Errors over groups.

    Attributes:
        groups: Scores of the groups with a scored cell.
        mean: Mean over groups of the mean absolute error.
        percentile: 90th percentile over cells of the absolute error.
        orders: Share of pairs within a group whose order is right.
        pairs: Number of these pairs.
        found_oom, oom: Rows that did not fit and are predicted not to fit; all of them.
        found_fit, fit: Rows that ran and are predicted to fit; all of them.
        refused: Cells without an answer.
    """

    groups: tuple[GroupScore, ...]
    mean: float
    percentile: float
    orders: float
    pairs: int
    found_oom: int
    oom: int
    found_fit: int
    fit: int
    refused: tuple[str, ...]


def by_group(answers: Iterable[CellAnswer]) -> dict[str, list[CellAnswer]]:
    """Answers by group, in order of first appearance."""
    groups: dict[str, list[CellAnswer]] = {}
    for one in answers:
        groups.setdefault(one.cell.group, []).append(one)
    return groups


def right_orders(answers: Sequence[CellAnswer]) -> tuple[int, int]:
    """Pairs of one group whose measurements differ by more than their noise: those in the right order, and all."""
    right = pairs = 0
    usable = [a for a in answers if a.cell.status == "ok" and a.cell.tokens_per_second]
    for a, b in combinations(usable, 2):
        first, second = a.cell.tokens_per_second or 0.0, b.cell.tokens_per_second or 0.0
        floor = max(DISTINCT[a.cell.quality], DISTINCT[b.cell.quality])
        if abs(first / second - 1) <= floor:
            continue
        pairs += 1
        if a.tokens_per_second is not None and b.tokens_per_second is not None:
            right += (first > second) == (a.tokens_per_second > b.tokens_per_second)
    return right, pairs


def score(answers: Sequence[CellAnswer], left_out: frozenset[str] = frozenset()) -> LeagueScore:
    """Score of answers, without the cells named in `left_out` (those to which constants are fitted)."""
    groups, errors, right, pairs = [], [], 0, 0
    for name, members in by_group(answers).items():
        scored = [a.error for a in members if a.cell.scored and a.cell.id not in left_out]
        ordered = right_orders(members)
        right, pairs = right + ordered[0], pairs + ordered[1]
        if scored:
            sizes = [abs(error) for error in scored]
            groups.append(GroupScore(name, len(scored), fmean(sizes), max(sizes), median(scored)))
            errors += sizes
    ran = [a for a in answers if a.cell.status == "ok"]
    failed = [a for a in answers if a.cell.status == "oom"]
    return LeagueScore(
        tuple(groups),
        fmean(group.mean for group in groups),
        sorted(errors)[int(0.9 * len(errors))],
        right / pairs if pairs else 1.0,
        pairs,
        sum(a.fits is False for a in failed),
        len(failed),
        sum(a.fits is True for a in ran),
        len(ran),
        tuple(a.cell.id for a in answers if a.refusal),
    )
