"""Pairwise selection of cells from large products; `pytest -m exhaustive` runs the whole product."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def chosen(rows: Sequence[tuple[Any, ...]], strength: int = 1, always: Iterable[tuple[Any, ...]] = ()) -> list[int]:
    """Positions of few rows that hold every value of every column; with strength=2 every pair that some row holds.
    The rows of `always` are among them."""
    axis_values: list[list[Any]] = [[] for _ in rows[0]] if rows else []
    for row in rows:
        for value, seen in zip(row, axis_values, strict=True):
            if value not in seen:
                seen.append(value)
    numbers = [tuple(seen.index(value) for value, seen in zip(row, axis_values, strict=True)) for row in rows]
    met = [set(combinations(enumerate(row), min(strength, len(row)))) for row in numbers]
    positions = sorted({rows.index(row) for row in always})
    uncovered = set().union(*met).difference(*(met[at] for at in positions))
    while uncovered:
        best = max(range(len(rows)), key=lambda at: len(met[at] & uncovered))
        positions.append(best)
        uncovered -= met[best]
    return sorted(positions)


def pairwise(
    rows: Iterable[tuple[Any, ...]], *, strength: int = 1, always: Iterable[tuple[Any, ...]] = ()
) -> list[Any]:
    """All rows as pytest's parameters, `exhaustive` except the chosen ones."""
    rows = list(rows)
    positions = chosen(rows, strength, always)
    return [pytest.param(*row, marks=[] if at in positions else pytest.mark.exhaustive) for at, row in enumerate(rows)]


def cells(*axes: Iterable[Any], strength: int = 1, always: Iterable[tuple[Any, ...]] = ()) -> list[Any]:
    """`pairwise` of the product of the axes."""
    return pairwise(product(*axes), strength=strength, always=always)
