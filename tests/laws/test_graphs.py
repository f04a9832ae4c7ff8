"""Law 2 for full graphs: a distributed epoch is the dense one, for every grid, exchange, order and partition.

The oracle multiplies whole dense matrices in float64 by the printed equations and shares no code with the
implementation. The graphs are directed and weighted, so that a matrix in the place of its transpose shows; parts are
uneven or empty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from suite.config.compose import groups, resolve
from suite.conformance.graphs import check_losses, losses
from suite.engine.optim.optimizer import Adam
from suite.gnn.plan import ASSIGNMENTS, Placement
from suite.gnn.rank_shard import plans
from tests.support.graphs import EXCHANGES, dense, problem, trainers, uneven

GRIDS = [(1, 1), (2, 1), (4, 1), (6, 1), (8, 1), (2, 2), (4, 2), (6, 2), (8, 2), (6, 3), (8, 4)]
WAYS = [(order, epoch) for order in ("paper", "auto") for epoch in ("paper", "lean")]


def close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return bool(np.abs(ours - theirs).max(initial=0) <= 1e-12 * max(1.0, np.abs(theirs).max(initial=0)))


def check(
    grid: tuple[int, int], exchange: str, assignment: str = "paper", order: str = "paper", epoch: str = "paper"
) -> None:
    processes, replication = grid
    placement = Placement.of(processes, replication, assignment)
    given = problem(seed=processes)
    parts = uneven(37, placement.parts)

    def then(trainer, own):  # type: ignore[no-untyped-def]
        trainer.features.requires_grad_(epoch == "paper")
        loss = trainer.gradients()
        weights = [layer.weight.detach().numpy().copy() for layer in trainer.layers]
        found = [trainer.state.whole(trainer.state.gradient, layer.weight).numpy().copy() for layer in trainer.layers]
        outer = trainer.features.grad.numpy().copy() if epoch == "paper" else None
        return loss, weights, found, outer, trainer.outputs().detach().numpy(), own.vertices

    results = trainers(given, placement, parts, then, exchange=exchange, order=order, epoch=epoch)
    loss, gradients, outputs, outer = dense(given, results[0][1])
    for ours, _, found, inner, z, vertices in results:
        assert ours == pytest.approx(loss, rel=1e-12)
        assert all(map(close, found, gradients))
        assert close(z, outputs[-1][vertices])
        if inner is not None:
            assert close(inner, outer[vertices])


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: "p{}c{}".format(*grid))
def test_an_epoch_is_the_dense_one(grid: tuple[int, int], exchange: str) -> None:
    check(grid, exchange)


@pytest.mark.parametrize("exchange", ["fused", "staged"])
@pytest.mark.parametrize("grid", [grid for grid in GRIDS if grid[1] > 1], ids=lambda grid: "p{}c{}".format(*grid))
def test_interleaved_blocks_give_the_same(grid: tuple[int, int], exchange: str) -> None:
    check(grid, exchange, "interleaved")


@pytest.mark.parametrize(("order", "epoch"), WAYS[1:])
@pytest.mark.parametrize("grid", [(4, 1), (6, 2)], ids=["1D", "1.5D"])
def test_every_order_and_epoch_is_the_dense_one(grid: tuple[int, int], order: str, epoch: str) -> None:
    check(grid, "fused", order=order, epoch=epoch)


def test_losses_agree_whoever_holds_what() -> None:
    """Ten epochs of Adam: grids, exchanges, orders and partitions change roundings alone (Section 6.2)."""
    given = problem(60, seed=3, features=6)

    def then(trainer, own):  # type: ignore[no-untyped-def]
        return [*(trainer.epoch() for _ in range(10)), trainer.score()["loss"], trainer.score()["top_1"]]

    def curve(grid: tuple[int, int], seed: int, exchange: str, assignment: str = "paper", **ways: str) -> list[float]:
        placement = Placement.of(*grid, assignment)
        parts = uneven(60, placement.parts, seed)
        curves = trainers(given, placement, parts, then, exchange=exchange, optimizer=Adam(lr=0.05), **ways)
        assert all(one == curves[0] for one in curves)
        return curves[0]

    alone = curve((1, 1), 0, "fused")
    assert alone[9] < 0.9 * alone[0]
    for at, (grid, exchange) in enumerate(
        [((4, 1), "oblivious"), ((4, 2), "staged"), ((6, 3), "fused"), ((3, 1), "overlapped")]
    ):
        for order, epoch in WAYS:
            assert curve(grid, at, exchange, ASSIGNMENTS[0], order=order, epoch=epoch) == pytest.approx(alone, rel=1e-9)
    assert curve((8, 2), 5, "fused", "interleaved") == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("grid", [(1, 1), (5, 1), (8, 2), (6, 3)], ids=lambda grid: "p{}c{}".format(*grid))
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "directed"])
def test_bytes_handed_over_are_the_plans(grid: tuple[int, int], exchange: str, symmetric: bool) -> None:
    """Counted where tensors are handed to messages, by the group itself; and never more than the oblivious exchange."""
    placement = Placement.of(*grid)
    given = problem(50, seed=8, symmetric=symmetric, features=6)

    def then(trainer, own):  # type: ignore[no-untyped-def]
        trainer.epoch()
        first = trainer.sent
        trainer.epoch()
        volumes = [trainer.shape.products(6, 3), own.forward.sent.sum(), own.backward.sent.sum()]
        return first, trainer.sent - first, trainer.products, volumes, [s.bytes for s in trainer.watch.trace]

    results = trainers(given, placement, uneven(50, placement.parts), then, exchange=exchange)
    forward, backward = plans(given.operator, uneven(50, placement.parts), placement)
    for rank, (first, second, products, (calls, *_), spans) in enumerate(results):
        whole = [plan.volumes.oblivious() if exchange == "oblivious" else plan.volumes for plan in (forward, backward)]
        rows = [int(one.send[rank]) for one in whole]
        wanted = sum(8 * call.width * rows[call.backward] for call in calls)
        assert first == second == sum(spans) == wanted
        assert products == 2 * len(calls) == 12
        assert all(plan.volumes.send[rank] <= plan.volumes.oblivious().send[rank] for plan in (forward, backward))


def test_gradients_of_replicas_are_not_counted_twice() -> None:
    """The published 1.5D code sums weight gradients over all processes, which makes them c times too large."""
    given = problem(seed=2)
    norms = [
        trainers(
            given,
            Placement.of(*grid),
            uneven(37, grid[0] // grid[1]),
            lambda t, _: (t.gradients(), t.state.gradient.norm().item()),
        )[0][1]
        for grid in ((2, 1), (4, 2), (6, 3))
    ]
    assert norms[1:] == pytest.approx(norms[:1] * 2, rel=1e-12)


def test_a_part_of_lone_vertices_and_a_world_of_more_parts_than_vertices() -> None:
    given = problem(6, seed=4, density=0.2)
    lone = np.flatnonzero((given.operator.sum(axis=0) + given.operator.sum(axis=1)) == 0)
    parts = np.zeros(6, int)
    parts[lone] = 1
    for placement, chosen in ((Placement(2), parts), (Placement(8), np.arange(6))):
        losses = trainers(given, placement, chosen, lambda trainer, _: [trainer.epoch() for _ in range(3)])
        alone = trainers(given, Placement(1), np.zeros(6, int), lambda trainer, _: [trainer.epoch() for _ in range(3)])
        assert losses[-1] == pytest.approx(alone[0], rel=1e-12)
    assert torch.get_default_dtype() == torch.float32


# -- every system of conf/system -------------------------------------------------------------------------------------


def systems() -> list[str]:
    """Those that train a whole graph: a new YAML is tested by being there."""
    return [name for name in groups()["system"] if resolve([f"system={name}"]).system.graphs]


@pytest.mark.parametrize("grid", [(2, 1), (4, 2)], ids=["2", "4x2"])
def test_every_system_trains_as_one_process_does(grid: tuple[int, int], tmp_path: Path) -> None:
    """The losses of five epochs on its own partition, and its bytes, are what they should be."""
    alone = losses(["system=cagnet"], 1, 1, tmp_path)
    assert len(systems()) >= 4
    for name in systems():
        check_losses([f"system={name}"], *grid, alone, tmp_path)
