"""Ranks as threads of one process, without a launcher: the same training as on one rank."""

from __future__ import annotations

import copy
import gc
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from suite.core.errors import InvalidRequest, SuiteError, Unsupported
from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD, AdamW
from suite.engine.replay import Replay
from suite.engine.thread_ranks import SharedBatches
from suite.schedule import OneFOneB
from suite.schedule.zbv import ZBV
from suite.weights.policy import Predict
from tests.support.refusals import refused

GRIDS = [Grid(inter=2), Grid(data=2), Grid(inter=2, data=2), Grid(inter=4)]


class Head(nn.Module):
    """A norm and a product with the weight of another layer."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.norm, self.weight = nn.LayerNorm(6), weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) @ self.weight


@cache
def first_model() -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Linear(6, 6, bias=False)
    return nn.Sequential(first, nn.Linear(6, 6), nn.Dropout(0.3), nn.Linear(6, 6), Head(first.weight))


def model() -> nn.Sequential:
    return copy.deepcopy(first_model()).double()


def batches(count: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(count, 2, 8, 6, generator=generator, dtype=torch.float64)
    return [(inputs, targets) for inputs, targets in data]


def engine_of(layers: Any, **more: Any) -> Engine:
    arguments: dict[str, Any] = {"loss": mse_loss, "optimizer": AdamW(0.01), "microbatch": 2, "clip_norm": 0.5}
    return Engine(layers, **(arguments | more))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_losses_and_user_modules_equal_one_rank(grid: Grid) -> None:
    single, ours = model(), model()
    with engine_of(single) as engine:
        expected = list(engine.train(batches()))
        scores = engine.evaluate(batches(2))
    with engine_of(ours, grid=grid) as engine:
        assert engine.ranks is not None
        assert len(engine.ranks.engines) == grid.size
        assert list(engine.train(batches())) == pytest.approx(expected, rel=1e-12)
        assert engine.evaluate(batches(2)) == pytest.approx(scores, rel=1e-12)
        whole = engine.state_dict()
    for name, tensor in single.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(whole[name], tensor, rtol=1e-12, atol=1e-12)
    assert ours[0].weight is ours[4].weight


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_modes_of_the_users_modules_hold_on_every_rank(grid: Grid) -> None:
    layers = model()
    layers.eval()
    expected = [mse_loss(layers(inputs), targets).item() for inputs, targets in batches(1)]
    engine = engine_of(layers, grid=grid)
    assert list(engine.train(batches(1))) == pytest.approx(expected, rel=1e-12)
    other = engine_of(model(), grid=grid)
    assert list(other.train(batches(1))) != pytest.approx(expected, rel=1e-3)


def test_asynchronous_pipeline_trains_on_four_threads() -> None:
    more = {"schedule": OneFOneB(), "weights": Predict(), "update_interval": 1, "clip_norm": None}
    layers = [nn.Linear(6, 6) for _ in range(4)]
    data = [(inputs.float(), targets.float()) for inputs, targets in batches()]
    arguments = {"optimizer": SGD(0.05, momentum=0.9), "grid": Grid(inter=4), **more}
    replay = Replay(copy.deepcopy(layers), loss=mse_loss, microbatch=2, **arguments)
    losses = list(engine_of(layers, **arguments).train(data * 4))
    assert losses == list(replay.train(data * 4))


def test_interrupted_stream_ends_soon_and_trains_no_more() -> None:
    more = {"schedule": OneFOneB(), "update_interval": 1, "clip_norm": None}
    engine = engine_of([nn.Linear(6, 6).double() for _ in range(4)], grid=Grid(inter=4), **more)
    begin = time.monotonic()
    for _ in engine.train(batches() * 10):
        break
    with pytest.raises(SuiteError):
        engine.train_batch(batches(1)[0])
    with pytest.raises(SuiteError):
        list(engine.train(batches()))
    assert time.monotonic() - begin < 30


def test_error_within_a_stream_reaches_the_user() -> None:
    more = {"schedule": OneFOneB(), "update_interval": 1, "clip_norm": None}
    engine = engine_of([nn.Linear(6, 6).double() for _ in range(4)], grid=Grid(inter=4), **more)
    with refused(InvalidRequest, subject="a batch of 7 samples"):
        list(engine.train([*batches(), (torch.ones(7, 6).double(), torch.ones(7, 6).double())]))


def test_placed_schedule_trains_on_threads() -> None:
    expected = list(engine_of(model()).train(batches()))
    ours = list(engine_of(model(), grid=Grid(inter=2), schedule=ZBV()).train(batches()))
    assert ours == pytest.approx(expected, rel=1e-12)


def test_shuffling_loader_is_read_once() -> None:
    inputs, targets = (torch.cat(tensors) for tensors in zip(*batches(), strict=True))
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
    engine = engine_of(model(), grid=Grid(inter=2, data=2))
    assert len(list(engine.train(loader))) == 6
    assert engine.evaluate(loader) > 0


def test_batches_are_read_as_they_are_requested() -> None:
    read = []

    def each() -> Iterator[Any]:
        for number, batch in enumerate(batches()):
            read.append(number)
            yield batch

    losses = engine_of(model(), grid=Grid(inter=2)).train(each())
    next(losses)
    assert read == [0]
    next(losses)
    assert read == [0, 1]


def test_error_of_the_users_iterator_reaches_the_user() -> None:
    def each() -> Iterator[Any]:
        yield batches(1)[0]
        raise OSError("the disk is full")

    losses = engine_of(model(), grid=Grid(inter=2)).train(each())
    next(losses)
    with pytest.raises(OSError, match="the disk is full"):
        next(losses)


def test_error_in_a_layer_reaches_the_user_soon() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ArithmeticError("no such product")

    engine = engine_of([nn.Linear(6, 6), Fails()], grid=Grid(inter=2))
    begin = time.monotonic()
    with pytest.raises(ArithmeticError, match="no such product"):
        engine.train_batch((torch.ones(8, 6), torch.ones(8, 6)))
    assert time.monotonic() - begin < 30


def test_refusal_leaves_the_engine_usable() -> None:
    engine = engine_of(model(), grid=Grid(inter=2))
    with refused(InvalidRequest, subject="a batch of 7 samples"):
        engine.train_batch((torch.ones(7, 6).double(), torch.ones(7, 6).double()))
    assert engine.train_batch(batches(1)[0]) > 0


def test_stopped_training_continues() -> None:
    engine = engine_of(model(), grid=Grid(inter=2))
    for _ in engine.train(batches()):
        break
    assert engine.train_batch(batches(1)[0]) > 0


def test_checkpoint_resumes_on_threads_and_on_one_rank(tmp_path: Path) -> None:
    engine = engine_of(model(), grid=Grid(inter=2))
    list(engine.train(batches()[:3]))
    engine.save(tmp_path)
    rest = list(engine.train(batches()[3:]))
    for grid in (Grid(), Grid(inter=2)):
        resumed = engine_of(model(), grid=grid)
        assert resumed.load(tmp_path).updates == 3
        assert list(resumed.train(batches()[3:])) == pytest.approx(rest, rel=1e-12)


def test_gradients_of_all_ranks_are_in_pipeline_order() -> None:
    batch = batches(1)[0]
    layers = [nn.Linear(6, 6).double() for _ in range(3)]
    one = engine_of(copy.deepcopy(layers)).gradients(batch)
    ours = engine_of(copy.deepcopy(layers), grid=Grid(inter=3)).gradients(batch)
    for gradient, expected in zip(ours, one, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_engine_trains_on_the_predictions_of_another() -> None:
    teacher, student = engine_of(model(), grid=Grid(inter=2)), engine_of(model(), grid=Grid(inter=2))

    def each() -> Iterator[Any]:
        for inputs, _ in batches(3):
            yield inputs, teacher.predict(inputs)

    assert len(student.fit(each())) == 3


def test_engine_names_the_failure_that_ended_it(tmp_path: Path) -> None:
    calls = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 30:
            raise ArithmeticError("no such loss")
        return mse_loss(output, target)

    engine = engine_of(model(), grid=Grid(inter=2), loss=loss)
    with pytest.raises(ArithmeticError, match="no such loss"):
        engine.fit(batches() * 10)
    for call in (lambda: engine.train_batch(batches(1)[0]), lambda: engine.save(tmp_path), engine.state_dict):
        with refused(InvalidRequest, subject="a rank has failed (ArithmeticError: no such loss)", legal="a new engine"):
            call()
    engine.close()


def test_threads_end_with_an_engine_that_is_not_closed() -> None:
    gc.collect()
    before = threading.active_count()
    for _ in range(3):
        engine_of(model(), grid=Grid(inter=2)).train_batch(batches(1)[0])
    gc.collect()
    end = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_memory_needs_ranks_that_are_processes() -> None:
    with refused(Unsupported, subject="memory() of ranks that are threads"):
        engine_of(model(), grid=Grid(inter=2)).memory(batches(1)[0])


def test_refused_argument_ends_the_threads() -> None:
    before = threading.active_count()
    with refused(InvalidRequest, "microbatch"):
        engine_of(model(), grid=Grid(inter=2), microbatch=0)
    end = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_shared_batches_free_what_every_rank_has_read() -> None:
    shared = SharedBatches(iter(range(5)), 2)  # type: ignore[arg-type]
    assert [shared.read(0), shared.read(0), shared.read(1)] == [0, 1, 0]
    assert list(shared.kept) == [1]
