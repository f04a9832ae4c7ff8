"""The league: the simulator's errors on public cells, next to null models and to what it does without each family.

`League` holds every figure of the page's section. It is a function of the cells and of the constants; nothing is fitted
when it is made, except that leaving a family out fits the constants again without its cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from suite.claims.on_cores import map_on_cores
from suite.config.typed_yaml import read_typed
from suite.papers.public.calibrate import (
    FittedConstant,
    Shares,
    fit_all,
    shares,
)
from suite.papers.public.cells import PublicCell, load_cells
from suite.papers.public.layout_choices import sweep_choices
from suite.papers.public.league_file import (
    LeagueGroup,
    LeagueMemory,
    LeagueRange,
    LeagueSchedule,
    LeagueSweep,
    LeagueTotals,
)
from suite.papers.public.memory_errors import memory_groups
from suite.papers.public.null_models import NULL_MODELS, null_errors
from suite.papers.public.ranges import AnswerRange, answer_ranges, range_groups
from suite.papers.public.schedule_steps import schedule_groups
from suite.papers.public.score import REFUSED, CellAnswer, LeagueScore, answer, score
from suite.papers.public.spread import ConstantSpread, constant_spreads
from suite.papers.public.variants import CHOSEN, ModelVariant, best_without, recorded_variants


@dataclass(frozen=True, slots=True)
class League:
    """Everything that the league's section shows.

    Attributes:
        left_out: Mean error over groups, each with constants fitted without its family.
        known: Mean error over groups of the cells whose decisive settings are all told.
        nulls: Mean error over groups of each null model.
        spreads: What other cells would have led to, for each constant.
        sweeps: Whether the simulator finds the quickest layouts of sweeps.
        ranges: Range of the answer by id, for the cells with unknown settings.
        range_groups: Ranges and measurements by group.
        memory: Errors of memory by group.
        schedules: Errors with printed pass times in place of the cost model, by group and schedule.
    """

    score: LeagueScore
    blind: LeagueTotals
    known: float
    left_out: float
    nulls: Mapping[str, float]
    groups: tuple[LeagueGroup, ...]
    constants: tuple[FittedConstant, ...]
    spreads: tuple[ConstantSpread, ...]
    sweeps: tuple[LeagueSweep, ...]
    answers: tuple[CellAnswer, ...]
    ranges: Mapping[str, AnswerRange]
    range_groups: tuple[LeagueRange, ...]
    memory: tuple[LeagueMemory, ...]
    schedules: tuple[LeagueSchedule, ...]


def constants() -> tuple[FittedConstant, ...]:
    """Fitted constants of constants.yaml."""
    return tuple(read_typed(list[FittedConstant], Path(__file__).with_name("constants.yaml")))


def blind_score() -> LeagueTotals:
    """The committed score of the first comparison."""
    blind: LeagueTotals = read_typed(LeagueTotals, Path(__file__).with_name("blind.yaml"))
    return blind


def answers(cells: Sequence[PublicCell], fitted: Shares, variant: ModelVariant = CHOSEN) -> tuple[CellAnswer, ...]:
    """Point answers on all cells."""
    return tuple(map_on_cores(partial(answer, fitted=fitted, variant=variant), cells))


def family_errors(cells: Sequence[PublicCell]) -> dict[str, float]:
    """Error of each scored cell when its family is left out of everything chosen or fitted, by id."""
    families = list(dict.fromkeys(cell.family for cell in cells if cell.scored))
    found = map_on_cores(partial(_errors_without, cells=cells), families, few=1)
    return {cell: error for errors in found for cell, error in errors.items()}


def _errors_without(family: str, cells: Sequence[PublicCell]) -> dict[str, float]:
    """Error of each scored cell of a family without it. A file of one family is fitted to the public cells."""
    others = [cell for cell in cells if cell.family != family]
    others = others if any(cell.scored for cell in others) else [c for c in load_cells() if c.family != family]
    variant = best_without({cell.group for cell in cells if cell.family == family}, recorded_variants())
    fitted = shares(fit_all(others, variant))
    members = [cell for cell in cells if cell.family == family and cell.scored]
    return {cell.id: answer(cell, fitted, variant).error for cell in members}


def _mean_size(errors: Mapping[str, float], members: Sequence[PublicCell]) -> float:
    """Mean absolute error on cells. A cell without an error is refused."""
    return fmean(abs(errors.get(cell.id, REFUSED)) for cell in members)


def make_league(cells: Sequence[PublicCell], *, varied: bool = True) -> League:
    """Score the cells of a file.

    Args:
        cells: The cells.
        varied: Whether unknown settings and fitted constants are varied too, which takes twice as long as all else.
    """
    fitted = constants()
    left_out = frozenset(one.cell for one in fitted)
    found = answers(cells, shares(fitted))
    total = score(found, left_out)
    told = [one for one in found if one.cell.known and one.cell.scored]
    known = score(told, left_out) if told else None
    without = family_errors(cells)
    nulls = {name: null_errors(cells, model) for name, model in NULL_MODELS.items()}
    scored = {
        group.group: [c for c in cells if c.group == group.group and c.scored and c.id not in left_out]
        for group in total.groups
    }
    null_means = {
        name: {group: _mean_size(errors, members) for group, members in scored.items()}
        for name, errors in nulls.items()
    }
    groups = tuple(
        LeagueGroup(
            group.group,
            scored[group.group][0].family,
            scored[group.group][0].machine.gpu,
            group.cells,
            group.mean,
            group.largest,
            group.bias,
            min(means[group.group] for means in null_means.values()),
            _mean_size(without, scored[group.group]),
        )
        for group in total.groups
    )
    ranges = answer_ranges(found, shares(fitted)) if varied else {}
    return League(
        total,
        blind_score(),
        known.mean if known else total.mean,
        fmean(group.left_out for group in groups),
        {name: fmean(means.values()) for name, means in null_means.items()},
        groups,
        fitted,
        constant_spreads(cells, fitted) if varied else (),
        sweep_choices(found),
        found,
        ranges,
        range_groups(found, ranges, left_out),
        memory_groups(found),
        schedule_groups(found),
    )
