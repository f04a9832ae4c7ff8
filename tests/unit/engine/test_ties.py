"""Ties between any layers: every placement has the numbers of one rank, and those of one shared parameter."""

from __future__ import annotations

import copy
from functools import partial
from itertools import product
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
from suite.pruning.mask import Indices, Key, View
from tests.support.drawn import cells, drawn
from tests.support.masked import FixedMask
from tests.support.refusals import refused
from tests.support.tied import (
    GRIDS,
    OPTIONS,
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

LARGE = ("four", "three groups")
MASKS = ("mask of each layer", "mask of the network")


@pytest.mark.parametrize(
    ("shape", "grid", "name"),
    cells(SHAPES, GRIDS, SCHEDULES, n=6, always=[("three groups", GRIDS[1], "zbv"), ("crossing", GRIDS[2], "zbv")]),
    ids=str,
)
def test_every_placement_has_the_numbers_of_one_rank(shape: str, grid: Grid, name: str) -> None:
    got = run(network(shape), grid, name, torch.float64)
    assert_same(got, on_one_rank(shape, grid.data))
    assert_ends_equal(shape, got)


@pytest.mark.parametrize(
    ("shape", "replicas", "option"),
    cells(SHAPES, [1, 2], ["none", "clip_norm"], n=4, always=[("three groups", 2, "clip_norm"), ("four", 1, "none")]),
)
def test_one_rank_trains_like_one_shared_parameter(shape: str, replicas: int, option: str) -> None:
    right = plain_torch(network(shape), **OPTIONS[option])
    assert_close(on_one_rank(shape, replicas, option=option), right)


@pytest.mark.parametrize(
    ("shape", "grid", "name", "option"),
    drawn(
        [
            row
            for row in product(LARGE, GRIDS, ["message_driven", "zbv"], OPTIONS)
            if row[2] != "zbv" or row[3] not in MASKS
        ],
        n=6,
        always=[("four", GRIDS[1], "zbv", "clip_norm"), ("three groups", GRIDS[1], "message_driven", MASKS[1])],
    ),
    ids=str,
)
def test_options_have_the_numbers_of_one_rank(shape: str, grid: Grid, name: str, option: str) -> None:
    got = run(network(shape, torch.float32), grid, name, torch.float32, **OPTIONS[option])
    assert_same(got, on_one_rank(shape, grid.data, torch.float32, option))
    assert_ends_equal(shape, got)
    if option in MASKS:
        assert (got.weights[f"{SHAPES[shape][0][0]}.weight"] == 0).any()


@pytest.mark.parametrize("grid", drawn([Grid(), *GRIDS], n=2), ids=str)
def test_one_module_at_both_ends_is_tied(grid: Grid) -> None:
    """The weight of layers 0 and 4, which share their module, is named as a tie in addition."""
    layers = network("one rank of a loop")
    layers[4] = layers[0]
    got = run(layers, grid, "one_f_one_b", torch.float64, tied=[(0, "weight", 4, "weight")])
    assert_close(got, plain_torch(layers))


@pytest.mark.parametrize(
    ("shape", "grid", "half"),
    cells(["one stage", "three", "three groups"], [Grid(), *GRIDS], [None, "bfloat16"], n=3),
    ids=str,
)
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


@pytest.mark.parametrize(("shape", "grid", "name"), cells(LARGE, GRIDS[::2], SCHEDULES, n=2), ids=str)
def test_replay_equals_ranks(shape: str, grid: Grid, name: str) -> None:
    if name == "message_driven":
        name = "one_f_one_b"
    data, layers = batches(torch.float32), network(shape, torch.float32)
    settings = {"loss": mse_loss, "optimizer": SGD(0.1, momentum=0.9), "microbatch": 2, "clip_norm": 0.5}
    replay = Replay(layers, grid=grid, schedule=SCHEDULES[name], **settings)
    losses = [*replay.train(data), replay.evaluate(data[:2])]
    assert losses == on_one_rank(shape, grid.data, torch.float32, "clip_norm").losses


@pytest.mark.parametrize(
    ("shape", "saved", "resumed"),
    cells(
        LARGE, [(Grid(inter=4), "one_f_one_b"), (Grid(), "zbv")], [(GRIDS[0], "zbv"), (GRIDS[1], "interleaved")], n=2
    ),
    ids=str,
)
def test_checkpoint_resumes_on_another_placement(shape: str, saved: Any, resumed: Any, tmp_path: Path) -> None:
    layers, data = network(shape), batches()

    def train(world: LoopbackWorld, grid: Grid, name: str, *, load: bool) -> list[float]:
        engine = engine_of(copy.deepcopy(layers), world, grid, name)
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
    assert losses == on_one_rank(shape, 1).losses[:-1]


@pytest.mark.parametrize(
    ("shape", "frozen", "ends"),
    [("three", False, 3), ("three groups", False, 4), ("three", True, 1), ("one rank of a V", False, 2)],
)
def test_every_rank_counts_the_most_addends(shape: str, frozen: bool, ends: int) -> None:
    """Ranks without ends of the largest tie take part in the same overflow check."""
    layers = network(shape, torch.float32, frozen=frozen)

    def rank(world: LoopbackWorld) -> int:
        options = {"half": "float16", "loss_scaler": DynamicLossScaler()}
        engine = engine_of(copy.deepcopy(layers), world, Grid(inter=4), "zbv", **options)
        return engine.state.update.most_ends

    assert threads.run(4, rank, deadline=20.0) == [ends] * 4


# -- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", drawn([Grid(), *GRIDS], n=1, always=[GRIDS[1]]), ids=str)
def test_a_mask_in_training_prunes_all_ends(grid: Grid) -> None:
    """The method draws the mask of the first end, after two batches; the other ends have no mask of their own."""
    index = torch.tensor([1, 3, 4, 9, 20], dtype=torch.int32)
    pruning = Pruning(FixedMask({(0, "weight"): index, (1, "weight"): index + 1}, after=2), sparsity=0.8)
    got = run(network("four"), grid, "one_f_one_b", torch.float64, pruning=pruning, clip_norm=0.5)
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


@pytest.mark.parametrize(("ranks", "other"), cells([1, 2, 4], [2, 3, 7], n=2, always=[(4, 3)]))
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
