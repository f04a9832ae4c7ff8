"""Different batches on the ranks raise an error on every rank that names the differing ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite import SGD, Engine, Grid
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest, RankError
from suite.core.protocols import Handle
from suite.engine import digests
from suite.engine.digests import SAMPLE, content_of
from tests.support.drawn import cells, generator
from tests.support.waiting import patience

DEADLINE = patience(20)  # measured once, as every measurement takes 10 ms
GRIDS = [Grid(inter=2), Grid(data=2), Grid(inter=2, data=2), Grid(inter=3)]
TWO = Grid(inter=2)
Batch = tuple[torch.Tensor, torch.Tensor]


class Loader:
    """Loader with a length and an iterator, like a DataLoader."""

    def __init__(self, batches: list[Any], length: int = 0) -> None:
        self.batches, self.length = batches, length or len(batches)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


KINDS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "generator": iter,
    "loader": Loader,
    "longer": lambda batches: Loader(batches, 9),
}


def batch(number: int, samples: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(samples, 5, generator=generator), torch.randn(samples, 1, generator=generator)


def batches(count: int) -> list[Batch]:
    return [batch(number) for number in range(count)]


def make_engine(grid: Grid, world: Any, layers: Any = None, **more: Any) -> Engine:
    layers = layers or [lambda: nn.Linear(5, 5), nn.Tanh, lambda: nn.Linear(5, 1)]
    return Engine(layers, loss=F.mse_loss, optimizer=SGD(0.1), microbatch=1, grid=grid, world=world, **more)


def consume(engine: Engine, call: str, data: Any) -> None:
    """Train or evaluate; a call of one batch is made for each batch."""
    if call in ("train", "stream"):
        list(engine.train(data))
    elif call == "evaluate":
        engine.evaluate(data)
    else:
        for one in data:
            getattr(engine, call)(one)


def streamed(call: str) -> dict[str, int]:
    return {"update_interval": 2} if call == "stream" else {}


def errors(grid: Grid, use: Callable[[Engine, int], Any], kind: Any = InvalidRequest, **more: Any) -> list[str | None]:
    """Error message of every rank, None for a rank without an error. The deadline ends a test whose ranks hang."""

    def rank(world: threads.LoopbackWorld) -> str | None:
        engine = make_engine(grid, world, **more)
        try:
            use(engine, world.rank)
        except kind as error:
            return str(error)
        return None

    return threads.run(grid.size, rank, deadline=DEADLINE)


def common_error(grid: Grid, use: Callable[[Engine, int], Any], **more: Any) -> str:
    """Error message, which is equal on every rank."""
    (message,) = set(errors(grid, use, **more))
    assert message is not None
    return message


# -- numbers and contents ----------------------------------------------------------------------------------------

SHORT, ENDED = "rank {last}: 3 batches", "rank {last} ran out after 3 batches"
CONTENTS = "has other contents on rank {last} than on rank 0"
LENGTHS = [f"{call} {kind}" for call in ("train", "stream", "evaluate") for kind in ("list", "loader")]
ITERATORS = ["train generator", "evaluate generator", "train longer", "evaluate longer"]
COMPARED = ["train list", "train generator", "train_batch list", "stream list", "stream loader"]
DIFFERENCES: list[tuple[str, list[int], str]] = [  # the other ranks have batches 0 to 4
    *((how, [0, 1, 2], SHORT) for how in (*LENGTHS, "stream generator")),
    *((how, [0, 1, 2], ENDED) for how in (*ITERATORS, "train list generator", "train generator list")),
    ("train list", [], "rank {last}: 0 batches"),
    ("train generator", [], "rank {last} ran out after 0 batches"),
    *((how, [0, 9, 9, 9, 9], f"batch 2 {CONTENTS}") for how in COMPARED),  # contents are compared at powers of two
    *((how, [0, 1, 2, 9, 9], f"batch 4 {CONTENTS}") for how in COMPARED),
]


@pytest.mark.parametrize(("how", "numbers", "words"), DIFFERENCES)
def test_differences_of_the_last_rank_are_named(how: str, numbers: list[int], words: str) -> None:
    """`how` is the call, and the kind of batches of the first ranks and of the last."""
    grid = generator(how, numbers).choice(GRIDS)
    last, (call, *kinds) = grid.size - 1, how.split()

    def use(engine: Engine, rank: int) -> None:
        data = [batch(number) for number in (numbers if rank == last else range(5))]
        consume(engine, call, KINDS[kinds[-1 if rank == last else 0]](data))

    assert words.format(last=last) in common_error(grid, use, **streamed(call))


@pytest.mark.parametrize(("grid", "at", "call"), [(TWO, 0, "train"), (GRIDS[1], 2, "train"), (TWO, 1, "stream")])
def test_failing_iterator_raises_on_every_rank(grid: Grid, at: int, call: str) -> None:
    def each(rank: int) -> Iterator[Batch]:
        yield from batches(at if rank else 4)
        if rank:
            raise ValueError("no such file")

    messages = errors(grid, lambda engine, rank: list(engine.train(each(rank))), Exception, **streamed(call))
    assert messages[1] == "no such file"
    assert f"rank 1 could not read batch {1 if call == 'stream' else at + 1}" in str(messages[0])


@pytest.mark.parametrize(
    ("grid", "call"), cells(GRIDS, ["train", "stream", "train_batch", "evaluate", "gradients"], n=5)
)
def test_single_differing_element_of_first_batch_is_detected(grid: Grid, call: str) -> None:
    """The error comes before any rank computes."""
    other = grid.size // 2

    def use(engine: Engine, rank: int) -> None:
        x, y = batch(0)
        if rank == other:
            x[3, 3] += 1e-6
        try:
            consume(engine, call, iter([(x, y)]))
        finally:
            assert (engine.state.microbatches, engine.state.updates, engine.state.evaluated) == (0, 0, 0)

    message = common_error(grid, use, **streamed(call))
    assert f"batch 1 has other contents on rank {other} than on rank 0" in message
    assert "torch.manual_seed" in message


@pytest.mark.parametrize("change", ["samples", "type", "parts"])
def test_different_sizes_are_detected_at_every_batch(change: str) -> None:
    def changed(x: torch.Tensor, y: torch.Tensor) -> Any:
        return {"samples": (x[:2], y[:2]), "type": (x.double(), y), "parts": ((x, x), y)}[change]

    for kind, call in (("list", "train"), ("generator", "train"), ("list", "train_batch"), ("list", "gradients")):

        def use(engine: Engine, rank: int, kind: str = kind, call: str = call) -> None:
            data = [changed(*batch(n)) if rank and n == 2 else batch(n) for n in range(5)]
            consume(engine, call, KINDS[kind](data))

        subject = "a later batch of the list" if (kind, call) == ("list", "train") else "batch 3"
        assert f"{subject} has other sizes or types on rank 1 than on rank 0" in common_error(TWO, use)


def test_error_names_ranks_in_minority() -> None:
    for others, words in (({3}, "rank 3 than on rank 0"), ({0}, "rank 0 than on rank 1"), ({1, 3}, "ranks 1, 3 than")):
        assert words in common_error(
            GRIDS[2], lambda engine, rank, others=others: engine.train_batch(batch(int(rank in others)))
        )


@pytest.mark.parametrize("kind", ["list", "generator", "stream"])
def test_first_batch_of_each_epoch_is_compared(kind: str) -> None:
    """Batches 4 and 7 of 9 start epochs and are no powers of two."""

    def use(engine: Engine, rank: int) -> None:
        for epoch in range(3):
            list(engine.train(KINDS[kind.replace("stream", "list")]([batch(n + 10 * rank * epoch) for n in range(3)])))

    assert "batch 1 has other contents on rank 1 than on rank 0" in common_error(TWO, use, **streamed(kind))


@pytest.mark.parametrize("call", ["train_batch", "train", "stream"])
def test_one_in_some_batches_is_compared(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "EVERY", 6)

    def use(engine: Engine, rank: int) -> None:
        consume(engine, call, [batch(rank if n >= 8 else 0) for n in range(14)])

    assert "batch 12 has other contents on rank 1 than on rank 0" in common_error(TWO, use, **streamed(call))


def test_batches_1_2_4_and_every_64th_are_compared() -> None:
    compared = [number for number in range(1, 200) if content_of(batch(0), number)]
    assert compared == [1, 2, 4, 8, 16, 32, 64, 128, 192]
    assert content_of(batch(0), 3, first=True) > 0


# -- calls --------------------------------------------------------------------------------------------------------


CALLS = ["evaluate", "score", "gradients", "save", "load", "prune", "train"]


@pytest.mark.parametrize(("grid", "call"), cells(GRIDS[:3], CALLS, n=5))
def test_different_calls_raise_on_every_rank(grid: Grid, call: str, tmp_path: Path) -> None:
    def use(engine: Engine, rank: int) -> None:
        engine.train_batch(batch(0))
        argument: Any = {"gradients": batch(0), "save": tmp_path, "load": tmp_path, "prune": {}}.get(call, batches(1))
        if rank == 0:
            getattr(engine, "evaluate" if call == "train" else call)(argument)
        elif call == "train":
            list(engine.train(iter([batch(1)])))
        for number in range(1, 7):
            engine.train_batch(batch(number))

    verb = {"gradients": "computes gradients", "save": "saves", "load": "loads", "prune": "prunes"}
    others = "rank 1 trains" if grid.size == 2 else "ranks 1, 2, 3 train"
    assert common_error(grid, use).startswith(f"rank 0 {verb.get(call, 'evaluates')}, {others};")


# -- ranks that make no more calls ----------------------------------------------------------------------------------


def ended_early(grid: Grid, use: Callable[[Engine, int], Any], **more: Any) -> dict[int, str]:
    """Error messages of the ranks that wait for an ended rank, by rank."""
    messages = errors(grid, use, RankError, **more)
    return {rank: message for rank, message in enumerate(messages) if message is not None}


@pytest.mark.parametrize(
    ("grid", "counts", "how"),
    cells(
        GRIDS,
        [(3, 5), (5, 3), (2, 3), (0, 1)],
        ["ends", "closes", "leaves a loop"],
        n=6,
        always=[(TWO, (0, 1), "closes")],
    ),
)
def test_error_names_rank_that_ends_early(grid: Grid, counts: tuple[int, int], how: str) -> None:
    """Rank 0 trains counts[0] batches, the other ranks counts[1]."""

    def use(engine: Engine, rank: int) -> None:
        count = counts[rank > 0]
        if how == "leaves a loop" and count:
            losses = engine.train(batches(9))
            assert len([next(losses) for _ in range(count)]) == count
        else:
            consume(engine, "train_batch", batches(count))
        if how == "closes":
            engine.close()

    messages = ended_early(grid, use)
    fewest = min(counts)
    assert set(messages) == ({0} if counts[0] > counts[1] else set(range(1, grid.size)))
    early, end = "rank 0" if counts[0] < counts[1] else "rank ", "closed its engine" if how == "closes" else "ended"
    for text in messages.values():
        assert text.startswith(early)
        assert f"has {end} after {fewest} batch{'es' * (fewest != 1)}; this rank is at batch {fewest + 1}:" in text


@pytest.mark.parametrize("call", ["evaluate", "gradients", "save", "a stream"])
def test_error_names_rank_that_ends_before_another_call(call: str, tmp_path: Path) -> None:
    def use(engine: Engine, rank: int) -> None:
        if call == "a stream":
            losses = engine.train(batches(9))
            list(losses if rank else [next(losses)])
        else:
            engine.train_batch(batch(0))
            if rank:
                arguments: dict[str, Any] = {"gradients": batch(0), "save": tmp_path}
                getattr(engine, call)(arguments.get(call, [batch(0)]))

    messages = ended_early(Grid(data=2), use, **streamed("stream" if call == "a stream" else ""))
    assert set(messages) == {1}
    where = "within a stream; this rank is at a stream" if call == "a stream" else "after 1 batch; this rank is at "
    assert messages[1].startswith(f"rank 0 has ended {where}")


def test_rank_may_end_first_after_same_calls() -> None:
    ended = threading.Event()

    def use(engine: Engine, rank: int) -> None:
        consume(engine, "train_batch", batches(3))
        if rank == 0:
            ended.set()
        else:
            ended.wait()
            engine.close()

    assert ended_early(Grid(inter=3), use) == {}


def test_user_error_is_raised_despite_broken_reduction() -> None:
    class Breaks:
        def done(self) -> bool:
            raise RuntimeError("Connection closed by peer")

        def wait(self) -> None: ...

    def each(engine: Engine) -> Iterator[Batch]:
        yield batch(0)
        engine.state.agreement.reduce = lambda numbers: Breaks()  # type: ignore[method-assign]
        raise KeyError("mine")

    assert errors(Grid(data=2), lambda engine, rank: list(engine.train(each(engine))), KeyError) == ["'mine'"] * 2


# -- what is left alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "reductions"), [("", 8), ("list", 8), ("generator", 9), ("loader", 9)])
def test_equal_batches_need_few_reductions(kind: str, reductions: int) -> None:
    """One reduction for each of 8 batches, and one for the end of an iterator."""

    def rank(world: threads.LoopbackWorld) -> tuple[int, list[float]]:
        engine, begun = make_engine(TWO, world), list[torch.Tensor]()
        reduce = engine.state.agreement.reduce

        def counted(numbers: torch.Tensor) -> Handle:
            begun.append(numbers)
            return reduce(numbers)

        engine.state.agreement.reduce = counted  # type: ignore[method-assign]
        losses = list(engine.train(KINDS[kind](batches(8)))) if kind else [engine.train_batch(b) for b in batches(8)]
        engine.close()
        return len(begun), losses

    ranks = threads.run(2, rank)
    assert {begun for begun, _ in ranks} == {reductions}
    assert ranks[0][1] == pytest.approx([*make_engine(Grid(), None).train(batches(8))], rel=1e-5)


def test_failing_layer_leaves_no_pending_reduction() -> None:
    class Fails(nn.Module):
        fails = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if Fails.fails:
                raise ValueError("a layer failed")
            return x

    def use(engine: Engine, rank: int) -> None:
        for number, _ in enumerate(engine.train(iter(batches(4)))):
            Fails.fails = number == 1
            assert engine.state.agreement.pending is None
        raise AssertionError

    layers = [lambda: nn.Linear(5, 1), Fails]
    assert errors(Grid(data=2), use, ValueError, layers=layers) == ["a layer failed"] * 2


def test_digest_time_of_large_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_every_tensor_type_has_a_digest() -> None:
    for tensor in (
        torch.zeros(0, 3),
        torch.tensor(1.5),
        torch.ones(4, 4, dtype=torch.bfloat16).T,
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.eye(4).to_sparse(),
        torch.tensor([True, False]),
        torch.ones(3, requires_grad=True),
    ):
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
        list(engine.train(iter(batches(4 - 2 * rank))))

    assert "rank 1 ran out after 2 batches" in common_error(TWO, use)


def test_compare_batches_false_makes_no_reductions() -> None:
    def rank(world: threads.LoopbackWorld) -> float:
        return make_engine(Grid(data=2), world, compare_batches=False).train_batch(batch(world.rank))

    first, second = threads.run(2, rank, deadline=DEADLINE)
    assert first == second
