"""Ranks as threads of one process, without a launcher: the same training as on one rank."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from suite import AdamW, Engine, Grid
from suite.core.errors import InvalidRequest
from suite.engine.replay.thread_ranks import batch_readers
from suite.schedule import OneFOneB
from tests.support.refusals import refused
from tests.support.small_engines import Batch, linears, normal_batches
from tests.support.waiting import wait_until

TWO, FOUR = Grid(inter=2), Grid(inter=4)
STREAMS = {"schedule": OneFOneB(), "update_interval": 1, "clip_norm": None, "grid": FOUR}


def batches(count: int = 6) -> list[Batch]:
    return normal_batches(count, 8, 6, 6)


(BATCH,) = batches(1)
SEVEN = (torch.ones(7, 6).double(), torch.ones(7, 6).double())


def engine_of(layers: Any = None, **more: Any) -> Engine:
    arguments: dict[str, Any] = {"loss": mse_loss, "optimizer": AdamW(0.01), "microbatch": 2, "clip_norm": 0.5}
    return Engine(layers or linears(6, 6, 6, 6), **(arguments | more))


def test_batches_are_read_as_they_are_requested() -> None:
    read = []

    def each() -> Iterator[Any]:
        for number, batch in enumerate(batches(2)):
            read.append(number)
            yield batch
        raise OSError("the disk is full")

    losses = engine_of(grid=TWO).train(each())
    next(losses)
    assert read == [0]
    next(losses)
    assert read == [0, 1]
    with pytest.raises(OSError, match="the disk is full"):
        next(losses)
    first, second = (iter(reader) for reader in batch_readers(iter(range(5)), 2))  # type: ignore[arg-type]
    assert [next(first), next(first), next(second)] == [0, 1, 0]


def test_errors_reach_the_user_and_refusals_leave_the_engine_usable() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ArithmeticError("no such product")

    with pytest.raises(ArithmeticError, match="no such product"):
        engine_of([nn.Linear(6, 6).double(), Fails()], grid=TWO).train_batch(BATCH)
    with refused(InvalidRequest, subject="a batch of 7 samples"):
        list(engine_of(linears(6, 6, 6, 6, 6), **STREAMS).train([*batches(), SEVEN]))
    engine = engine_of(grid=TWO)
    with refused(InvalidRequest, subject="a batch of 7 samples"):
        engine.train_batch(SEVEN)
    assert engine.train_batch(BATCH) > 0
    for _ in engine.train(batches()):
        break
    assert engine.train_batch(BATCH) > 0


def test_gradients_of_all_ranks_are_in_pipeline_order() -> None:
    one = engine_of(linears(6, 6, 6, 6)).gradients(BATCH)
    ours = engine_of(linears(6, 6, 6, 6), grid=Grid(inter=3)).gradients(BATCH)
    for gradient, expected in zip(ours, one, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_engine_names_the_failure_that_ended_it(tmp_path: Path) -> None:
    calls = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 30:
            raise ArithmeticError("no such loss")
        return mse_loss(output, target)

    engine = engine_of(grid=TWO, loss=loss)
    with pytest.raises(ArithmeticError, match="no such loss"):
        engine.fit(batches() * 10)
    for call in (lambda: engine.train_batch(BATCH), lambda: engine.save(tmp_path), engine.state_dict):
        with refused(InvalidRequest, subject="a rank has failed (ArithmeticError: no such loss)", legal="a new engine"):
            call()
    engine.close()


def test_threads_end_with_an_engine_that_is_not_closed_or_refused() -> None:
    before = set(threading.enumerate())
    with refused(InvalidRequest, "microbatch"):
        engine_of(grid=TWO, microbatch=0)
    engine_of(grid=TWO).train_batch(BATCH)
    gc.collect()
    wait_until(lambda: set(threading.enumerate()) <= before)
