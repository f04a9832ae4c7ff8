"""Errors of predicted memory by group: bytes of the fullest device, and rows that did not fit.

An error is simulated over measured bytes, minus 1. Sources measure differently: allocated or reserved bytes, with or
without the context of the driver. The simulator counts reserved bytes with the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from suite.papers.public.league_file import LeagueMemory
from suite.papers.public.score import CellAnswer, by_group


def memory_error(answer: CellAnswer) -> float | None:
    """Simulated over measured bytes of the fullest device, minus 1; None where either is missing.

    Raises UnknownName for a unit that is not in suite.papers.public.cells.UNITS.
    """
    measured = answer.cell.measured.peak_bytes
    if answer.cell.status != "ok" or answer.memory is None or not measured:
        return None
    return answer.memory / measured - 1


def memory_groups(answers: Sequence[CellAnswer]) -> tuple[LeagueMemory, ...]:
    """Errors of the groups that print memory, or have rows that did not fit, in order of first appearance."""
    groups = []
    for name, members in by_group(answers).items():
        errors = [error for error in map(memory_error, members) if error is not None]
        failed = [one for one in members if one.cell.status == "oom"]
        ran = [one for one in members if one.cell.status == "ok"]
        if not errors and not failed:
            continue
        groups.append(
            LeagueMemory(
                name,
                len(errors),
                (sum(one.fits is False for one in failed), len(failed)),
                (sum(one.fits is True for one in ran), len(ran)),
                fmean(map(abs, errors)) if errors else None,
                max(map(abs, errors)) if errors else None,
                median(errors) if errors else None,
            )
        )
    return tuple(groups)
