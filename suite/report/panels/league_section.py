"""Section of the page on the simulator's errors against public measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from suite.papers.public.league_file import (
    ANSWERS,
    LeagueFile,
    LeagueGroup,
    LeagueMemory,
    LeagueRange,
    LeagueSchedule,
    LeagueTotals,
    PublishedError,
)
from suite.report.page import page_budget
from suite.report.plots import error_bars
from suite.report.plots.plots import Picture
from suite.report.tables.record_tables import NONE, Cell, Column, Table, number, percent


@dataclass(frozen=True, slots=True)
class LeagueSection:
    """Content of the section.

    Attributes:
        cells: Scored cells.
        groups: Groups with a scored cell.
        picture: A row per group.
        tables: Totals, groups, ranges of answers, memory, printed pass times, constants, sweeps of layouts, and other
            simulators.
        answers: Name of the file with a row per cell; empty where the folder has none.
    """

    cells: int
    groups: int
    picture: Picture
    tables: tuple[Table, ...]
    answers: str


def league_section(league: LeagueFile, others: Sequence[PublishedError], has_answers: bool) -> LeagueSection:
    """The section of a league.

    Args:
        league: Content of league.json.
        others: Published errors of other simulators.
        has_answers: Whether league.csv is next to the page.
    """
    groups = sorted(league.groups, key=lambda group: (-group.mean, group.group))
    shown = groups[: page_budget.GROUPS]
    said = "" if len(shown) == len(groups) else f"{len(shown)} of {len(groups)} groups are shown, the worst first."
    return LeagueSection(
        sum(group.cells for group in groups),
        len(groups),
        _picture(shown, said),
        (
            _totals(league),
            _groups(shown, said),
            *([_ranges(league.ranges)] if league.ranges else []),
            *([_memory(league.memory)] if league.memory else []),
            *([_schedules(league.schedules)] if league.schedules else []),
            _constants(league),
            *([_sweeps(league)] if league.sweeps else []),
            _others(others, {group.group: group for group in groups}),
        ),
        ANSWERS if has_answers else "",
    )


def _picture(groups: Sequence[LeagueGroup], said: str) -> Picture:
    rows = [
        error_bars.ErrorRow(group.group, group.cells, 100 * group.mean, 100 * group.bias, 100 * group.null)
        for group in groups
    ]
    title = "Error of the simulator by group of public measurements, the largest mean first."
    caption = f"{title} Numbers beyond {error_bars.MOST:g} % stand next to an arrow. {said}".rstrip()
    legend = (
        (error_bars.BAR, "bar: mean absolute error"),
        (error_bars.DOT, "dot: median error, with its sign"),
        (error_bars.NULL, "tick: mean absolute error of the best null model"),
    )
    return Picture(caption, Markup(error_bars.error_bars(rows, title)), legend)


_TOTALS = (
    Column("comparison", numeric=False),
    Column("mean error", detail="over groups"),
    Column("90th percentile", detail="over cells"),
    Column("right orders", detail="of pairs in a group"),
    Column("predicted not to fit", detail="of rows that did not"),
    Column("predicted to fit", detail="of rows that ran"),
    Column("refused", detail="cells without an answer"),
)


def _totals(league: LeagueFile) -> Table:
    means = (
        ("fitted, cells with all decisive settings told", league.known),
        ("fitted without the family of each group", league.left_out),
        *((f"null model: {name}", error) for name, error in league.nulls.items()),
    )
    rows = [_full("fitted, without the cells of the fit", league.score), _full("blind, nothing fitted", league.blind)]
    empty = (Cell(NONE, tone="faint"),) * (len(_TOTALS) - 2)
    rows += [(Cell(name), _percent(error), *empty) for name, error in means]
    return Table("Totals", _TOTALS, tuple(rows))


def _full(name: str, totals: LeagueTotals) -> tuple[Cell, ...]:
    return (
        Cell(name),
        _percent(totals.mean),
        _percent(totals.percentile_90),
        number(totals.orders, percent(100 * totals.orders), f"of {totals.pairs}"),
        _share(totals.oom),
        _share(totals.fit),
        number(totals.refused, str(totals.refused)),
    )


def _percent(share: float, detail: str = "", tone: str = "") -> Cell:
    return number(share, percent(100 * share), detail, tone)


def _share(counts: tuple[int, int]) -> Cell:
    found, every = counts
    return Cell(NONE, tone="faint") if every == 0 else number(found / every, f"{found} of {every}")


_GROUPS = (
    Column("group", numeric=False, detail="a table or series of one source"),
    Column("device", numeric=False),
    Column("cells"),
    Column("mean error"),
    Column("largest"),
    Column("median", detail="with its sign"),
    Column("null model", detail="mean error of the best"),
    Column("without its family", detail="mean error"),
    Column("family", numeric=False, detail="software of the source"),
)


def _groups(groups: Sequence[LeagueGroup], said: str) -> Table:
    rows = tuple(
        (
            Cell(group.group),
            Cell(group.device),
            number(group.cells, str(group.cells)),
            _percent(group.mean, *(("no better than null", "bad") if group.mean >= group.null else ())),
            _percent(group.largest),
            _signed(group.bias),
            _percent(group.null),
            _percent(group.left_out),
            Cell(group.family),
        )
        for group in groups
    )
    return Table("Groups, the largest error first", _GROUPS, rows, said=said)


_RANGES = (
    Column("group", numeric=False),
    Column("cells", detail="with unknown settings"),
    Column("measured inside", detail="the range of the answer"),
    Column("least answer", detail="median error"),
    Column("largest answer", detail="median error"),
    Column("distance", detail="of the measured value, mean"),
)


def _ranges(ranges: Sequence[LeagueRange]) -> Table:
    """Ranges over plausible values of unknown settings, the total first, then the group with most cells outside."""
    ordered = sorted(ranges, key=lambda one: (one.inside - one.cells, one.group))
    shown = ordered[: page_budget.GROUPS]
    cells, inside = sum(one.cells for one in ranges), sum(one.inside for one in ranges)
    empty = (Cell(NONE, tone="faint"),) * 2
    mean = sum(one.distance for one in ranges) / len(ranges)
    rows = [(Cell("all groups"), number(cells, str(cells)), _share((inside, cells)), *empty, _percent(mean))]
    rows += [
        (
            *(Cell(one.group), number(one.cells, str(one.cells)), _share((one.inside, one.cells))),
            *(_signed(one.low), _signed(one.high), _percent(one.distance)),
        )
        for one in shown
    ]
    return Table(
        "Ranges over plausible values of unknown settings",
        _RANGES,
        tuple(rows),
        said="A range changes one setting at a time that the source does not give. Its distance is 0 for a measured"
        f" value inside, and is averaged over groups in the first row. {_cut(shown, ordered)}".rstrip(),
    )


def _signed(share: float) -> Cell:
    return number(share, f"{100 * share:+.1f} %")


def _cut(shown: Sequence[object], every: Sequence[object]) -> str:
    return "" if len(shown) == len(every) else f"{len(shown)} of {len(every)} groups are shown."


_MEMORY = (
    Column("group", numeric=False),
    Column("cells", detail="with printed memory"),
    Column("mean error", detail="of the bytes of the fullest device"),
    Column("largest"),
    Column("median", detail="with its sign"),
    Column("predicted not to fit", detail="of rows that did not"),
    Column("predicted to fit", detail="of rows that ran"),
)


def _memory(groups: Sequence[LeagueMemory]) -> Table:
    """Errors of memory, the mean over groups first, then the largest error."""
    ordered = sorted(groups, key=lambda one: (-(one.mean or 0.0), one.group))
    shown = ordered[: page_budget.GROUPS]
    none = Cell(NONE, tone="faint")
    printed = [(one.mean, one.largest or 0.0) for one in groups if one.mean is not None]
    cells = sum(one.cells for one in groups)
    total = (
        _percent(sum(mean for mean, _ in printed) / len(printed)) if printed else none,
        _percent(max(largest for _, largest in printed)) if printed else none,
    )
    oom, fit = ((sum(a for a, _ in pairs), sum(b for _, b in pairs)) for pairs in _confusions(groups))
    rows = [(Cell("these groups"), number(cells, str(cells)), *total, none, _share(oom), _share(fit))]
    for one in shown:
        errors = (none,) * 3
        if one.mean is not None and one.largest is not None and one.bias is not None:
            errors = (_percent(one.mean), _percent(one.largest), _signed(one.bias))
        counts = (_share(one.oom), _share(one.fit))
        rows.append((Cell(one.group), number(one.cells, str(one.cells)), *errors, *counts))
    return Table("Memory of the fullest device", _MEMORY, tuple(rows), said=_cut(shown, ordered))


def _confusions(groups: Sequence[LeagueMemory]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    return [one.oom for one in groups], [one.fit for one in groups]


_SCHEDULES = (
    Column("group", numeric=False),
    Column("schedule", numeric=False),
    Column("cells"),
    Column("mean error", detail="with printed pass times"),
    Column("largest"),
    Column("median", detail="with its sign"),
    Column("mean error", detail="of the cost model"),
)


def _schedules(schedules: Sequence[LeagueSchedule]) -> Table:
    rows = tuple(
        (
            *(Cell(one.group), Cell(one.schedule), number(one.cells, str(one.cells)), _percent(one.mean)),
            *(_percent(one.largest), _signed(one.bias), _percent(one.modelled)),
        )
        for one in schedules
    )
    return Table(
        "Schedules with printed pass times",
        _SCHEDULES,
        rows,
        said="Each pass and each message takes the time that the source prints. These times hold no optimizer step and"
        " no reduction, so the simulated throughput is a little too high.",
    )


_CONSTANTS = (
    Column("family of devices", numeric=False),
    Column("software generation", numeric=False),
    Column("constant", detail="large matrix products over the best published one"),
    Column("fitted to", numeric=False),
    Column("constant on other cells", detail="of the same group", numeric=False),
    Column("mean error with these", detail="over groups", numeric=False),
    Column("cells that cross 10 %", detail="between the two constants"),
)


def _constants(league: LeagueFile) -> Table:
    rows = []
    for one in league.constants:
        span = f"{100 * one.low:.0f} to {100 * one.high:.0f} %"
        means = f"{100 * one.best:.1f} to {100 * one.worst:.1f} %"
        fixed = (Cell(one.family), Cell(one.generation), _percent(one.share), Cell(one.cell))
        rows.append((*fixed, Cell(span), Cell(means), Cell(str(one.turning))))
    return Table("Fitted constants", _CONSTANTS, tuple(rows))


_SWEEPS = (
    Column("group", numeric=False),
    Column("layouts"),
    Column("place of the measured best", detail="among the simulator's choices"),
    Column("lost by the first choice"),
    Column("first choice", numeric=False),
    Column("measured best", numeric=False),
)


def _sweeps(league: LeagueFile) -> Table:
    rows = tuple(
        (
            *(Cell(one.group), Cell(str(one.cells)), Cell(str(one.place) if one.place else "said not to fit")),
            *(_percent(one.lost), Cell(one.first), Cell(one.best)),
        )
        for one in league.sweeps
    )
    return Table("Sweeps of layouts", _SWEEPS, rows)


_OTHERS = (
    Column("simulator", numeric=False),
    Column("measurements", numeric=False),
    Column("mean error"),
    Column("largest"),
    Column("ours: mean error", detail="on the same group"),
    Column("ours: largest"),
    Column("note", numeric=False),
    Column("source", numeric=False),
)


def _others(others: Sequence[PublishedError], groups: dict[str, LeagueGroup]) -> Table:
    none = Cell(NONE, tone="faint")
    rows = []
    for one in others:
        ours = groups.get(one.group)
        rows.append(
            (
                Cell(one.name),
                Cell(one.cells),
                number(one.mean, percent(one.mean, 2)),
                none if one.largest is None else number(one.largest, percent(one.largest, 2)),
                number(ours.mean, percent(100 * ours.mean, 2), f"{ours.cells} cells") if ours else none,
                number(ours.largest, percent(100 * ours.largest, 2)) if ours else none,
                Cell(one.note or NONE),
                Cell(one.source),
            )
        )
    return Table("Published errors of other simulators", _OTHERS, tuple(rows))
