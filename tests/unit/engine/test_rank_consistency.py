"""Ranks with different batches or calls, and ranks that leave, end every rank with a sentence that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite import SGD, Engine, Grid
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest, RankError, SuiteError
from suite.engine.guards import rank_consistency
from suite.engine.guards.rank_consistency import RankConsistencyCheck
from tests.support.drawn import cells

GRIDS = [Grid(inter=2), Grid(data=2), Grid(inter=2, data=2), Grid(inter=3)]
TWO = Grid(inter=2)
Batch = tuple[torch.Tensor, torch.Tensor]


def batch(number: int, samples: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(samples, 5, generator=generator), torch.randn(samples, 1, generator=generator)


def batches(count: int) -> list[Batch]:
    return [batch(number) for number in range(count)]


def make_engine(grid: Grid, world: Any, layers: Any = None, **more: Any) -> Engine:
    layers = layers or [lambda: nn.Linear(5, 5), nn.Tanh, lambda: nn.Linear(5, 1)]
    more = {"loss": F.mse_loss, **more}
    return Engine(layers, optimizer=SGD(0.1), microbatch=1, grid=grid, world=world, **more)


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
    """Error message of every rank, None for a rank without an error."""

    def rank(world: threads.LoopbackWorld) -> str | None:
        engine = make_engine(grid, world, **more)
        try:
            use(engine, world.rank)
        except kind as error:
            return str(error)
        return None

    return threads.run(grid.size, rank)


def common_error(grid: Grid, use: Callable[[Engine, int], Any], **more: Any) -> str:
    """Error message, which is equal on every rank."""
    (message,) = set(errors(grid, use, **more))
    assert message is not None
    return message


def sentences(grid: Grid, use: Callable[[Engine, int], Any], **more: Any) -> str:
    """Error messages of the ranks, each of which has one."""
    messages = errors(grid, use, SuiteError, **more)
    assert None not in messages
    return "\n".join(map(str, messages))


# -- batches ---------------------------------------------------------------------------------------------------------


CALLS = ["train", "stream", "train_batch", "evaluate", "gradients", "predict"]


@pytest.mark.parametrize(("grid", "call"), cells(GRIDS, CALLS, n=5, always=[(TWO, "stream")]))
def test_single_differing_element_of_first_batch_is_detected(grid: Grid, call: str) -> None:
    other = grid.size // 2

    def use(engine: Engine, rank: int) -> None:
        x, y = batch(0)
        if rank == other:
            x[3, 3] += 1e-6
        consume(engine, call, [x] if call == "predict" else iter([(x, y)]))

    message = common_error(grid, use, **streamed(call))
    assert f"has other contents on rank {other} than on rank 0" in message
    assert "torch.manual_seed" in message


def test_error_names_ranks_in_minority() -> None:
    for others, words in (({3}, "rank 3 than on rank 0"), ({0}, "rank 0 than on rank 1"), ({1, 3}, "ranks 1, 3 than")):
        assert words in common_error(
            GRIDS[2], lambda engine, rank, others=others: engine.train_batch(batch(int(rank in others)))
        )


@pytest.mark.parametrize("change", ["samples", "type", "parts"])
@pytest.mark.parametrize("grid", [TWO, GRIDS[1]], ids=str)
def test_other_sizes_are_detected_in_every_batch(grid: Grid, change: str) -> None:
    """Also where ranks wait for one another, as they have other numbers of microbatches."""

    def changed(x: torch.Tensor, y: torch.Tensor) -> Any:
        return {"samples": (x[:2], y[:2]), "type": (x, y.double()), "parts": (x, (y, y))}[change]

    for call in ("train", "train_batch", "evaluate"):

        def use(engine: Engine, rank: int, call: str = call) -> None:
            consume(engine, call, iter([changed(*batch(n)) if rank == 0 and n == 2 else batch(n) for n in range(5)]))

        messages = sentences(grid, use, loss=lambda output, target, *_: F.mse_loss(output, target.to(output)))
        assert "other sizes or types" in messages
        assert call == "evaluate" or "batch 3" in messages


@pytest.mark.parametrize("call", ["train_batch", "train", "stream"])
def test_content_of_one_batch_in_some_is_compared(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_consistency, "EVERY", 6)

    def use(engine: Engine, rank: int) -> None:
        consume(engine, call, [batch(rank if n >= 8 else 0) for n in range(18)])

    where = "one of the batches 9 to 16" if call == "stream" else "batch 12"
    assert f"{where} has other contents on rank 1 than on rank 0" in common_error(TWO, use, **streamed(call))


@pytest.mark.parametrize(("grid", "call"), cells(GRIDS, ["train", "evaluate"], n=2))
def test_batches_that_end_early_end_every_rank(grid: Grid, call: str) -> None:
    *others, last = errors(
        grid, lambda engine, rank: consume(engine, call, batches(3 if rank == grid.size - 1 else 5)), SuiteError
    )
    assert last is None
    assert all(str(message).startswith(f"rank {grid.size - 1} has ended") for message in others)


@pytest.mark.parametrize(("grid", "at", "call"), [(TWO, 0, "train"), (GRIDS[1], 2, "train"), (TWO, 1, "stream")])
def test_failing_iterator_ends_every_rank(grid: Grid, at: int, call: str) -> None:
    def each(rank: int) -> Iterator[Batch]:
        yield from batches(at if rank else 4)
        if rank:
            raise ValueError("no such file")

    messages = errors(grid, lambda engine, rank: list(engine.train(each(rank))), Exception, **streamed(call))
    assert messages[1] == "no such file"
    assert str(messages[0]).startswith("rank 1 has ended after")


# -- calls -----------------------------------------------------------------------------------------------------------


OTHER_CALLS = ["evaluate", "score", "gradients", "save", "load", "prune", "train"]


@pytest.mark.parametrize(("grid", "call"), cells(GRIDS[:3], OTHER_CALLS, n=5))
def test_different_calls_raise_on_every_rank(grid: Grid, call: str, tmp_path: Path) -> None:
    def use(engine: Engine, rank: int) -> None:
        engine.train_batch(batch(0))
        argument: Any = {"gradients": batch(0), "save": tmp_path, "load": tmp_path, "prune": {}}.get(call, batches(1))
        if rank == 0:
            getattr(engine, "evaluate" if call == "train" else call)(argument)
        for number in range(1, 7):
            engine.train_batch(batch(number))

    clauses = {"gradients": "the gradients", "save": "saving", "load": "loading", "prune": "a pruning"}
    messages = sentences(grid, use)
    assert f"rank 0 is at {clauses.get(call, 'an evaluation')}" in messages, messages


# -- ranks that make no more calls -----------------------------------------------------------------------------------


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
    if counts[0] > counts[1] and how == "closes":  # a message of rank 0 may have come before the rank closed
        messages = {rank: text for rank, text in messages.items() if "closes with values unreceived" not in text}
    fewest = min(counts)
    assert set(messages) == ({0} if counts[0] > counts[1] else set(range(1, grid.size)))
    early, end = "rank 0" if counts[0] < counts[1] else "rank ", "closed its engine" if how == "closes" else "ended"
    for text in messages.values():
        assert text.startswith(early)
        assert f"has {end} after {fewest} batch{'es' * (fewest != 1)}; this rank is at batch {fewest + 1}:" in text


# -- what is left alone ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compare", [True, False])
def test_no_reduction_is_added(compare: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses of batches are reduced, and once whether the loss returns pairs."""
    lengths: list[int] = []
    all_reduce = threads.LoopbackGroup.all_reduce

    def counted(group: Any, tensor: torch.Tensor, op: str = "sum") -> Any:
        lengths.append(tensor.numel())
        return all_reduce(group, tensor, op)

    def rank(world: threads.LoopbackWorld) -> list[float]:
        engine = make_engine(TWO, world, compare_batches=compare)
        world.all_reduce_numbers([0.0], "sum", lambda: None)  # both engines are made
        monkeypatch.setattr(threads.LoopbackGroup, "all_reduce", counted)
        return [engine.train_batch(b) for b in batches(4)] + list(engine.train(batches(4)))

    losses, _ = threads.run(2, rank)
    assert lengths == [3 if compare else 1] * 2 * 9
    assert losses == pytest.approx([*make_engine(Grid(), None).train(batches(4))] * 1 + losses[4:], rel=1e-5)


def hashes(*values: Any) -> list[int]:
    check = RankConsistencyCheck(threads.LoopbackWorld(threads.Hub(1), 0), None, 0, [[0]], off=True)  # type: ignore[arg-type]
    return [check.code_of("training", value) for value in values]


def test_every_tensor_type_has_a_hash() -> None:
    for tensor in (
        torch.zeros(0, 3),
        torch.tensor(1.5),
        torch.ones(4, 4, dtype=torch.bfloat16).T,
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.eye(4).to_sparse(),
        torch.tensor([True, False]),
        torch.ones(3, requires_grad=True),
    ):
        assert hashes((tensor, [tensor])) == hashes((tensor.clone(), [tensor]))
