"""Different batches on the ranks raise an error on every rank that names the differing ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest, RankError
from suite.core.grid import Grid
from suite.core.protocols import Handle
from suite.engine.digests import SAMPLE, content_of
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD

RULE = "rule: every rank of the grid receives the same batches"
GRIDS = [Grid(inter=2), Grid(data=2), Grid(inter=2, data=2), Grid(inter=3)]
LEGAL = "torch.manual_seed"
Batch = tuple[torch.Tensor, torch.Tensor]


class Loader:
    """Loader with a length and an iterator, like a DataLoader."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


class Longer(Loader):
    """Loader whose length differs from its number of batches."""

    def __len__(self) -> int:
        return 9


KINDS: dict[str, Callable[[list[Any]], Any]] = {"list": list, "generator": iter, "loader": Loader, "longer": Longer}


def batch(number: int, samples: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(samples, 5, generator=generator), torch.randn(samples, 1, generator=generator)


def errors(
    grid: Grid,
    use: Callable[[Engine, int], Any],
    kind: type[Exception] = InvalidRequest,
    *,
    layers: Any = None,
    **more: Any,
) -> list[str]:
    """Error message of every rank. The deadline ends a test whose ranks hang."""

    def rank(world: threads.LoopbackWorld) -> str:
        engine = Engine(
            layers or [lambda: nn.Linear(5, 5), nn.Tanh, lambda: nn.Linear(5, 1)],
            loss=F.mse_loss,
            optimizer=SGD(0.1),
            microbatch=1,
            grid=grid,
            world=world,
            **more,
        )
        with pytest.raises(kind) as caught:
            use(engine, world.rank)
        return str(caught.value)

    return threads.run(grid.size, rank, deadline=20)


def consume(engine: Engine, call: str, batches: Any) -> None:
    if call == "train":
        list(engine.train(batches))
    else:
        engine.evaluate(batches)


# -- numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["train", "stream", "evaluate"])
@pytest.mark.parametrize("kind", ["list", "generator", "loader"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_different_number_of_batches_raises_on_every_rank(grid: Grid, kind: str, call: str) -> None:
    last = grid.size - 1

    def use(engine: Engine, rank: int) -> None:
        consume(
            engine, call.replace("stream", "train"), KINDS[kind]([batch(n) for n in range(5 if rank < last else 3)])
        )

    messages = errors(grid, use, **({"update_interval": 2} if call == "stream" else {}))
    assert len(set(messages)) == 1
    assert RULE in messages[0]
    assert "legal: 3 batches on every rank" in messages[0]
    assert (
        f"rank {last}: 3 batches" if kind != "generator" or call == "stream" else f"rank {last} ran out"
    ) in messages[0]


@pytest.mark.parametrize("call", ["train", "evaluate"])
@pytest.mark.parametrize("kinds", [("longer", "longer"), ("list", "generator"), ("generator", "list")])
@pytest.mark.parametrize("short", [0, 1])
def test_loader_shorter_than_its_length_raises_on_every_rank(kinds: tuple[str, str], call: str, short: int) -> None:
    def use(engine: Engine, rank: int) -> None:
        consume(engine, call, KINDS[kinds[rank]]([batch(n) for n in range(2 if rank == short else 4)]))

    messages = errors(Grid(inter=2), use)
    assert messages[0] == messages[1]
    assert f"rank {short} ran out after 2 batches" in messages[0]


@pytest.mark.parametrize("kind", ["list", "generator"])
def test_empty_batches_on_one_rank_raise_on_every_rank(kind: str) -> None:
    def use(engine: Engine, rank: int) -> None:
        list(engine.train(KINDS[kind]([batch(0)] * rank)))

    messages = errors(Grid(inter=2), use)
    assert messages[0] == messages[1]
    assert "rank 0" in messages[0]


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("grid", GRIDS[:2], ids=str)
def test_failing_iterator_raises_on_every_rank(grid: Grid, at: int) -> None:
    def batches(rank: int) -> Iterator[Batch]:
        for number in range(4):
            if rank == 1 and number == at:
                raise ValueError("no such file")
            yield batch(number)

    messages = errors(grid, lambda engine, rank: list(engine.train(batches(rank))), Exception)
    assert messages[1] == "no such file"
    assert f"rank 1 could not read batch {at + 1}" in messages[0]


def test_failing_stream_iterator_raises_on_every_rank() -> None:
    def batches(rank: int) -> Iterator[Batch]:
        yield batch(0)
        if rank:
            raise ValueError("no such file")

    messages = errors(
        Grid(inter=2), lambda engine, rank: list(engine.train(batches(rank))), Exception, update_interval=2
    )
    assert messages[1] == "no such file"
    assert "rank 1 could not read" in messages[0]


# -- contents ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["train", "stream", "train_batch", "evaluate", "gradients", "generator"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_single_differing_element_of_first_batch_is_detected(grid: Grid, call: str) -> None:
    """The error comes before any rank computes."""
    other = grid.size // 2

    def use(engine: Engine, rank: int) -> None:
        x, y = batch(0)
        if rank == other:
            x[5, 3] += 1e-6
        try:
            if call in ("train_batch", "gradients"):
                getattr(engine, call)((x, y))
            else:
                consume(engine, "evaluate" if call == "evaluate" else "train", iter([(x, y)]))
        finally:
            assert (engine.state.microbatches, engine.state.updates, engine.state.evaluated) == (0, 0, 0)

    messages = errors(grid, use, **({"update_interval": 2} if call == "stream" else {}))
    assert len(set(messages)) == 1
    usual = 1 if other == 0 else 0
    expected = "rank 1 than on rank 0" if grid.size == 2 else f"rank {other} than on rank {usual}"
    assert f"batch 1 has other contents on {expected}" in messages[0]
    assert LEGAL in messages[0]


@pytest.mark.parametrize("call", ["list", "generator", "train_batch", "stream", "loader stream"])
@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("grid", GRIDS[:3], ids=str)
def test_later_batches_are_compared_at_powers_of_two(grid: Grid, call: str, first: int) -> None:
    """Rank 1 has different batches from batch `first` on, counted from 0."""

    def use(engine: Engine, rank: int) -> None:
        batches = [batch(n + 100 * (rank == 1 and n >= first)) for n in range(20)]
        if call == "train_batch":
            for one in batches:
                engine.train_batch(one)
        else:
            list(engine.train(KINDS[call.split(maxsplit=1)[0].replace("stream", "list")](batches)))

    messages = errors(grid, use, **({"update_interval": 2} if "stream" in call else {}))
    assert len(set(messages)) == 1
    due = {1: 2, 3: 4}[first]
    assert f"batch {due} has other contents on rank 1 than on rank 0" in messages[0]


@pytest.mark.parametrize("change", ["samples", "type", "parts"])
@pytest.mark.parametrize("kind", ["list", "generator"])
def test_different_sizes_are_detected_at_every_batch(kind: str, change: str) -> None:
    def changed(x: torch.Tensor, y: torch.Tensor) -> Any:
        return {"samples": (x[:4], y[:4]), "type": (x.double(), y), "parts": ((x, x), y)}[change]

    def use(engine: Engine, rank: int) -> None:
        list(engine.train(KINDS[kind]([changed(*batch(n)) if rank and n == 2 else batch(n) for n in range(5)])))

    messages = errors(Grid(inter=2), use)
    assert messages[0] == messages[1]
    assert "other sizes or types on rank 1 than on rank 0" in messages[0]


@pytest.mark.parametrize(("others", "expected_text"), [({3}, "rank 3 than on rank 0"), ({0}, "rank 0 than on rank 1")])
def test_error_names_ranks_in_minority(others: set[int], expected_text: str) -> None:
    messages = errors(Grid(inter=2, data=2), lambda engine, rank: engine.train_batch(batch(int(rank in others))))
    assert all(expected_text in text for text in messages)
    messages = errors(Grid(inter=2, data=2), lambda engine, rank: engine.train_batch(batch(rank % 2)))
    assert all("ranks 1, 3 than on rank 0" in text for text in messages)


@pytest.mark.parametrize("call", ["train_batch", "gradients"])
def test_different_sizes_of_single_batches_are_detected(call: str) -> None:
    def use(engine: Engine, rank: int) -> None:
        for number in range(7):
            getattr(engine, call)(batch(0, samples=4 if rank and number == 2 else 8))

    messages = errors(Grid(inter=2), use)
    assert messages[0] == messages[1]
    assert "batch 3 has other sizes or types on rank 1 than on rank 0" in messages[0]


@pytest.mark.parametrize("kind", ["list", "generator", "loader", "stream"])
def test_first_batch_of_each_epoch_is_compared(kind: str) -> None:
    """Batches 4 and 7 of 9 start epochs and are no powers of two."""

    def use(engine: Engine, rank: int) -> None:
        for epoch in range(3):
            list(engine.train(KINDS[kind.replace("stream", "list")]([batch(n + 10 * rank * epoch) for n in range(3)])))

    messages = errors(Grid(inter=2), use, **({"update_interval": 2} if kind == "stream" else {}))
    assert messages[0] == messages[1]
    assert "batch 1 has other contents on rank 1 than on rank 0" in messages[0]


@pytest.mark.parametrize("call", ["train_batch", "list", "stream"])
def test_at_least_every_64th_batch_is_compared(call: str) -> None:
    def use(engine: Engine, rank: int) -> None:
        batches = [batch(rank if n >= 130 else 0) for n in range(200)]
        if call == "train_batch":
            for one in batches:
                engine.train_batch(one)
        else:
            list(engine.train(batches))

    messages = errors(Grid(inter=2), use, **({"update_interval": 2} if call == "stream" else {}))
    assert messages[0] == messages[1]
    assert "batch 192 has other contents on rank 1 than on rank 0" in messages[0]


# -- calls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["evaluate", "score", "gradients", "save", "load", "prune", "train"])
@pytest.mark.parametrize("grid", GRIDS[:3], ids=str)
def test_different_calls_raise_on_every_rank(grid: Grid, call: str, tmp_path: Path) -> None:
    def use(engine: Engine, rank: int) -> None:
        engine.train_batch(batch(0))
        if rank == 0:
            call_arguments: Any = {"gradients": batch(0), "save": tmp_path, "load": tmp_path, "prune": {}}
            if call == "train":
                engine.evaluate([batch(0)])
            else:
                getattr(engine, call)(call_arguments.get(call, [batch(0)]))
        elif call == "train":
            list(engine.train(iter([batch(1)])))
        for number in range(1, 7):
            engine.train_batch(batch(number))

    messages = errors(grid, use)
    assert len(set(messages)) == 1
    verb = {"gradients": "computes gradients", "save": "saves", "load": "loads", "prune": "prunes"}
    others = "rank 1 trains" if grid.size == 2 else "ranks 1, 2, 3 train"
    assert messages[0].startswith(f"rank 0 {verb.get(call, 'evaluates')}, {others};")
    assert "every rank makes the same calls" in messages[0]


# -- ranks that make no more calls ----------------------------------------------------------------------------------


def ended_early(grid: Grid, use: Callable[[Engine, int], Any], **more: Any) -> dict[int, str]:
    """Error messages of the ranks that wait for an ended rank, by rank."""
    messages: dict[int, str] = {}

    def rank(world: threads.LoopbackWorld) -> None:
        engine = Engine(
            [lambda: nn.Linear(5, 5), nn.Tanh, lambda: nn.Linear(5, 1)],
            loss=F.mse_loss,
            optimizer=SGD(0.1),
            microbatch=1,
            grid=grid,
            world=world,
            **more,
        )
        try:
            use(engine, world.rank)
        except RankError as error:
            messages[world.rank] = str(error)

    threads.run(grid.size, rank, deadline=20)
    return messages


@pytest.mark.parametrize("closes", [False, True], ids=["ends", "closes"])
@pytest.mark.parametrize("counts", [(3, 5), (5, 3), (3, 4), (2, 3), (0, 1)], ids=str)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_error_names_rank_that_ends_early(grid: Grid, counts: tuple[int, int], closes: bool) -> None:
    """Rank 0 trains counts[0] batches, the other ranks counts[1]."""

    def use(engine: Engine, rank: int) -> None:
        for number in range(counts[rank > 0]):
            engine.train_batch(batch(number))
        if closes:
            engine.close()

    messages = ended_early(grid, use)
    fewest = min(counts)
    assert set(messages) == ({0} if counts[0] > counts[1] else set(range(1, grid.size)))
    early = "rank 0" if counts[0] < counts[1] else "rank "
    how = "closed its engine" if closes else "ended"
    for text in messages.values():
        assert text.startswith(early)
        assert f"has {how} after {fewest} batch{'es' * (fewest != 1)}; this rank is at batch {fewest + 1}:" in text


@pytest.mark.parametrize("kind", ["list", "generator"])
@pytest.mark.parametrize("grid", GRIDS[:3], ids=str)
def test_error_names_rank_that_leaves_loop_early(grid: Grid, kind: str) -> None:
    def use(engine: Engine, rank: int) -> None:
        for number, _ in enumerate(engine.train(KINDS[kind]([batch(n) for n in range(10)])), 1):
            if rank == 0 and number == 3:
                break

    messages = ended_early(grid, use)
    assert set(messages) == set(range(1, grid.size))
    assert all("rank 0 has ended after 3 batches; this rank is at batch 4" in text for text in messages.values())


def test_error_names_rank_that_leaves_stream_early() -> None:
    def use(engine: Engine, rank: int) -> None:
        for _ in engine.train([batch(n) for n in range(40)]):
            if rank == 0:
                break

    messages = ended_early(Grid(inter=2), use, update_interval=2)
    assert set(messages) == {1}
    assert "rank 0 has ended within a stream; this rank is at a stream" in messages[1]


@pytest.mark.parametrize("call", ["evaluate", "gradients", "save"])
def test_error_names_rank_that_ends_before_another_call(call: str, tmp_path: Path) -> None:
    def use(engine: Engine, rank: int) -> None:
        engine.train_batch(batch(0))
        if rank:
            call_arguments: dict[str, Any] = {"gradients": batch(0), "save": tmp_path}
            getattr(engine, call)(call_arguments.get(call, [batch(0)]))

    messages = ended_early(Grid(data=2), use)
    assert set(messages) == {1}
    assert messages[1].startswith("rank 0 has ended after 1 batch; this rank is at ")


def test_rank_may_end_first_after_same_calls() -> None:
    def use(engine: Engine, rank: int) -> None:
        for number in range(3):
            engine.train_batch(batch(number))
        if rank:
            time.sleep(0.1)
            engine.close()

    assert ended_early(Grid(inter=3), use) == {}


def test_user_error_is_raised_despite_broken_reduction() -> None:
    class Breaks:
        def done(self) -> bool:
            raise RuntimeError("Connection closed by peer")

        def wait(self) -> None: ...

    def batches(engine: Engine) -> Iterator[Batch]:
        yield batch(0)
        engine.state.agreement.reduce = lambda numbers: Breaks()  # type: ignore[method-assign]
        raise KeyError("mine")

    messages = errors(Grid(data=2), lambda engine, rank: list(engine.train(batches(engine))), KeyError)
    assert messages == ["'mine'"] * 2


# -- what is left alone -----------------------------------------------------------------------------------------


class Counted:
    """Counts the reductions that a rank begins over the grid, and the elements that it hashes."""

    def __init__(self, engine: Engine) -> None:
        self.begun, self.reduce = 0, engine.state.agreement.reduce
        engine.state.agreement.reduce = self  # type: ignore[assignment, method-assign]

    def __call__(self, numbers: torch.Tensor) -> Handle:
        self.begun += 1
        return self.reduce(numbers)


@pytest.mark.parametrize(("call", "reductions"), [("train_batch", 16), ("list", 16), ("generator", 17), ("loader", 17)])
def test_equal_batches_need_few_reductions(call: str, reductions: int) -> None:
    """One reduction for each of 16 batches, and one for the end of an iterator."""

    def rank(world: threads.LoopbackWorld) -> tuple[int, list[float]]:
        engine = Engine(
            [lambda: nn.Linear(5, 5), lambda: nn.Linear(5, 1)],
            loss=F.mse_loss,
            optimizer=SGD(0.1),
            microbatch=1,
            grid=Grid(inter=2),
            world=world,
        )
        counted, batches = Counted(engine), [batch(n) for n in range(16)]
        if call == "train_batch":
            losses = [engine.train_batch(one) for one in batches]
        else:
            losses = list(engine.train(KINDS[call](batches)))
        engine.close()
        return counted.begun, losses

    messages = threads.run(2, rank)
    assert {begun for begun, _ in messages} == {reductions}
    alone = Engine(
        [lambda: nn.Linear(5, 5), lambda: nn.Linear(5, 1)], loss=F.mse_loss, optimizer=SGD(0.1), microbatch=1
    )
    assert messages[0][1] == pytest.approx([*alone.train([batch(n) for n in range(16)])], rel=1e-5)


def test_slow_iterator_is_waited_for() -> None:
    def rank(world: threads.LoopbackWorld) -> int:
        def batches() -> Iterator[Batch]:
            for number in range(4):
                time.sleep(0.05 * (number % 2 == world.rank))
                yield batch(number)

        engine = Engine(
            [lambda: nn.Linear(5, 5), lambda: nn.Linear(5, 1)],
            loss=F.mse_loss,
            optimizer=SGD(0.1),
            microbatch=2,
            grid=Grid(inter=2),
            world=world,
        )
        count = len([*engine.train(batches())])
        engine.close()
        return count

    assert threads.run(2, rank) == [4, 4]


def test_failing_layer_leaves_no_pending_reduction() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if Fails.fails:
                raise ValueError("a layer failed")
            return x

    Fails.fails = False

    def use(engine: Engine, rank: int) -> None:
        for number, _ in enumerate(engine.train(iter([batch(n) for n in range(4)]))):
            Fails.fails = number == 1
            assert engine.state.agreement.pending is None
        raise AssertionError

    messages = errors(Grid(data=2), use, ValueError, layers=[lambda: nn.Linear(5, 1), Fails])
    assert messages == ["a layer failed"] * 2


def test_digest_time_of_large_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from suite.engine import digests

    sizes: list[int] = []
    digest_of = digests.digest
    monkeypatch.setattr(digests, "digest", lambda *parts: sizes.append(sum(len(p) for p in parts)) or digest_of(*parts))
    large = torch.zeros(100, 100, 3), torch.zeros(5)
    for number in (1, 2, 3, 4, 64):
        content_of(large, number)
    assert sizes[0] == 4 * 30005
    assert len(sizes) == 4
    assert max(sizes[1:]) <= 4 * (SAMPLE + 5)
    assert min(sizes[1:]) > 4 * SAMPLE * 0.9


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0, 3),
        torch.tensor(1.5),
        torch.ones(4, 4, dtype=torch.bfloat16).T,
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.eye(4).to_sparse(),
        torch.tensor([True, False]),
        torch.ones(3, requires_grad=True),
    ],
    ids=["empty", "scalar", "bfloat16", "conjugate", "sparse", "bool", "leaf"],
)
def test_every_tensor_type_has_a_digest(tensor: torch.Tensor) -> None:
    assert content_of((tensor, [tensor]), 1) == content_of((tensor.clone(), [tensor]), 1) > 0
    assert content_of((tensor, [tensor]), 2) > 0


def test_broken_channel_is_explained_by_batch_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over gloo a failed rank closes its channels before the other ranks poll the reduction."""

    def use(engine: Engine, rank: int) -> None:
        recv_any = engine.state.comm.transport.recv_any

        def broken(ops: Any, timeout: float | None) -> Any:
            if timeout and engine.state.agreement.pending is not None and engine.state.agreement.pending.handle.done():
                raise RankError("a channel broke")
            return recv_any(ops, timeout)

        monkeypatch.setattr(engine.state.comm.transport, "recv_any", broken, raising=True)
        list(engine.train(iter([batch(n) for n in range(4 - 2 * rank)])))

    messages = errors(Grid(inter=2), use)
    assert all("rank 1 ran out after 2 batches" in text for text in messages)


def test_compare_batches_false_makes_no_reductions() -> None:
    def rank(world: threads.LoopbackWorld) -> float:
        layers = [nn.Linear(5, 1)]
        engine = Engine(
            layers, loss=F.mse_loss, optimizer=SGD(0.1), microbatch=1, grid=Grid(data=2), world=world,
            compare_batches=False,
        )  # fmt: skip
        return engine.train_batch(batch(world.rank))

    first, second = threads.run(2, rank, deadline=20)
    assert first == second
