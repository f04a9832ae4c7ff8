"""User code between batches draws the random numbers that a plain PyTorch loop draws."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
from suite.engine.random_state import undisturbed, user_code
from suite.engine.replay import Replay
from tests.support.refusals import refused

EPOCHS = 3
GRIDS = [Grid(), Grid(inter=3), Grid(data=2, inter=2)]
STREAMED = {"update_interval": 4}
MODES = pytest.mark.parametrize("streamed", [False, True], ids=["flush", "stream"])


def loader() -> DataLoader[Any]:
    x = torch.linspace(-1, 1, 24 * 5).reshape(24, 5)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)


def noisy(batches: Iterable[Any]) -> Iterator[Any]:
    for x, y in batches:
        yield x + 0.1 * torch.randn(x.shape), y


class Noisy:
    """Loader with a known length that draws batches one by one."""

    def __init__(self, batches: DataLoader[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        return noisy(self.batches)


def generator(batches: DataLoader[Any]) -> Iterator[Any]:
    return noisy(batches)


def layers(dropout: float) -> list[nn.Module]:
    with undisturbed():
        torch.manual_seed(5)
        return [nn.Linear(5, 6), nn.Sequential(nn.Tanh(), nn.Dropout(dropout)), nn.Linear(6, 1)]


def plain(make: Callable[[Any], Iterable[Any]]) -> tuple[list[list[Any]], list[float], torch.Tensor]:
    """Batches by epoch, losses without dropout, and subsequent random numbers of a plain PyTorch loop."""
    torch.manual_seed(1)
    model, batches = nn.Sequential(*layers(0.0)), loader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    drawn: list[list[Any]] = []
    losses = []
    for _ in range(EPOCHS):
        drawn.append([])
        for x, y in make(batches):
            drawn[-1].append((x, y))
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return drawn, losses, torch.rand(4)


class Shared:
    """Batches that threads share, as they share torch's generator: the first thread draws each, the others reuse it."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self.make, self.lock, self.drawn = make, threading.RLock(), []
        self.iterator: Iterator[Any] | None = None

    def next(self, number: int) -> Any:
        with self.lock:
            self.iterator = self.iterator or iter(self.make())
            if number == len(self.drawn):
                self.drawn.append(next(self.iterator, None))
            return self.drawn[number]

    def batches(self) -> Iterator[Any]:
        number = 0
        while (batch := self.next(number)) is not None:
            number += 1
            yield batch


class SharedLoader(Shared):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return self.batches()


def trained(grid: Grid, epochs: list[Any], dropout: float = 0.0, **more: Any) -> list[list[float]]:
    """Losses of every rank; `epochs` holds the batches of each epoch."""

    def rank(world: threads.LoopbackWorld) -> list[float]:
        engine = Engine(
            layers(dropout),
            loss=F.mse_loss,
            optimizer=SGD(0.1),
            microbatch=2,
            grid=grid,
            world=world,
            **more,
        )
        losses = [loss for batches in epochs for loss in engine.train(batches() if callable(batches) else batches)]
        engine.close()
        return losses

    return threads.run(grid.size, rank)


def drawn_by(grid: Grid, make: Callable[[Any], Iterable[Any]], **more: Any) -> tuple[list[list[Any]], Any]:
    torch.manual_seed(1)
    batches = loader()
    kind = SharedLoader if make is Noisy else Shared
    shared = [kind(lambda: make(batches)) for _ in range(EPOCHS)]
    losses = trained(grid, [one if make is Noisy else one.batches for one in shared], **more)
    return [[batch for batch in one.drawn if batch is not None] for one in shared], losses


def assert_equal(actual: list[list[Any]], expected: list[list[Any]]) -> None:
    assert [len(epoch) for epoch in actual] == [len(epoch) for epoch in expected]
    pairs = [(a, b) for e, f in zip(actual, expected, strict=True) for a, b in zip(e, f, strict=True)]
    assert all(torch.equal(x, z) for a, b in pairs for x, z in zip(a, b, strict=True))


@MODES
@pytest.mark.parametrize("make", [generator, Noisy])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_batches_and_noise_match_plain_pytorch(
    grid: Grid, make: Callable[[Any], Iterable[Any]], streamed: bool
) -> None:
    expected, right, after = plain(make)
    actual, losses = drawn_by(grid, make, dropout=0.4, **(STREAMED if streamed else {}))
    assert torch.equal(torch.rand(4), after)
    assert_equal(actual, expected)
    orders = {tuple(y.flatten().tolist()) for epoch in actual for _, y in epoch}
    assert len(orders) == EPOCHS * 3
    # random numbers that user code draws do not change dropout
    replayed = trained(grid, expected, dropout=0.4, **(STREAMED if streamed else {}))
    assert losses == replayed
    if not streamed:
        _, losses = drawn_by(grid, make)
        assert all(own == pytest.approx(right, rel=1e-5) for own in losses)


