"""Score a file of cells, and write the league to league.json and its answers to league.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from suite.core.errors import InvalidRequest
from suite.core.files import write_atomically
from suite.papers.public.adapter import SCHEDULES, assumed
from suite.papers.public.cells import PublicCell, load_cells
from suite.papers.public.league import League, constants, make_league
from suite.papers.public.league_file import (
    ANSWERS,
    LeagueConstant,
    LeagueFile,
    LeagueTotals,
)
from suite.papers.public.ranges import AnswerRange
from suite.papers.public.score import CellAnswer, LeagueScore
from suite.report.files import inert

COLUMNS = (
    "id",
    "group",
    "family",
    "device",
    "measured tokens/s per device",
    "simulated tokens/s per device",
    "error",
    "low tokens/s per device",
    "high tokens/s per device",
    "fits",
    "status",
    "quality",
    "known",
    "assumed",
    "schedule",
    "refusal",
)


def scorable_cells(path: Path) -> tuple[PublicCell, ...]:
    """Cells of a file, in order.

    Raises:
        InvalidRequest: The file cannot be read, or has no scored cell besides those to which constants are fitted.
        UnknownName: The memory of a cell has an unknown unit.
    """
    cells = load_cells(path)
    for cell in cells:
        _ = cell.measured.peak_bytes
    fitted = {one.cell for one in constants()}
    if not any(cell.scored and cell.id not in fitted for cell in cells):
        raise InvalidRequest(
            "cells",
            str(path),
            rule="at least one measured cell of high or medium quality to which no constant is fitted",
            legal="suite/papers/public/cells.yaml",
        )
    return cells


def score_cells(cells: Sequence[PublicCell], folder: Path, *, varied: bool = True) -> League:
    """Score cells, and write league.json and league.csv to `folder`. All public cells take about a minute on two cores.

    Without `varied`, the files have no ranges over unknown settings and no spreads of fitted constants.

    Raises:
        OSError: A file cannot be written.
        InvalidRequest: A file would lie outside `folder`.
    """
    league = make_league(cells, varied=varied)
    write_answers(league.answers, folder, league.ranges)
    league_content(league).write(folder)
    return league


def league_content(league: League) -> LeagueFile:
    """The league as content of league.json, without the answers on single cells."""
    return LeagueFile(
        score=_totals(league.score),
        blind=league.blind,
        known=league.known,
        left_out=league.left_out,
        nulls=dict(league.nulls),
        groups=league.groups,
        constants=_constants(league),
        sweeps=league.sweeps,
        ranges=league.range_groups,
        memory=league.memory,
        schedules=league.schedules,
    )


def _constants(league: League) -> tuple[LeagueConstant, ...]:
    """Fitted constants with their spread; without other cells, a constant stands alone."""
    spreads = {(spread.family, spread.generation): spread for spread in league.spreads}
    rows = []
    for one in league.constants:
        spread = spreads.get((one.family, one.generation))
        low, high = (spread.low, spread.high) if spread else (one.share, one.share)
        best, worst = (spread.best, spread.worst) if spread else (league.score.mean, league.score.mean)
        turning = spread.turning if spread else 0
        rows.append(LeagueConstant(one.family, one.generation, one.share, one.cell, low, high, best, worst, turning))
    return tuple(rows)


def _totals(score: LeagueScore) -> LeagueTotals:
    oom, fit = (score.found_oom, score.oom), (score.found_fit, score.fit)
    return LeagueTotals(score.mean, score.percentile, score.orders, score.pairs, oom, fit, len(score.refused))


def write_answers(answers: Sequence[CellAnswer], folder: Path, ranges: Mapping[str, AnswerRange]) -> Path:
    """Write `folder`/league.csv: a row for each cell, with settings that its source does not tell. Returns its path.

    The error is simulated over measured throughput, minus 1. A cell without a measurement has none; a refused cell
    counts as 1.

    Args:
        ranges: Range of the answer by id. A cell without one has empty columns.

    Raises:
        OSError: The file cannot be written.
        InvalidRequest: The file would lie outside `folder`.
    """
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    rows.writerows([inert(cell) for cell in _row(one, ranges.get(one.cell.id))] for one in answers)
    return write_atomically(folder / ANSWERS, text.getvalue().encode("utf-8", "replace"), inside=folder)


def _row(answer: CellAnswer, found: AnswerRange | None) -> tuple[str, ...]:
    cell = answer.cell
    return (
        cell.id,
        cell.group,
        cell.family,
        cell.machine.gpu,
        _number(cell.tokens_per_second),
        _number(answer.tokens_per_second),
        "" if cell.tokens_per_second is None else f"{answer.error:.4f}",
        _number(found.low if found else None),
        _number(found.high if found else None),
        "" if answer.fits is None else "yes" if answer.fits else "no",
        cell.status,
        cell.quality,
        "yes" if cell.known else "no",
        " ".join(assumed(cell)),
        schedule_name(cell),
        answer.refusal,
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def schedule_name(cell: PublicCell) -> str:
    """Schedule of conf/schedule that simulates a cell; empty without a pipeline, and for an unknown schedule."""
    name = cell.schedule or "1f1b"
    return SCHEDULES[name].name if cell.pp > 1 and name in SCHEDULES else ""
