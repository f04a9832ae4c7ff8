"""Cells drawn from large products, anew every day; `pytest -m exhaustive` runs the whole product.

    @pytest.mark.parametrize(("grid", "layout"), cells(GRIDS, LAYOUTS, n=4))
    @pytest.mark.parametrize(("name", "value"), drawn(ROWS, n=3, always=[ROWS[0]]))

The seed is the date (UTC), so a week of runs covers what one enumeration would. `pytest --seed=20261126` repeats a
day's draw. Every module draws by itself: adding a row in one changes no other.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest

SEED = "SUITE_TEST_SEED"  # environment variables that the root conftest.py sets, and workers of pytest-xdist inherit
EXHAUSTIVE = "SUITE_TEST_EXHAUSTIVE"


def seed() -> int:
    """Seed of this run."""
    return int(os.environ.get(SEED, "0"))


def generator(*names: object) -> random.Random:
    """Random numbers of this run's seed, other ones for other names."""
    return random.Random(f"{seed()} {names}")


def drawn(rows: Iterable[Any], n: int, always: Sequence[Any] = ()) -> list[Any]:
    """`always` and `n` other rows, in order. The exhaustive run has the rest too, marked `exhaustive`.

    Rows that are tuples hold several parameters.
    """
    rows = list(rows)
    others = [place for place, row in enumerate(rows) if row not in always]
    chosen = {place for place, row in enumerate(rows) if row in always}
    chosen |= set(generator(_caller(), len(rows)).sample(others, min(n, len(others))))
    everything = EXHAUSTIVE in os.environ
    return [
        pytest.param(*(row if type(row) is tuple else (row,)), marks=[] if place in chosen else pytest.mark.exhaustive)
        for place, row in enumerate(rows)
        if everything or place in chosen
    ]


def few(rows: Iterable[Any], n: int, *names: object) -> list[Any]:
    """`n` drawn rows for a loop within a test, other ones for other names; all of them in the exhaustive run."""
    rows = list(rows)
    return rows if EXHAUSTIVE in os.environ else generator(*names, len(rows)).sample(rows, min(n, len(rows)))


def _caller() -> str:
    """Name of the module of tests that draws."""
    frame = sys._getframe(1)
    while frame.f_globals["__name__"] == __name__ and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals["__name__"])


def cells(*axes: Iterable[Any], n: int, always: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
    """`drawn` from the product of the axes."""
    return drawn(product(*axes), n, always)
