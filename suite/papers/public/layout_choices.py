"""Choice of a layout: whether the simulator's first choice is what the source measured to be quickest.

A sweep is all measured cells of one group with equal model, devices, sequence and batch. Cells that the simulator
predicts not to fit are no choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from suite.papers.public.league_file import LeagueSweep
from suite.papers.public.score import CellAnswer

LEAST = 5  # layouts of a sweep


def sweep_choices(answers: Sequence[CellAnswer]) -> tuple[LeagueSweep, ...]:
    """Outcomes of all sweeps of the cells."""
    sweeps: dict[tuple[object, ...], list[CellAnswer]] = {}
    for one in answers:
        cell = one.cell
        if cell.scored and not {"layout", "memory"}.isdisjoint(cell.kind):
            sweeps.setdefault((cell.group, cell.model, cell.gpus, cell.seq, cell.global_batch), []).append(one)
    return tuple(_choice(members) for members in sweeps.values() if len(members) >= LEAST)


def _choice(members: Sequence[CellAnswer]) -> LeagueSweep:
    def measured(one: CellAnswer) -> float:
        return one.cell.tokens_per_second or 0.0

    best = max(members, key=measured)
    fitting = [one for one in members if one.fits and one.tokens_per_second is not None] or list(members)
    order = sorted(fitting, key=lambda one: -(one.tokens_per_second or 0.0))
    place = order.index(best) + 1 if best in order else 0
    lost = 1 - measured(order[0]) / measured(best)
    return LeagueSweep(best.cell.group, len(members), place, lost, order[0].cell.id, best.cell.id)


def median_loss(choices: Sequence[LeagueSweep]) -> float:
    """Median share that is lost over the sweeps; 0 without one."""
    return median(choice.lost for choice in choices) if choices else 0.0
