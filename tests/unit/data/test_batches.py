"""Batches of a turn: drawn ahead where they are few, and the same ones where they are drawn as they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from suite import AdamW, Engine
from suite.data import batches
from suite.data.batches import KEPT, Lazy, draw_batches, map_batches, size


def draw(number: int) -> Any:
    rng = np.random.default_rng(number)
    return rng.normal(size=(8, 4)).astype(np.float32), rng.integers(0, 3, 8)


def test_few_batches_are_drawn_ahead() -> None:
    ready = draw_batches(draw, range(3, 6))
    assert isinstance(ready, list)
    assert [float(inputs[0, 0]) for inputs, _ in ready] == [float(draw(number)[0][0, 0]) for number in (3, 4, 5)]
    assert draw_batches(draw, range(0)) == []
    assert size(ready[0]) == 8 * 4 * 4 + 8 * 8


def test_many_batches_are_drawn_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "AHEAD", 1000)
    calls: list[int] = []

    def counted(number: int) -> Any:
        calls.append(number)
        return draw(number)

    ready = draw_batches(counted, range(100))
    assert isinstance(ready, Lazy)
    assert len(ready) == 100
    assert calls == [0]
    readers = [iter(ready), iter(ready)]  # two stages, one a few batches behind
    for number in range(100):
        next(readers[0])
        if number >= KEPT // 4:
            next(readers[1])
    assert sorted(calls[1:]) == list(range(100))


def test_training_is_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def tensors(batch: Any) -> Any:
        return tuple(map(torch.from_numpy, batch))

    def losses(ready: Any) -> list[float]:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)]
        engine = Engine(layers, loss=cross_entropy, optimizer=AdamW(lr=0.01), microbatch=4, update_interval=1)
        return list(engine.train(map_batches(ready, tensors)))

    ahead = losses(draw_batches(draw, range(6)))
    monkeypatch.setattr(batches, "AHEAD", 0)
    assert losses(draw_batches(draw, range(6))) == ahead
