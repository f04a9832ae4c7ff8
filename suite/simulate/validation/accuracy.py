"""Accuracy of the simulator on public measurements: a frame with a row per measured step, and one with a row per
fitted constant.

Every table of the page and of `suite accuracy` is grouped from the two frames (suite.simulate.validation.tables).
Nothing is fitted when they are made, except that leaving a family out fits the constants again without its cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import pandas as pd

from suite.claims.on_cores import map_on_cores
from suite.core.errors import InvalidRequest
from suite.core.files import write_atomically
from suite.report.files import inert
from suite.simulate.operations.products import Shares, share_of
from suite.simulate.operations.setup import TrainingSetup
from suite.simulate.validation.adapter import SCHEDULES, assumed, scored_setups
from suite.simulate.validation.answers import CellAnswer, answer, answer_range, memory_error
from suite.simulate.validation.calibrate import (
    HIGHEST,
    LOWEST,
    candidates,
    constants,
    fit_all,
    pair_of,
    shares,
    throughput,
)
from suite.simulate.validation.cells import PublicCell, load_cells
from suite.simulate.validation.schedule_steps import scheduled_error
from suite.simulate.validation.tables import ACCURACY, CONSTANTS, NULL

BACKWARD_PASSES = 3  # passes of a training step: a forward pass, and a backward pass of twice its flops
PROBES = (0.45, 0.9)  # shares at which each cell is simulated for the spread of a constant
TURNS = 0.1  # error at which a cell turns from near to far


class Accuracy(NamedTuple):
    """The rows of the measured steps (`accuracy.csv`) and of the fitted constants (`accuracy_constants.csv`)."""

    steps: pd.DataFrame
    constants: pd.DataFrame

    def write(self, folder: Path) -> None:
        """Write both files. Raises OSError where that fails, and InvalidRequest for a file outside `folder`."""
        for frame, name in zip(self, (ACCURACY, CONSTANTS), strict=True):
            text = frame.map(lambda value: inert(value) if isinstance(value, str) else value)
            lines = text.to_csv(index=False, float_format="%.6g", lineterminator="\n")
            write_atomically(folder / name, lines.encode("utf-8", "replace"), inside=folder)


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
            legal="suite/simulate/validation/cells.yaml",
        )
    return cells


def score(cells: Sequence[PublicCell], *, varied: bool = True) -> Accuracy:
    """Score cells. All public ones take about a minute on two cores.

    Args:
        cells: The cells.
        varied: Whether unknown settings and fitted constants are varied too, which takes twice as long as all else.
    """
    own = constants()
    fitted = shares(own)
    found = answers(cells, fitted)
    ranges = map_on_cores(partial(answer_range, fitted=fitted), found) if varied else [None] * len(found)
    nulls = {f"{NULL}{name}": null_errors(cells, model) for name, model in NULL_MODELS.items()}
    without = family_errors(cells)
    fits = {one.cell for one in own}
    rows = [
        {
            **{"id": cell.id, "group": cell.group, "family": cell.family, "device": cell.machine.gpu},
            **{"quality": cell.quality, "status": cell.status, "known": cell.known},
            **{"scored": cell.scored and cell.id not in fits, "assumed": " ".join(assumed(cell))},
            **{"schedule": schedule_name(cell), "sweep": _sweep(cell)},
            **{"measured": cell.tokens_per_second, "simulated": one.tokens_per_second},
            "error": None if cell.tokens_per_second is None else one.error,
            **{name: errors.get(cell.id) for name, errors in nulls.items()},
            "without its family": without.get(cell.id),
            **dict(zip(("low", "high"), ends or (None, None), strict=True)),
            "memory error": memory_error(one),
            "fits": None if one.fits is None else float(one.fits),
            "with printed times": scheduled_error(cell),
            "refusal": one.refusal,
        }
        for one, ends in zip(found, ranges, strict=True)
        for cell in (one.cell,)
    ]
    return Accuracy(pd.DataFrame(rows), constant_spreads(cells) if varied else pd.DataFrame(own))


def answers(cells: Sequence[PublicCell], fitted: Shares) -> list[CellAnswer]:
    """Point answers on all cells."""
    return map_on_cores(partial(answer, fitted=fitted), cells)


def schedule_name(cell: PublicCell) -> str:
    """Schedule of conf/schedule that simulates a cell; empty without a pipeline, and for an unknown schedule."""
    name = cell.schedule or "1f1b"
    return SCHEDULES[name].name if cell.pp > 1 and name in SCHEDULES else ""


def _sweep(cell: PublicCell) -> str:
    """Name of the sweep of layouts that a cell belongs to: equal group, model, devices, sequence and batch."""
    if not cell.scored or {"layout", "memory"}.isdisjoint(cell.kind):
        return ""
    return " ".join(map(str, (cell.group, cell.model, cell.gpus, cell.seq, cell.global_batch)))


# -- without a family of sources -------------------------------------------------------------------------------------


def family_errors(cells: Sequence[PublicCell]) -> dict[str, float]:
    """Error of each scored cell when every constant is fitted without its family, by id."""
    families = list(dict.fromkeys(cell.family for cell in cells if cell.scored))
    found = map_on_cores(partial(_errors_without, cells=cells), families, few=1)
    return {cell: error for errors in found for cell, error in errors.items()}


def _errors_without(family: str, cells: Sequence[PublicCell]) -> dict[str, float]:
    """Error of each scored cell of a family without it. A file of one family is fitted to the public cells."""
    others = [cell for cell in cells if cell.family != family]
    others = others if any(cell.scored for cell in others) else [c for c in load_cells() if c.family != family]
    fitted = shares(fit_all(others))
    return {cell.id: answer(cell, fitted).error for cell in cells if cell.family == family and cell.scored}


# -- null models -----------------------------------------------------------------------------------------------------


def one_utilization(setup: TrainingSetup) -> float:
    """Tokens per second and device at the peak of the data sheet: every step reaches one share of it."""
    per_token = BACKWARD_PASSES * setup.model.flops / setup.model.sequence
    return setup.machine.peak_of(setup.precision) / per_token


def bubble_only(setup: TrainingSetup) -> float:
    """Every stage reaches one share of the peak, and a pipeline is idle while it fills and drains: m / (m + p - 1)."""
    microbatches = setup.microbatches
    return one_utilization(setup) * microbatches / (microbatches + setup.pipeline - 1)


NULL_MODELS: Mapping[str, Callable[[TrainingSetup], float]] = {  # what a forecast without a simulator would say
    "one share of peak per device": one_utilization,
    "m/(m+p-1) times one constant": bubble_only,
}


def null_errors(cells: Sequence[PublicCell], model: Callable[[TrainingSetup], float]) -> dict[str, float]:
    """Relative error of throughput on each scored cell that the simulator does not refuse, by id.

    A null model has one constant per device and precision, which is the median over the cells of all other groups; of
    the public cells where a file has one group.
    """
    scored = _shares(cells, model)
    known = scored if len({cell.group for cell, *_ in scored}) > 1 else _shares(load_cells(), model)
    errors = {}
    for cell, device, share in scored:
        others = [(d, s) for other, d, s in known if other.group != cell.group]
        alike = [s for d, s in others if d == device]
        errors[cell.id] = median(alike or [s for _, s in others]) / share - 1
    return errors


def _shares(
    cells: Sequence[PublicCell], model: Callable[[TrainingSetup], float]
) -> list[tuple[PublicCell, tuple[str, str], float]]:
    """Each scored cell with its device and precision, and with its measured throughput over the model's."""
    return [
        (cell, (setup.machine.name, setup.precision), (cell.tokens_per_second or 0.0) / model(setup))
        for cell, setup in scored_setups(cells)
    ]