@MODES
def test_replay_draws_like_plain_pytorch(streamed: bool) -> None:
    expected, _, after = plain(generator)
    torch.manual_seed(1)
    batches, drawn = loader(), []
    more = STREAMED if streamed else {}
    replay = Replay(layers(0.4), grid=Grid(inter=2), loss=F.mse_loss, optimizer=SGD(0.1), microbatch=2, **more)
    for _ in range(EPOCHS):
        drawn.append([])
        list(replay.train(drawn[-1].append(batch) or batch for batch in noisy(batches)))
    assert_equal(drawn, expected)
    assert torch.equal(torch.rand(4), after)


def alone(dropout: float = 0.4, **more: Any) -> Engine:
    return Engine(layers(dropout), loss=F.mse_loss, optimizer=SGD(0.1), microbatch=2, **more)


def test_evaluation_draws_like_plain_loop() -> None:
    torch.manual_seed(1)
    batches, right = loader(), []
    for _ in range(2):
        right += list(noisy(batches))
    after = torch.rand(4)
    torch.manual_seed(1)
    engine, batches, drawn = alone(), loader(), []
    for _ in range(2):
        engine.evaluate(drawn.append(batch) or batch for batch in noisy(batches))
    assert_equal([drawn], [right])
    assert torch.equal(torch.rand(4), after)


def test_user_draws_between_losses_are_preserved() -> None:
    def failing() -> Iterator[Any]:
        for _ in range(2):
            yield torch.randn(4, 5), torch.randn(4, 1)
        torch.rand(7)
        raise ValueError("no more")

    torch.manual_seed(2)
    right: list[torch.Tensor] = []
    with pytest.raises(ValueError, match="no more"):
        right.extend(tensor for batch in failing() for tensor in (*batch, torch.rand(3)))
    after = torch.rand(4)
    engine, drawn = alone(), []
    actual: list[torch.Tensor] = []
    torch.manual_seed(2)
    losses = engine.train(drawn.append(batch) or batch for batch in failing())
    with pytest.raises(ValueError, match="no more"):
        actual.extend(tensor for _ in losses for tensor in (*drawn.pop(), torch.rand(3)))
    assert torch.equal(torch.rand(4), after)
    assert all(torch.equal(a, b) for a, b in zip(actual, right, strict=True))


@pytest.mark.parametrize("call", ["gradients", "memory", "train_batch", "evaluate"])
def test_engine_calls_preserve_generator_state(call: str) -> None:
    """A loss that draws, and a layer that draws in evaluation, preserve the generator too."""

    class Draws(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn(x.shape)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(x, y + 0.1 * torch.randn(y.shape))

    engine = Engine([*layers(0.4), Draws()], loss=loss, optimizer=SGD(0.1), microbatch=2, activation_checkpointing=2)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    batch = torch.ones(8, 5), torch.ones(8, 1)
    getattr(engine, call)([batch] if call == "evaluate" else batch)
    assert torch.equal(torch.get_rng_state(), state)


def test_cuda_generators_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    state = [7]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.tensor(state))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda new: state.__setitem__(0, int(new)))
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: state.__setitem__(0, seed))
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
    batches = [(torch.ones(4, 5), torch.ones(4, 1))] * 3

    def rank(world: threads.LoopbackWorld) -> list[float]:
        engine = Engine(layers(0.4), loss=F.mse_loss, optimizer=SGD(0.1), microbatch=2, grid=Grid(inter=2), world=world)
        scores = []

        def looking() -> Iterator[Any]:
            for batch in batches:
                yield batch
                scores.append(engine.evaluate(batches[:1]))

        list(engine.train(looking()))
        engine.close()
        return scores

    first, second = threads.run(2, rank, deadline=20)
    assert first == second
    assert len(set(first)) == 3


def test_passes_of_other_threads_wait_for_user_code() -> None:
    locked, done = threading.Event(), []

    def other() -> None:
        locked.wait()
        with undisturbed():
            torch.manual_seed(0)
            done.append(torch.rand(1))

    thread = threading.Thread(target=other)
    thread.start()
    torch.manual_seed(4)
    with user_code(exclusive=True):
        locked.set()
        thread.join(0.05)
        assert not done
        first = torch.rand(2)
    thread.join()
    assert len(done) == 1
    torch.manual_seed(4)
    assert torch.equal(torch.rand(2), first)


# -- lengths ----------------------------------------------------------------------------------------------------


@MODES
def test_loader_without_length_is_read_like_generator(streamed: bool) -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter([(torch.ones(5), torch.ones(1))] * 16)

    batches = DataLoader(Endless(), batch_size=8)
    engine = alone(**(STREAMED if streamed else {}))
    assert len([*engine.train(batches)]) == 2


@pytest.mark.parametrize("actual", [2, 4])
def test_stream_must_match_loader_length(actual: int) -> None:
    class Wrong:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[Any]:
            return iter([(torch.ones(8, 5), torch.ones(8, 1))] * actual)

    with refused(InvalidRequest, rule="a loader has as many batches as its length"):
        list(alone(**STREAMED).train(Wrong()))
