"""Pruning of an engine: valid masks are applied, and invalid masks are rejected."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.protocols import Read
from suite.core.trace import BACKWARD, COMPRESS, EXPAND, INSIDE
from suite.engine.engine import Engine
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.engine.optim.optimizer import SGD, AdamW
from suite.engine.pruning import Pruning
from suite.engine.states.compress import compress, expand, mask
from suite.memory.layout import compressed, offloaded, resident
from suite.pruning.early_bird import EarlyBird
from suite.pruning.magnitude import Magnitude
from tests.support.cases import gpt_case
from tests.support.masked import FixedMask, MaskedLoop, dense_states, random_mask
from tests.support.refusals import fault, refused
from tests.support.resuming import engine_of, rank_state

CASE = gpt_case("tied", "float32")
TICKET = random_mask(CASE, 0.8)


def alone(**more: Any) -> Engine:
    world = threads.LoopbackWorld(threads.Hub(1), 0)
    return engine_of(CASE, world, Grid(), **{"optimizer": AdamW(0.01), "memory": compressed, **more})


# -- compress and expand ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_expand_is_the_inverse_of_compress(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for entries, kept in ((1, 1), (7, 3), (300_000, 290_000)):  # the last size is expanded in pieces
        index = torch.randperm(entries, generator=generator)[:kept].sort().values.int()
        dense = torch.randn(entries, generator=generator).to(dtype)
        values = compress(dense.view(1, -1), index)
        assert torch.equal(values, dense[index.long()])
        again = torch.full_like(dense, 9.0)
        expand(values, index, again)
        assert torch.equal(compress(again, index), values)
        assert int((again == 9.0).sum()) == entries - kept, "what is pruned stays as it is"
        mask(dense, index)
        assert torch.equal(compress(dense, index), values)
        assert int((dense != 0).sum()) == int((values != 0).sum())


def test_indices_follow_papers_flat_view() -> None:
    """SAMO III-B: the entries (0, 0) and (1, 1) of a 2 x 2 tensor have the indices 0 and 3."""
    assert compress(torch.tensor([[5.0, 6.0], [7.0, 8.0]]), torch.tensor([0, 3], dtype=torch.int32)).tolist() == [5, 8]


# -- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoints", [None, 1])
def test_at_most_one_dense_gradient_is_alive(checkpoints: int | None) -> None:
    """SAMO III-C: the model's dense gradient never exists. A layer's is freed before the next is computed."""
    width, depth = 300, 6  # a gradient of 360 kB; activations of 2 x 300 are negligible
    layers = [nn.Linear(width, width, bias=False) for _ in range(depth)]
    one = 4 * width * width

    def peak(**more: Any) -> int:
        engine = Engine(
            layers,
            loss=lambda y, _: y.square().mean(),
            optimizer=SGD(0.01),
            microbatch=2,
            memory=compressed,
            activation_checkpointing=checkpoints,
            **more,
        )
        with MemoryTracker() as live:
            value = (torch.ones(2, width),)
            engine.state.stage.forward(0, value, targets=(torch.zeros(2),), sample=0, read=Read(0, 0, "keep"))
            before = live.live
            live.peak = before
            engine.state.stage.backward(0, ())
            return live.peak - before

    peak_bytes = peak(pruning=Pruning(Magnitude(), 0.9))
    assert one <= peak_bytes < 1.5 * one, "one, and what is compressed of it"


def test_gradients_are_dense_with_zeros_at_pruned_entries() -> None:
    engine, dense = alone(pruning=Pruning(FixedMask(TICKET), 0.8)), alone(memory=resident)
    for parameter, weight in zip(
        dense.state.model_states.parameters, engine.state.model_states.parameters, strict=True
    ):
        parameter.data.copy_(weight.data)
    batch = CASE.batch(0, 4, 1)
    for parameter, got, right in zip(
        engine.state.model_states.parameters, engine.gradients(batch), dense.gradients(batch), strict=True
    ):
        if (index := engine.state.model_states.kept.get(id(parameter))) is not None:
            mask(right, index)
        assert torch.equal(got, right)
        assert got.any()


# -- in the middle of a training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [None, "bfloat16"])
@pytest.mark.parametrize(
    "memory", [compressed, partial(compressed, bucket=100, offloaded=True)], ids=["resident", "away"]
)
def test_pruning_preserves_kept_weights_and_moments(half: str | None, memory: Any) -> None:
    """Two dense batches, then pruning: equal to masking the dense states and continuing with masks."""
    rule = AdamW(0.01)
    engine = alone(half=half, memory=memory, bucket_numel=100, pruning=Pruning(FixedMask(TICKET, after=2), 0.8))
    loop = MaskedLoop(CASE, 1, rule, {}, half=half)
    for number in range(2):
        batch = CASE.batch(number, 2, 1)
        assert engine.train_batch(batch) == pytest.approx(loop.train(batch), rel=1e-12)
    loop.prune(TICKET)
    assert engine.state.pruned_after == 2
    for number in range(2, 5):
        batch = CASE.batch(number, 2, 1)
        assert engine.train_batch(batch) == pytest.approx(loop.train(batch), rel=1e-12)
    expected = [
        t.reshape(-1)
        for state, p in zip(loop.states, loop.parameters(), strict=True)
        for t in (*state.weights, *state.moments.values(), p.data)
    ]
    for got, right in zip(dense_states(engine), expected, strict=True):
        assert torch.equal(got, right)


@pytest.mark.parametrize("memory", [resident, partial(offloaded, bucket=100)], ids=["resident", "offloaded"])
def test_dense_layout_is_rejected_for_pruning_without_change(memory: Any) -> None:
    engine = alone(memory=memory, bucket_numel=100, half="bfloat16")
    before = rank_state(engine)
    with refused(InvalidRequest, subject="in a layout that keeps all", rule="compressed", legal="memory=compressed"):
        engine.prune(TICKET)
    before.compare(rank_state(engine), "refused")
    engine.train_batch(CASE.batch(0, 2, 1))


# -- what does not fit -----------------------------------------------------------------------------------------------


def test_mask_of_another_model_is_rejected() -> None:
    engine = alone()
    key = next(iter(TICKET))
    for indices, subject in (
        ({(1, "nothing.weight"): TICKET[key]}, "weight nothing.weight of layer 1, which this model does not train"),
        ({key: torch.tensor([0, 10**6], dtype=torch.int32)}, "index 1000000 of 768 entries"),
        ({key: torch.tensor([3, 2], dtype=torch.int32)}, "is not sorted"),
        ({key: torch.tensor([], dtype=torch.int32)}, "without kept entries"),
        ({key: torch.tensor([1, 2])}, "int64"),
        ({(0, "token.weight"): torch.tensor([1], dtype=torch.int32)}, "tied=[(0, 'token.weight', 4, 'weight')]"),
    ):
        before = rank_state(engine)
        with refused(InvalidRequest, subject=subject):
            engine.prune(indices)
        before.compare(rank_state(engine), subject)


def test_pruning_twice_or_within_batch_is_rejected() -> None:
    engine = alone()
    engine.state.drained = False
    with refused(InvalidRequest, subject="within a batch", rule="a network is pruned between batches"):
        engine.prune(TICKET)
    engine.state.drained = True
    engine.prune(TICKET)
    with refused(InvalidRequest, subject="a pruned network", rule="an engine is pruned at most once"):
        engine.prune(TICKET)


def test_replaced_gradient_of_pruned_weight_is_detected() -> None:
    engine = alone(pruning=Pruning(FixedMask(TICKET), 0.8))
    weight = next(p for p in engine.state.model_states.parameters if id(p) in engine.state.model_states.kept)
    weight.grad = torch.zeros_like(weight)
    with refused(
        InvalidRequest,
        subject=".grad of a weight of this engine was replaced",
        rule="an engine owns .data and .grad of its weights: do not",
    ):
        next(engine.state.update.run())


@pytest.mark.parametrize("half", [None, "bfloat16"])
def test_trace_has_spans_of_compression_and_expansion(half: str | None) -> None:
    engine = alone(half=half, pruning=Pruning(FixedMask(TICKET), 0.8))
    engine.train_batch(CASE.batch(0, 4, 1))
    spans = [span for span in engine.state.trace if span.category in INSIDE]
    passes = [span for span in engine.state.trace if span.category == BACKWARD]
    assert [span.category for span in spans] == [COMPRESS] * 4 + [EXPAND]
    for part, whole in zip(spans[:4], passes, strict=True):
        assert whole.start <= part.start < part.end <= whole.end
    dense = alone(memory=resident)
    dense.train_batch(CASE.batch(0, 4, 1))
    assert not [span for span in dense.state.trace if span.category in INSIDE]


# -- overflow --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [1, 2])
def test_overflow_at_pruned_entries_is_ignored(data: int) -> None:
    """An input of the last replica makes a column of the gradient infinite in float16."""
    ticket = {(0, "weight"): torch.tensor([0, 2], dtype=torch.int32)}  # of a weight of shape (1, 3)
    inputs = torch.full((data, 3), 2.0)
    outcomes = {}
    for column in (1, 2):
        big = inputs.clone()
        big[-1, column] = 60_000.0

        def rank(world: Any, big: torch.Tensor = big) -> tuple[int, list[float], float]:
            engine = Engine(
                [partial(nn.Linear, 3, 1, bias=False)],
                loss=lambda y, _: (y * 0.0).sum() + y.sum() - y.sum().detach(),
                optimizer=SGD(2.0**-4),
                microbatch=1,
                grid=Grid(data=data),
                half="float16",
                loss_scaler=DynamicLossScaler(start=8.0, patience=100),
                pruning=Pruning(FixedMask(ticket), 0.3),
                world=world,
            )
            before = engine.state.model_states.rule.weights[0].tolist()
            engine.train_batch((big, torch.zeros(data)))
            moved = [b - a for a, b in zip(engine.state.model_states.rule.weights[0].tolist(), before, strict=True)]
            assert engine.state.loss_scaler is not None
            return engine.state.update.skipped, moved, engine.state.loss_scaler.scale

        outcomes[column] = threads.run(data, rank)
    assert all(skipped == 0 and scale == 8.0 and moved[0] != 0 for skipped, moved, scale in outcomes[1])
    assert all(skipped == 1 and scale == 4.0 and moved == [0.0, 0.0] for skipped, moved, scale in outcomes[2])


def test_checkpoint_of_pruned_model_with_other_widths_is_rejected(tmp_path: Path) -> None:
    """All indices are valid for the wider weight too."""

    def one(width: int) -> Engine:
        return Engine(
            [partial(nn.Linear, 4, width, bias=False)],
            loss=lambda y, _: y.sum(),
            optimizer=SGD(0.1),
            microbatch=1,
            half="bfloat16",
        )

    small, large = one(4), one(8)
    small.prune({(0, "weight"): torch.tensor([1, 5], dtype=torch.int32)})
    small.save(tmp_path)
    before = rank_state(large)
    with refused(
        InvalidRequest,
        subject="has velocity/weight ['float32', 2], this engine has ['float32', 8, 4]",
        rule="a checkpoint resumes a run with the settings that it was",
    ):
        large.load(tmp_path)
    before.compare(rank_state(large), "refused")


# -- several engines, several ranks ----------------------------------------------------------------------------------


def test_successive_engines_prune_same_modules() -> None:
    """Dense after pruned, and pruned after pruned: the newest engine receives the gradients."""
    layers = [nn.Linear(4, 4, bias=False)]
    settings: dict[str, Any] = {"loss": lambda y, _: y.square().mean(), "optimizer": SGD(0.1), "microbatch": 1}
    batch = torch.ones(2, 4), torch.zeros(2)
    first = Engine(layers, pruning=Pruning(Magnitude(), 0.5), **settings)
    first.train_batch(batch)
    second = Engine(layers, pruning=Pruning(Magnitude(), 0.75), **settings)
    second.train_batch(batch)
    assert int((layers[0].weight != 0).sum()) == 4
    dense = Engine(layers, **settings)
    dense.train_batch(batch)
    assert int((layers[0].weight != 0).sum()) > 4
    del first, second


@pytest.mark.parametrize("grid", [Grid(data=2), Grid(inter=2)], ids=str)
def test_differing_masks_raise_on_every_rank(grid: Grid) -> None:
    """Different indices on replicas, or at the ends of a tie, raise on all ranks."""
    tied = CASE.ties if grid.inter == 2 else []

    def rank(world: Any) -> str:
        engine = engine_of(CASE, world, grid, optimizer=AdamW(0.01), tied=tied)
        places = [0, 5, 9 if world.rank == 0 else 8]
        index = torch.tensor(places, dtype=torch.int32)
        ends = {(0, "token.weight"): index, (4, "weight"): index}
        with pytest.raises(InvalidRequest) as caught:
            engine.prune({(1, "qkv.weight"): index} if grid.data == 2 else ends)
        assert engine.state.pruned_after is None
        engine.train_batch(CASE.batch(0, 2, grid.data))
        engine.close()
        return str(caught.value)

    pattern = "differ between replicas" if grid.data == 2 else "ends of tied=[(0, 'token.weight', 4, 'weight')]"
    assert all(pattern in caught for caught in threads.run(grid.size, rank, deadline=20.0))


def test_mask_error_of_one_stage_raises_on_every_rank() -> None:
    def rank(world: Any) -> str:
        engine = engine_of(CASE, world, Grid(inter=2), optimizer=AdamW(0.01))
        bad = {(1, "qkv.weight"): torch.tensor([10**6], dtype=torch.int32)}
        with pytest.raises(InvalidRequest) as caught:
            engine.prune({**TICKET, **bad})
        before = engine.state.pruned_after
        engine.train_batch(CASE.batch(0, 2, 1))
        engine.close()
        return f"{before} {caught.value}"

    first, second = threads.run(2, rank, deadline=20.0)
    assert first.startswith("None weight qkv.weight of layer 1: index 1000000")
    assert second.startswith("None the network is pruned: rank 0 failed")


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ({}, fault(subject="an empty mask", rule="a mask has the indices of at least one weight")),
        (
            {(99, "weight"): torch.tensor([0], dtype=torch.int32)},
            fault(subject="a mask with key (99, 'weight')", rule="a key is (layer number below 5, name of its weight)"),
        ),
        ({(-1, "weight"): torch.tensor([0], dtype=torch.int32)}, fault(rule="layer number below 5")),
        (
            {"1.weight": torch.tensor([0], dtype=torch.int32)},
            fault(subject="a mask with key '1.weight'", rule="a key is (layer number below 5, name of its weight)"),
        ),
    ],
    ids=str,
)
def test_mask_without_weights_is_rejected(indices: Any, expected: dict[str, object]) -> None:
    engine = alone()
    with refused(InvalidRequest, **expected):
        engine.prune(indices)
    assert engine.state.pruned_after is None
    engine.prune(TICKET)


@pytest.mark.parametrize("half", [None, "bfloat16"])
def test_rejected_mask_leaves_engine_unchanged(half: str | None) -> None:
    """A layout that expands fewer entries than a step takes is rejected before weights or states change."""
    engine = alone(memory=partial(compressed, bucket=3), bucket_numel=40, half=half)
    engine.train_batch(CASE.batch(0, 2, 1))
    before = rank_state(engine)
    with refused(
        InvalidRequest,
        subject="with a layout that expands 3 entries",
        rule="a step expands all entries of its bucket at once",
    ):
        engine.prune(TICKET)
    before.compare(rank_state(engine), "refused")
    engine.train_batch(CASE.batch(1, 2, 1))


@pytest.mark.parametrize("half", [None, "bfloat16"])
def test_non_contiguous_weights_are_pruned(half: str | None) -> None:
    """A transposed unpruned weight and a pruned weight, stepped in several buckets."""

    def transposed() -> nn.Module:
        layer = nn.Linear(5, 3, bias=False)
        layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
        return layer

    ticket = {(0, "weight"): torch.tensor([0, 7, 19], dtype=torch.int32)}
    engine = Engine(
        [partial(nn.Linear, 4, 5, bias=False), transposed],
        loss=lambda y, _: y.square().mean(),
        optimizer=SGD(0.1),
        microbatch=1,
        half=half,
        bucket_numel=4,
        pruning=Pruning(FixedMask(ticket), 0.85),
    )
    before = engine.state.model_states.parameters[1].detach().clone()
    engine.train_batch((torch.ones(2, 4), torch.zeros(2)))
    assert not torch.equal(engine.state.model_states.parameters[1], before)


def test_offloaded_stage_without_weights_trains() -> None:
    layers = [nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)]

    def rank(world: Any) -> int:
        engine = Engine(
            layers,
            loss=lambda y, _: y.square().mean(),
            optimizer=SGD(0.1),
            microbatch=1,
            grid=Grid(inter=3),
            half="bfloat16",
            memory=partial(compressed, offloaded=True),
            pruning=Pruning(Magnitude(), 0.5),
            world=world,
        )
        engine.train_batch((torch.ones(2, 3), torch.zeros(2)))
        engine.close()
        return len(engine.state.model_states.kept)

    assert threads.run(3, rank, deadline=20.0) == [1, 0, 1]


@pytest.mark.parametrize(
    ("other", "subject"),
    [
        (Pruning(EarlyBird(epoch=1, window=3), 0.8), "EarlyBird(window=5), this engine's is 3"),
        (
            Pruning(EarlyBird(epoch=1), 0.5),
            "what=weights, this engine's has sparsity=0.5",
        ),
        (Pruning(EarlyBird(epoch=1), 0.8, "all"), "this engine's has sparsity=0.8 and what=all"),
        (Pruning(FixedMask(TICKET, after=9), 0.8), "what=weights by FixedMask"),
    ],
    ids=["window", "sparsity", "what", "method"],
)
def test_search_with_other_criterion_is_rejected(other: Pruning, subject: str, tmp_path: Path) -> None:
    first = alone(pruning=Pruning(EarlyBird(epoch=1), 0.8))
    for number in range(2):
        first.train_batch(CASE.batch(number, 2, 1))
    first.save(tmp_path)
    again = alone(pruning=other)
    before = rank_state(again)
    with refused(InvalidRequest, subject=subject):
        again.load(tmp_path)
    before.compare(rank_state(again), subject)
    same = alone(pruning=Pruning(EarlyBird(epoch=1), 0.8))
    same.load(tmp_path)
    assert same.state.pruning is not None
    assert len(same.state.pruning.method.distances) == 1  # type: ignore[attr-defined]
