"""Batches as they are read: user code draws the random numbers of a plain PyTorch loop, and lengths are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from suite import SGD, Engine, Grid, Replay, accelerator
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest
from suite.core.op import Kind
from suite.engine import flush
from suite.engine.random_state import undisturbed
from tests.support.drawn import cells
from tests.support.refusals import refused
from tests.support.small_engines import train_plainly

EPOCHS = 2
STREAMED = {"update_interval": 4}
X = torch.linspace(-1, 1, 24 * 5).reshape(24, 5)
Y = X.sum(1, keepdim=True)
ONES = (torch.ones(8, 5), torch.ones(8, 1))


def loader() -> DataLoader[Any]:
    torch.manual_seed(1)
    return DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)


def noisy(batches: Iterable[Any], drawn: list[Any]) -> Iterator[Any]:
    for x, y in batches:
        drawn.append((x + 0.1 * torch.randn(x.shape), y))
        yield drawn[-1]


def layers(dropout: float) -> list[nn.Module]:
    with undisturbed():
        torch.manual_seed(5)
        return [nn.Linear(5, 6), nn.Sequential(nn.Tanh(), nn.Dropout(dropout)), nn.Linear(6, 1)]


def alone(dropout: float = 0.4, **more: Any) -> Engine:
    return Engine(layers(dropout), **{"loss": F.mse_loss, "optimizer": SGD(0.1), "microbatch": 2, **more})


def plain() -> tuple[list[Any], list[float], torch.Tensor]:
    """Batches, losses without dropout, and subsequent random numbers of a plain PyTorch loop."""
    model, batches, drawn = nn.Sequential(*layers(0.0)), loader(), list[Any]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = train_plainly(model, optimizer, (batch for _ in range(EPOCHS) for batch in noisy(batches, drawn)))
    return drawn, losses, torch.rand(4)


def replayed(dropout: float, **more: Any) -> Replay:
    return Replay(layers(dropout), grid=Grid(inter=2), loss=F.mse_loss, optimizer=SGD(0.1), microbatch=2, **more)


def assert_equal(actual: list[Any], expected: list[Any]) -> None:
    assert len(actual) == len(expected)
    assert all(torch.equal(x, z) for a, b in zip(actual, expected, strict=True) for x, z in zip(a, b, strict=True))


@pytest.mark.parametrize(("make", "more"), cells([alone, replayed], [{}, STREAMED], n=2, always=[(alone, {})]))
def test_batches_and_noise_match_plain_pytorch(make: Callable[..., Any], more: dict[str, int]) -> None:
    """Ranks of several processes: tests/distributed/test_batches.py."""
    expected, right, after = plain()
    drawn: list[Any] = []

    def losses_of(dropout: float, epochs: Iterable[Any], **more: Any) -> list[float]:
        engine = make(dropout, **more)
        return [loss for batches in epochs for loss in engine.train(batches)]

    batches = loader()
    losses = losses_of(0.4, (noisy(batches, drawn) for _ in range(EPOCHS)), **more)
    assert torch.equal(torch.rand(4), after)
    assert_equal(drawn, expected)
    # random numbers that user code draws do not change dropout
    assert losses == losses_of(0.4, (expected[:3], expected[3:]), **more)
    if not more:
        assert losses_of(0.0, (expected,)) == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize("call", ["gradients", "memory", "train_batch", "evaluate"])
def test_engine_calls_preserve_generator_state(call: str) -> None:
    """A loss that draws, and a layer that draws in evaluation, preserve the generator too."""

    class Draws(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn(x.shape)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(x, y + 0.1 * torch.randn(y.shape))

    torch.manual_seed(3)
    state = torch.get_rng_state()
    engine = Engine([*layers(0.4), Draws], loss=loss, optimizer=SGD(0.1), microbatch=2, activation_checkpointing=2)
    getattr(engine, call)([ONES] if call == "evaluate" else ONES)
    assert torch.equal(torch.get_rng_state(), state)


def test_generators_of_a_device_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    state = [7]
    device = SimpleNamespace(
        get_rng_state=lambda: torch.tensor(state),
        set_rng_state=lambda new: state.__setitem__(0, int(new)),
        manual_seed=lambda seed: state.__setitem__(0, seed),
    )
    monkeypatch.setitem(accelerator._modules, "cuda", device)
    seen = []

    class Looks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(state[0])
            return x

    def batches() -> Iterator[Any]:
        for _ in range(2):
            assert state == [7]
            yield torch.ones(2, 5), torch.ones(2, 1)

    engine = Engine([*layers(0.4), Looks()], loss=F.mse_loss, optimizer=SGD(0.1), microbatch=2)
    for _ in engine.train(batches()):
        assert state == [7]
    assert len(set(seen)) == 2
    assert 7 not in seen


def test_iterator_may_call_evaluate_on_thread_ranks() -> None:
    def rank(world: threads.LoopbackWorld) -> list[float]:
        scores = []

        def looking() -> Iterator[Any]:
            for batch in [ONES] * 3:
                yield batch
                scores.append(engine.evaluate([ONES]))

        with alone(grid=Grid(inter=2), world=world) as engine:
            list(engine.train(looking()))
        return scores

    first, second = threads.run(2, rank)
    assert first == second
    assert len(set(first)) == 3


# -- order and lengths -------------------------------------------------------------------------------------------


class Rows(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.ones(5), torch.ones(1))] * 16)


class Three:
    """Batches with a length of three."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return iter([ONES] * self.count)


def test_streams_check_lengths_and_sizes() -> None:
    for more in ({}, STREAMED):
        assert len([*alone(**more).train(DataLoader(Rows(), batch_size=8))]) == 2  # a loader without a length
    for count in (0, 2, 4):
        with refused(InvalidRequest, rule="a loader has as many batches as its length"):
            list(alone(**STREAMED).train(Three(count)))
    assert len([*alone(**STREAMED).train(Three(3))]) == 3
    short = DataLoader(TensorDataset(X, Y), batch_size=10)
    with refused(InvalidRequest, subject="batch 3 has 2 microbatches", legal="train(list(loader))"):
        list(alone(update_interval=1).train(short))
    assert len(list(alone(update_interval=1).train(list(short)))) == 3


def test_a_long_stream_keeps_its_newest_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "KEPT_OPS", 20)
    engine = alone(update_interval=1)
    for _ in engine.train([ONES] * 30):  # of four microbatches, each with a forward pass, a backward pass and an update
        assert engine.state.versions.ledger is not None
        kept = (engine.passes, engine.state.trace, engine.state.versions.ledger.entries)
        assert all(len(ops) < 50 for ops in kept), [*map(len, kept)]
    updates = [op.index for op, _ in engine.passes if op.kind is Kind.UPDATE]
    assert updates == list(range(120 - len(updates), 120))
    assert len(updates) >= 6
