"""Pairwise selection of cells from large products; `pytest -m exhaustive` runs the whole product."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def chosen(rows: Sequence[tuple[Any, ...]], strength: int = 1, always: Iterable[tuple[Any, ...]] = ()) -> list[int]:
    """Positions of few rows that hold every value of every column; with strength=2 every pair that some row holds.
    The rows of `always` are among them."""
    known: list[list[Any]] = [[] for _ in rows[0]] if rows else []
    for row in rows:
        for value, seen in zip(row, known, strict=True):
            if value not in seen:
                seen.append(value)
    numbers = [tuple(seen.index(value) for value, seen in zip(row, known, strict=True)) for row in rows]
    met = [set(combinations(enumerate(row), min(strength, len(row)))) for row in numbers]
    found = sorted({rows.index(row) for row in always})
    left = set().union(*met).difference(*(met[at] for at in found))
    while left:
        best = max(range(len(rows)), key=lambda at: len(met[at] & left))
        found.append(best)
        left -= met[best]
    return sorted(found)


def pairwise(
    rows: Iterable[tuple[Any, ...]], *, strength: int = 1, always: Iterable[tuple[Any, ...]] = ()
) -> list[Any]:
    """All rows as pytest's parameters, `exhaustive` except the chosen ones."""
    rows = list(rows)
    kept = chosen(rows, strength, always)
    return [pytest.param(*row, marks=[] if at in kept else pytest.mark.exhaustive) for at, row in enumerate(rows)]


def cells(*axes: Iterable[Any], strength: int = 1, always: Iterable[tuple[Any, ...]] = ()) -> list[Any]:
    """`pairwise` of the product of the axes."""
    return pairwise(product(*axes), strength=strength, always=always)
