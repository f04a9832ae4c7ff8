"""Batches of a turn: drawn ahead where they are few, and the same ones where they are drawn as they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suite.data import batches
from suite.data.batches import KEPT, Lazy, draw_batches, map_batches, size


def draw(number: int) -> Any:
    rng = np.random.default_rng(number)
    return rng.normal(size=(8, 4)).astype(np.float32), rng.integers(0, 3, 8)


BYTES = 8 * 4 * 4 + 8 * 8


def test_few_batches_are_drawn_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    assert size(draw(0)) == BYTES
    assert draw_batches(draw, range(0)) == []
    monkeypatch.setattr(batches, "AHEAD", 3 * BYTES)
    ready = draw_batches(draw, range(3, 6))
    assert isinstance(ready, list)
    assert isinstance(draw_batches(draw, range(3, 7)), Lazy)
    firsts = [float(inputs[0, 0]) for inputs, _ in ready]
    assert firsts == [float(draw(number)[0][0, 0]) for number in (3, 4, 5)]
    monkeypatch.setattr(batches, "AHEAD", 0)
    later = draw_batches(draw, range(3, 6))
    assert [float(inputs[0, 0]) for inputs, _ in later] == firsts
    for ready_or_later in (ready, later):
        assert [float(first) for first in map_batches(ready_or_later, lambda batch: batch[0][0, 0])] == firsts


def test_many_batches_are_drawn_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "AHEAD", 1000)
    calls: list[int] = []

    def counted(number: int) -> Any:
        calls.append(number)
        return draw(number)

    ready = draw_batches(counted, range(100))
    assert len(ready) == 100
    assert calls == [0]
    readers = [iter(ready), iter(ready)]  # two stages, one a few batches behind
    for number in range(100):
        next(readers[0])
        if number >= KEPT // 4:
            next(readers[1])
    assert sorted(calls[1:]) == list(range(100))
