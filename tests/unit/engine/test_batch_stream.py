"""Batches of a flush interval: reading order, end marker and sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Op
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
from tests.support.refusals import refused

X = torch.linspace(-1, 1, 24 * 5).reshape(24, 5)
Y = X.sum(1, keepdim=True)


def engine(**more: Any) -> Engine:
    torch.manual_seed(0)
    return Engine([nn.Linear(5, 1)], loss=mse_loss, optimizer=SGD(0.1), microbatch=2, **more)


class Reversed:
    """Schedule with all forward passes in reverse order, then all backward passes."""

    def program(self, place: Any, interval: Any) -> Any:
        for index in reversed(range(interval.first, interval.end)):
            yield (Op(place.stage, Kind.FORWARD, index),)
        for index in range(interval.first, interval.end):
            yield (Op(place.stage, Kind.BACKWARD, index),)
        yield (Op(place.stage, Kind.UPDATE, interval.update_of(interval.end - 1)),)

    def in_flight(self, place: Any, interval: Any) -> int:
        return int(interval.microbatches)


def test_forward_passes_may_run_in_any_order() -> None:
    assert engine(schedule=Reversed()).train_batch((X, Y)) == pytest.approx(engine().train_batch((X, Y)))


def test_end_marker_is_compared_by_identity() -> None:
    """Comparison by == would fail, because == of arrays has no single truth value."""
    with pytest.raises(InvalidRequest):
        list(engine(update_interval=1).train(iter([X.numpy()])))


def test_short_last_batch_of_stream_suggests_drop_last() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=10)
    with refused(
        InvalidRequest,
        subject="batch 3 has 2 microbatches",
        rule="all batches of a loader that streams have as many",
        legal="DataLoader(..., drop_last=True), or train(list(loader))",
    ):
        list(engine(update_interval=1).train(loader))
    assert len(list(engine(update_interval=1).train(list(loader)))) == 3
