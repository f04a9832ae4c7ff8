"""Command `suite league`: score the simulator on public measurements of others.

    suite league
    suite league cells=FILE reports=FOLDER

The command prints the errors of each group and the totals, and writes league.json, which the page of the folder shows,
and league.csv with a row for each cell. A cell that the simulator refuses counts as an error of 100 %; the exit status
then is 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from suite.cli import Arguments, command
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.files import check_folder
from suite.core.words import format_count

if TYPE_CHECKING:
    from suite.papers.public.league import League


def group_lines(league: League) -> Iterator[str]:
    """A heading, and a line for each group with its errors in percent."""
    width = max(len("group"), *(len(group.group) for group in league.groups))
    heading = "  ".join(f"{name:>8}" for name in ("cells", "mean", "largest", "bias", "null"))
    yield f"{'group':<{width}}  {heading}  without its family"
    for group in league.groups:
        shares = (f"{100 * group.mean:.1f}", f"{100 * group.largest:.1f}", f"{100 * group.bias:+.1f}")
        numbers = (*shares, f"{100 * group.null:.1f}")
        errors = "  ".join((f"{group.cells:>8}", *(f"{number:>6} %" for number in numbers)))
        yield f"{group.group:<{width}}  {errors}  {100 * group.left_out:.1f} %"


def total_lines(league: League) -> Iterator[str]:
    """The totals over groups and cells."""
    from suite.papers.public.layout_choices import median_loss

    score, blind = league.score, league.blind
    yield f"mean over {format_count(league.groups, 'group')}: {100 * score.mean:.1f} %"
    yield f"90th percentile over cells: {100 * score.percentile:.1f} %"
    yield f"order of {format_count(score.pairs, 'pair')} of a group: {100 * score.orders:.1f} % right"
    yield f"rows that did not fit: {score.found_oom} of {score.oom} found"
    yield f"rows that ran: {score.found_fit} of {score.fit} found to fit"
    yield f"mean with all decisive settings told: {100 * league.known:.1f} %"
    yield f"mean with each family left out of the fit: {100 * league.left_out:.1f} %"
    yield f"blind, before anything was fitted: {100 * blind.mean:.1f} %"
    for name, error in league.nulls.items():
        yield f"null model, {name}: {100 * error:.1f} %"
    if league.spreads:
        best, worst = min(s.best for s in league.spreads), max(s.worst for s in league.spreads)
        yield f"mean with one constant fitted to another cell of its group: {100 * best:.1f} to {100 * worst:.1f} %"
    if league.sweeps:
        found, lost = sum(sweep.found for sweep in league.sweeps), 100 * median_loss(league.sweeps)
        yield (
            f"sweeps of layouts: the quickest is among the first three in {found} of {len(league.sweeps)};"
            f" the first choice loses {lost:.1f} % in the median"
        )
    yield from extra_lines(league)
    yield from (f"refused: {one.cell.id}: {one.refusal}" for one in league.answers if one.refusal)


def extra_lines(league: League) -> Iterator[str]:
    """Totals of ranges, of memory, and of steps from printed pass times, each where the cells have any."""
    if groups := league.range_groups:
        cells, inside = sum(group.cells for group in groups), sum(group.inside for group in groups)
        yield f"measured inside the range over unknown settings: {inside} of {format_count(cells, 'cell')}"
    if means := [group.mean for group in league.memory if group.mean is not None]:
        yield f"memory where it is printed, mean over {format_count(means, 'group')}: {100 * fmean(means):.1f} %"
    if league.schedules:
        cells = sum(one.cells for one in league.schedules)
        mean = sum(one.mean * one.cells for one in league.schedules) / cells
        yield f"schedules with printed pass times, mean over {format_count(cells, 'cell')}: {100 * mean:.1f} %"


@command(
    "Score the simulator on public measurements of training steps.",
    "reports=FOLDER",
    keys={
        "cells": "FILE       cells to score, as suite/papers/public/cells.yaml (default: that file)",
        "reports": "FOLDER   folder of league.json and league.csv (default: reports)",
    },
)
def main(arguments: Arguments) -> int:
    from suite.papers.public.cells import CELLS
    from suite.papers.public.league_file import ANSWERS, LEAGUE
    from suite.papers.public.write_league import scorable_cells, score_cells

    path = arguments.value("cells", str(CELLS))
    if not path:
        raise InvalidRequest("cells=", rule="a file of cells", legal=f"cells={CELLS.name}")
    folder = check_folder(arguments.reports, "reports")
    cells = scorable_cells(Path(path))
    print(f"scoring {format_count(cells, 'cell')}; all public cells take about a minute on two cores", flush=True)
    league = score_cells(cells, folder)
    print("\n".join((*group_lines(league), *total_lines(league))))
    print(f"{folder / LEAGUE}, {folder / ANSWERS}")
    refused = len(league.score.refused)
    if refused == len(league.answers):
        return Exit.NOTHING
    return Exit.SOME_FAILED if refused else Exit.OK
