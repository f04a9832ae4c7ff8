"""Ties between any layers: every placement has the numbers of one rank, and those of one shared parameter."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from suite.comm.p2p import threads
from suite.comm.p2p.threads import LoopbackWorld
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.engine.optim.optimizer import SGD
from suite.engine.pruning import Pruning
from suite.engine.replay import Replay
from suite.memory.layout import offloaded
from suite.pruning.magnitude import Magnitude
from suite.pruning.mask import Indices, Key, View
from tests.support.masked import FixedMask
from tests.support.refusals import refused
from tests.support.tied import (
    GRIDS,
    SCHEDULES,
    SHAPES,
    assert_close,
    assert_ends_equal,
    assert_same,
    batches,
    engine_of,
    network,
    on_one_rank,
    plain_torch,
    run,
    weights_of,
)

# -- placements ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_placement_has_the_numbers_of_one_rank(shape: str, grid: Grid, name: str) -> None:
    got = run(network(shape), grid, name, torch.float64)
    assert_same(got, on_one_rank(shape, grid.data, torch.float64, ()))
    assert_ends_equal(shape, got)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("replicas", [1, 2])
def test_one_rank_trains_like_one_shared_parameter(shape: str, replicas: int) -> None:
    assert_close(on_one_rank(shape, replicas, torch.float64, ()), plain_torch(network(shape)))


OPTIONS: dict[str, dict[str, Any]] = {
    "clip_norm": {"clip_norm": 0.5},
    "half": {"half": "bfloat16"},
    "half and clip_norm": {"half": "bfloat16", "clip_norm": 0.5},
    "buckets": {"bucket_numel": 7, "buckets_per_reduction": 2},
    "offload": {"bucket_numel": 7, "memory": partial(offloaded, bucket=7), "half": "bfloat16"},
    "overlapped offload": {"bucket_numel": 7, "buckets_per_reduction": 3, "memory": partial(offloaded, bucket=7)},
    "recomputation": {"activation_checkpointing": 1},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("name", ["message_driven", "zbv"])
@pytest.mark.parametrize("shape", ["four", "three groups"])
def test_options_have_the_numbers_of_one_rank(shape: str, grid: Grid, name: str, option: str) -> None:
    options = OPTIONS[option]
    got = run(network(shape, torch.float32), grid, name, torch.float32, **options)
    plain = {name: value for name, value in options.items() if name in ("clip_norm", "half")}
    assert_same(got, on_one_rank(shape, grid.data, torch.float32, tuple(plain.items())))
    assert_ends_equal(shape, got)


@pytest.mark.parametrize("shape", ["one stage", "neighbours", "four", "three groups"])
@pytest.mark.parametrize("grid", [Grid(), *GRIDS], ids=str)
@pytest.mark.parametrize("name", ["message_driven", "zbv"])
def test_clipped_tie_counts_once_in_norm(shape: str, grid: Grid, name: str) -> None:
    got = run(network(shape), grid, name, torch.float64, clip_norm=0.5)
    assert_close(got, plain_torch(network(shape), clip_norm=0.5))


@pytest.mark.parametrize("shape", ["one stage", "three", "three groups"])
@pytest.mark.parametrize("grid", [Grid(), *GRIDS], ids=str)
@pytest.mark.parametrize("half", [None, "bfloat16"])
def test_frozen_tie_does_not_change(shape: str, grid: Grid, half: str | None) -> None:
    dtype = torch.float32 if half else torch.float64
    layers = network(shape, dtype, frozen=True)
    got = run(layers, grid, "zbv", dtype, half=half, clip_norm=0.5)
    assert_ends_equal(shape, got)
    first = SHAPES[shape][0][0]
    initial = layers[first].get_parameter("weight")
    assert torch.equal(got.weights[f"{first}.weight"], initial.bfloat16() if half else initial)
    if not half:
        assert_close(got, plain_torch(layers, clip_norm=0.5))


@pytest.mark.parametrize("name", ["one_f_one_b", "zbv", "interleaved"])
@pytest.mark.parametrize("grid", [Grid(inter=2), Grid(inter=2, data=2)], ids=str)
def test_replay_equals_ranks(name: str, grid: Grid) -> None:
    data = batches(torch.float32)
    for shape in ("four", "three groups"):
        replay = Replay(
            network(shape, torch.float32),
            loss=mse_loss,
            optimizer=SGD(0.1, momentum=0.9),
            microbatch=2,
            grid=grid,
            schedule=SCHEDULES[name],
            clip_norm=0.5,
        )
        losses = [*replay.train(data), replay.evaluate(data[:2])]
        assert losses == on_one_rank(shape, grid.data, torch.float32, (("clip_norm", 0.5),)).losses


@pytest.mark.parametrize("shape", ["four", "three groups"])
@pytest.mark.parametrize("half", [None, "bfloat16"])
@pytest.mark.parametrize(
    ("saved", "resumed"),
    [((Grid(inter=4), "one_f_one_b"), (Grid(inter=2), "zbv")), ((Grid(), "zbv"), (Grid(inter=4), "interleaved"))],
    ids=["four to two", "one to four"],
)
def test_checkpoint_resumes_on_another_placement(
    shape: str, half: str | None, saved: Any, resumed: Any, tmp_path: Path
) -> None:
    dtype = torch.float32 if half else torch.float64
    layers, data = network(shape, dtype), batches(dtype)

    def train(world: LoopbackWorld, grid: Grid, name: str, *, load: bool) -> list[float]:
        engine = engine_of(copy.deepcopy(layers), world, grid, name, half=half)
        if load:
            engine.load(tmp_path)
        losses = list(engine.train(data[2:] if load else data[:2]))
        if not load:
            engine.save(tmp_path)
        engine.close()
        return losses

    losses = []
    for (grid, name), load in ((saved, False), (resumed, True)):
        losses += threads.run(grid.size, partial(train, grid=grid, name=name, load=load), deadline=60.0)[0]
    assert losses == on_one_rank(shape, 1, dtype, (("half", half),) if half else ()).losses[:-1]


# -- overflow --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "frozen", "ends"),
    [("three", False, 3), ("three groups", False, 4), ("three", True, 1), ("one rank of a V", False, 2)],
)
@pytest.mark.parametrize("name", ["one_f_one_b", "zbv"])
def test_every_rank_counts_the_most_addends(shape: str, frozen: bool, ends: int, name: str) -> None:
    """Ranks without ends of the largest tie take part in the same overflow check."""
    layers = network(shape, torch.float32, frozen=frozen)

    def rank(world: LoopbackWorld) -> int:
        options = {"half": "float16", "loss_scaler": DynamicLossScaler()}
        engine = engine_of(copy.deepcopy(layers), world, Grid(inter=4), name, **options)
        return engine.state.update.most_ends

    assert threads.run(4, rank, deadline=20.0) == [ends] * 4


# -- pruning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_pruned_ties_have_the_numbers_of_one_rank(shape: str, grid: Grid, scope: str) -> None:
    options = {"pruning": Pruning(Magnitude(scope=scope), sparsity=0.6)}
    got = run(network(shape), grid, "message_driven", torch.float64, **options)
    assert_same(got, run(network(shape), Grid(data=grid.data), "one_f_one_b", torch.float64, **options))
    assert_ends_equal(shape, got)
    assert (got.weights[f"{SHAPES[shape][0][0]}.weight"] == 0).any()


@pytest.mark.parametrize("grid", [Grid(), *GRIDS], ids=str)
def test_a_mask_in_training_prunes_all_ends(grid: Grid) -> None:
    """The method draws the mask of the first end, after two batches; the other ends have no mask of their own."""
    index = torch.tensor([1, 3, 4, 9, 20], dtype=torch.int32)
    mask = {(0, "weight"): index, (1, "weight"): index + 1}
    got = run(
        network("four"),
        grid,
        "one_f_one_b",
        torch.float64,
        pruning=Pruning(FixedMask(mask, after=2), sparsity=0.8),
        clip_norm=0.5,
    )
    assert_ends_equal("four", got)
    assert got.weights["3.weight"].flatten().nonzero().flatten().tolist() == index.tolist()
    assert int((got.weights["4.weight"] == 0).sum()) == 0


def test_a_pruning_method_sees_each_tie_once() -> None:
    class Recording(FixedMask):
        def draw(self, view: View) -> Indices:
            keys.extend(view.keys)
            return super().draw(view)

    keys: list[Key] = []
    index = torch.tensor([1, 3], dtype=torch.int32)
    pruning = Pruning(Recording({(0, "weight"): index}), sparsity=0.8)
    engine = engine_of(network("four"), LoopbackWorld(threads.Hub(1), 0), Grid(), "one_f_one_b", pruning=pruning)
    assert keys == [(number, "weight") for number in (0, 1, 4, 5, 6)]
    assert all((weights_of(engine)[f"{number}.weight"] != 0).sum() == 2 for number in (0, 2, 3, 7))


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("other", [2, 3, 7])
def test_masks_that_differ_between_ends_raise_everywhere(ranks: int, other: int) -> None:
    index = torch.tensor([1, 3, 4], dtype=torch.int32)
    mask = {(number, "weight"): index + (number == other) for number in (0, 2, 3, 7)}
    layers = network("four")

    def rank(world: LoopbackWorld) -> None:
        engine = engine_of(copy.deepcopy(layers), world, Grid(inter=world.size), "one_f_one_b")
        with refused(InvalidRequest, subject="tied=[(0, 'weight', 2, 'weight')", rule="all ends of a tied weight"):
            engine.prune(mask)
        engine.train_batch(batches()[0])
        engine.close()

    threads.run(ranks, rank, deadline=20.0)