# -- spread of the fitted constants ----------------------------------------------------------------------------------


class StepLine(NamedTuple):
    """Seconds of a step per token as a + b / share, so that two simulations of a cell serve all shares."""

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


def constant_spreads(cells: Sequence[PublicCell]) -> pd.DataFrame:
    """The fitted constants, and what other cells of the same group would have given: the least and largest constant
    (`low`, `high`), the least and largest mean error over groups with them (`best`, `worst`), and the cells whose error
    crosses 10 % between the two constants (`turning`)."""
    lines, fitted, spreads = step_lines(cells), shares(constants()), {}
    measured = [cell for cell in cells if cell.id in lines and cell.tokens_per_second]

    def error(cell: PublicCell, share: float) -> float:
        return abs(lines[cell.id].throughput(share) / (cell.tokens_per_second or 1.0) - 1)

    def mean_error(own: Shares, left_out: str) -> float:
        groups: dict[str, list[float]] = {}
        for cell in measured:
            if cell.id != left_out:
                groups.setdefault(cell.group, []).append(error(cell, share_of(pair_of(cell), own)))
        return fmean(fmean(errors) for errors in groups.values())

    for pair, members in candidates(cells).items():
        given = {c.id: lines[c.id].share(c.tokens_per_second or 1.0) for c in members if c.id in lines}
        scores = [mean_error({**fitted, pair: share}, name) for name, share in given.items()]
        low, high = min(given.values()), max(given.values())
        turning = sum((error(c, low) <= TURNS) != (error(c, high) <= TURNS) for c in measured if pair_of(c) == pair)
        spreads[pair] = {"low": low, "high": high, "best": min(scores), "worst": max(scores), "turning": turning}
    return pd.DataFrame([{**asdict(one), **spreads.get((one.family, one.generation), {})} for one in constants()])
