"""Pruning of an engine: valid masks are applied, and invalid masks are rejected."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.protocols import Read
from suite.engine.engine import Engine
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.engine.optim.optimizer import SGD, AdamW
from suite.engine.pruning.settings import Pruning
from suite.engine.states.compress import compress, expand, mask
from suite.memory.layout import compressed, offloaded, resident
from suite.pruning.magnitude import Magnitude
from tests.support.cases import gpt_case
from tests.support.drawn import cells
from tests.support.masked import FixedMask, MaskedLoop, dense_states, random_mask
from tests.support.refusals import fault, refused
from tests.support.resuming import engine_of, rank_state

CASE = gpt_case("tied", "float32")
TICKET = random_mask(CASE, 0.8)
SETTINGS: dict[str, Any] = {
    "loss": lambda y, _: y.square().mean(),
    "optimizer": SGD(0.1),
    "microbatch": 1,
    "memory": compressed,
}


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


# -- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoints", [None, 1])
def test_at_most_one_dense_gradient_is_alive(checkpoints: int | None) -> None:
    """SAMO III-C: the model's dense gradient never exists. A layer's is freed before the next is computed."""
    width = 300  # a gradient of 360 kB; activations of 2 x 300 are negligible
    layers = [nn.Linear(width, width, bias=False) for _ in range(6)]
    engine = Engine(layers, **SETTINGS, pruning=Pruning(Magnitude(), 0.9), activation_checkpointing=checkpoints)
    with MemoryTracker() as live:
        value = (torch.ones(2, width),)
        engine.state.stage.forward(0, value, targets=(torch.zeros(2),), sample=0, read=Read(0, 0, "keep"))
        before = live.peak = live.live
        engine.state.stage.backward(0, ())
    one = 4 * width * width
    assert one <= live.peak - before < 1.5 * one, "one, and what is compressed of it"


@pytest.mark.parametrize(
    ("half", "memory"), cells([None, "bfloat16"], [compressed, partial(compressed, bucket=100, offloaded=True)], n=2)
)
def test_pruning_preserves_kept_weights_and_moments(half: str | None, memory: Any) -> None:
    """Two dense batches, then pruning: equal to masking the dense states and continuing with masks."""
    rule = AdamW(0.01)
    engine = alone(half=half, memory=memory, bucket_numel=100, pruning=Pruning(FixedMask(TICKET, after=2), 0.8))
    loop = MaskedLoop(CASE, 1, rule, {}, half=half)
    for number in range(5):
        if number == 2:
            loop.prune(TICKET)
            assert engine.state.pruned_after == 2
        batch = CASE.batch(number, 2, 1)
        assert engine.train_batch(batch) == pytest.approx(loop.train(batch), rel=1e-12)
    expected = [
        t.reshape(-1)
        for state, p in zip(loop.states, loop.parameters(), strict=True)
        for t in (*state.weights, *state.moments.values(), p.data)
    ]
    for got, right in zip(dense_states(engine), expected, strict=True):
        assert torch.equal(got, right)


# -- refusals --------------------------------------------------------------------------------------------------------

KEY = next(iter(TICKET))
INDEX = torch.tensor([0], dtype=torch.int32)
# arguments of an engine, the mask, and the refusal
REFUSED: list[tuple[dict[str, Any], Any, dict[str, Any]]] = [
    ({"memory": resident, "half": "bfloat16"}, TICKET, fault(subject="in a layout that keeps all")),
    ({"memory": partial(offloaded, bucket=100), "bucket_numel": 100}, TICKET, fault(legal="memory=compressed")),
    ({"pruning": Pruning(FixedMask(TICKET), 0.8)}, TICKET, fault(subject="a pruned network")),
    ({}, {(1, "nothing.weight"): INDEX}, fault(subject="nothing.weight of layer 1, which this model does not train")),
    ({}, {KEY: INDEX + 768}, fault(subject=f"weight {KEY[1]} of layer {KEY[0]}", rule="from 0 to 767")),
    ({}, {(0, "token.weight"): INDEX}, fault(subject="tied=[(0, 'token.weight', 4, 'weight')]")),
    ({}, {(5, "weight"): INDEX}, fault(subject="a mask with key (5, 'weight')", rule="layer number below 5")),
    ({}, {"1.weight": INDEX}, fault(subject="a mask with key '1.weight'")),
]


def test_mask_that_does_not_fit_is_rejected_without_change() -> None:
    for settings, indices, expected in REFUSED:
        engine = alone(**settings)
        before = rank_state(engine)
        with refused(InvalidRequest, **expected):
            engine.prune(indices)
        before.compare(rank_state(engine), str(expected))
        engine.train_batch(CASE.batch(0, 2, 1))
    engine = alone()
    engine.state.drained = False
    with refused(InvalidRequest, subject="prune() within a stream"):
        engine.prune(TICKET)


# -- overflow --------------------------------------------------------------------------------------------------------


def test_overflow_at_pruned_entries_is_ignored() -> None:
    """An input of the last replica makes a column of the gradient infinite in float16. Columns 0 and 2 are kept."""
    pruning = Pruning(FixedMask({(0, "weight"): torch.tensor([0, 2], dtype=torch.int32)}), 0.3)

    def rank(world: Any, column: int) -> tuple[int, bool, float]:
        inputs = torch.full((2, 3), 2.0)
        inputs[-1, column] = 60_000.0
        engine = Engine(
            [partial(nn.Linear, 3, 1, bias=False)],
            loss=lambda y, _: (y * 0.0).sum() + y.sum() - y.sum().detach(),
            optimizer=SGD(2.0**-4),
            microbatch=1,
            grid=Grid(data=2),
            half="float16",
            loss_scaler=DynamicLossScaler(start=8.0, patience=100),
            pruning=pruning,
            world=world,
        )
        (weights,) = engine.state.model_states.rule.weights
        before = weights.clone()
        engine.train_batch((inputs, torch.zeros(2)))
        assert engine.state.loss_scaler is not None
        return engine.state.update.skipped, torch.equal(weights, before), engine.state.loss_scaler.scale

    assert threads.run(2, partial(rank, column=1)) == [(0, False, 8.0)] * 2
    assert threads.run(2, partial(rank, column=2)) == [(1, True, 4.0)] * 2


# -- several engines, several ranks ----------------------------------------------------------------------------------


DIFFER = "masks of stage 0 that differ between replicas"
OF_ONE_STAGE = ("qkv.weight of layer 1 with the index", "the network is pruned: rank 0 failed")


@pytest.mark.parametrize(("grid", "subjects"), [(Grid(data=2), (DIFFER, DIFFER)), (Grid(inter=2), OF_ONE_STAGE)])
def test_mask_error_of_one_rank_raises_on_every_rank(grid: Grid, subjects: tuple[str, str]) -> None:
    def rank(world: Any) -> None:
        engine = engine_of(CASE, world, grid, optimizer=AdamW(0.01))
        index = INDEX + (10**6 if grid.inter == 2 else world.rank)
        with refused(InvalidRequest, subject=subjects[world.rank]):
            engine.prune({**TICKET, (1, "qkv.weight"): index})
        assert engine.state.pruned_after is None
        engine.train_batch(CASE.batch(0, 2, grid.data))
        engine.close()

    threads.run(2, rank)


def test_non_contiguous_weights_are_pruned() -> None:
    """A transposed unpruned weight and a pruned weight, stepped in several buckets."""
    transposed, mask = nn.Linear(5, 3, bias=False), {(0, "weight"): torch.tensor([0, 7, 19], dtype=torch.int32)}
    transposed.weight = nn.Parameter(transposed.weight.detach().t().contiguous().t())
    layers = [nn.Linear(4, 5, bias=False), transposed]
    before, pruning = transposed.weight.detach().clone(), Pruning(FixedMask(mask), 0.85)
    engine = Engine(layers, **SETTINGS, bucket_numel=4, pruning=pruning)
    engine.train_batch((torch.ones(2, 4), torch.zeros(2)))
    assert not torch.equal(engine.state.model_states.parameters[1], before)


def test_offloaded_stage_without_weights_trains() -> None:
    layers, pruning = [nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)], Pruning(Magnitude(), 0.5)
    settings = {**SETTINGS, "half": "bfloat16", "memory": partial(compressed, offloaded=True), "pruning": pruning}

    def rank(world: Any) -> int:
        engine = Engine(layers, grid=Grid(inter=3), world=world, **settings)
        engine.train_batch((torch.ones(2, 3), torch.zeros(2)))
        engine.close()
        return len(engine.state.model_states.kept)

    assert threads.run(3, rank) == [1, 0, 1]
