"""The league: the simulator's errors on public cells, next to null models and to what it does without each family.

`League` holds every figure of the page's section. It is a function of the cells and of the constants; nothing is fitted
when it is made, except that leaving a family out fits the constants again without its cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from suite.config.typed_yaml import read_typed
from suite.papers.public.adapter import plausible_setups
from suite.papers.public.calibrate import (
    FittedConstant,
    Shares,
    fit_all,
    pair_of,
    share_of,
    shares,
    throughput,
    with_share,
)
from suite.papers.public.cells import PublicCell
from suite.papers.public.layout_choices import sweep_choices
from suite.papers.public.league_file import LeagueGroup, LeagueSweep, LeagueTotals
from suite.papers.public.null_models import NULL_MODELS, null_errors
from suite.papers.public.score import REFUSED, CellAnswer, LeagueScore, answer, score
from suite.papers.public.spread import ConstantSpread, constant_spreads
from suite.papers.public.variants import CHOSEN, ModelVariant, best_without, recorded_variants
from suite.simulate.operations.step import simulate_step


@dataclass(frozen=True, slots=True)
class League:
    """Everything that the league's section shows.

    Attributes:
        left_out: Mean error over groups, each with constants fitted without its family.
        known: Mean error over groups of the cells whose decisive settings are all told.
        nulls: Mean error over groups of each null model.
        spreads: What other cells would have led to, for each constant.
        sweeps: Whether the simulator finds the quickest layouts of sweeps.
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


def constants() -> tuple[FittedConstant, ...]:
    """Fitted constants of constants.yaml."""
    return tuple(read_typed(list[FittedConstant], Path(__file__).with_name("constants.yaml")))


def blind_score() -> LeagueTotals:
    """The committed score of the first comparison."""
    blind: LeagueTotals = read_typed(LeagueTotals, Path(__file__).with_name("blind.yaml"))
    return blind


def answers(cells: Sequence[PublicCell], fitted: Shares, variant: ModelVariant = CHOSEN) -> tuple[CellAnswer, ...]:
    """Point answers on all cells."""
    return tuple(answer(cell, fitted, variant) for cell in cells)


def answer_range(cell: PublicCell, fitted: Shares) -> tuple[float, float]:
    """Least and largest throughput over the plausible values of unknown settings, one changed at a time."""
    share = share_of(pair_of(cell), fitted)
    values = [throughput(cell, share) or 0.0]
    values += [simulate_step(with_share(setup, share)).tokens_per_second for _, setup in plausible_setups(cell)]
    return min(values), max(values)


def family_errors(cells: Sequence[PublicCell]) -> dict[str, float]:
    """Error of each scored cell when its family is left out of everything chosen or fitted, by id."""
    errors: dict[str, float] = {}
    for family in dict.fromkeys(cell.family for cell in cells):
        others = [cell for cell in cells if cell.family != family]
        members = [cell for cell in cells if cell.family == family and cell.scored]
        if not members or not any(cell.scored for cell in others):
            continue
        variant = best_without({cell.group for cell in cells if cell.family == family}, recorded_variants())
        fitted = shares(fit_all(others, variant))
        errors |= {one.cell.id: one.error for one in answers(members, fitted, variant)}
    return errors


def measure_variants(cells: Sequence[PublicCell], variants: Sequence[ModelVariant]) -> tuple[ModelVariant, ...]:
    """Variants with the mean error of each group, after all constants are fitted again."""
    measured = []
    for variant in variants:
        fitted = fit_all(cells, variant)
        found = answers([cell for cell in cells if cell.scored], shares(fitted), variant)
        total = score(found, frozenset(one.cell for one in fitted))
        measured.append(replace(variant, groups={group.group: round(group.mean, 4) for group in total.groups}))
    return tuple(measured)


def _mean_size(errors: Mapping[str, float], members: Sequence[PublicCell]) -> float:
    """Mean absolute error on cells. A cell without an error is refused."""
    return fmean(abs(errors.get(cell.id, REFUSED)) for cell in members)


def make_league(cells: Sequence[PublicCell]) -> League:
    """Score the cells of a file."""
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
    return League(
        total,
        blind_score(),
        known.mean if known else total.mean,
        fmean(group.left_out for group in groups),
        {name: fmean(means.values()) for name, means in null_means.items()},
        groups,
        fitted,
        constant_spreads(cells, fitted),
        sweep_choices(found),
        found,
    )
