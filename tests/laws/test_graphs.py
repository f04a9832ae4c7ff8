"""Law 2 for full graphs: a distributed epoch equals the dense one, for every grid, exchange, order and partition.

The reference multiplies dense matrices in float64 by the printed equations and shares no code with the
implementation. Graphs are directed and weighted, so that a swapped transpose shows; parts are uneven or empty."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from suite.config.compose import resolve
from suite.conformance.graphs import check_losses, train_losses
from suite.engine.optim.optimizer import Adam
from suite.gnn.plan import Placement
from suite.gnn.rank_shard import build_plans
from suite.workload.gcn import GCN
from tests.support.drawn import cells, drawn, few
from tests.support.graphs import EXCHANGES, dense, on_trainers, problem, uneven
from tests.support.systems import every_system

GRIDS = [(1, 1), (2, 1), (4, 1), (6, 1), (8, 1), (2, 2), (4, 2), (6, 2), (8, 2), (6, 3), (8, 4)]
ORDERS = [(order, epoch) for order in ("paper", "auto") for epoch in ("paper", "lean")]


def close(ours: np.ndarray, reference: np.ndarray) -> bool:
    return bool(np.abs(ours - reference).max(initial=0) <= 1e-12 * max(1.0, np.abs(reference).max(initial=0)))


def check_epoch(
    grid: tuple[int, int], exchange: str, assignment: str = "paper", order: str = "paper", epoch: str = "paper"
) -> None:
    placement = Placement.of(*grid, assignment)
    graph = problem(seed=grid[0])

    def gradients(trainer, shard):  # type: ignore[no-untyped-def]
        trainer.features.requires_grad_(epoch == "paper")
        loss, state = trainer.gradients(), trainer.state
        weights = [layer.weight.detach().numpy().copy() for layer in trainer.layers]
        of_weights = [state.dense(state.gradient, layer.weight).numpy().copy() for layer in trainer.layers]
        of_features = trainer.features.grad.numpy().copy() if epoch == "paper" else None
        return loss, weights, of_weights, of_features, trainer.outputs().detach().numpy(), shard.vertices

    shape = GCN(3, 4, order, epoch)
    outcomes = on_trainers(graph, placement, uneven(37, placement.parts), gradients, exchange=exchange, shape=shape)
    dense_loss, dense_gradients, dense_outputs, dense_features = dense(graph, outcomes[0][1])
    for loss, _, of_weights, of_features, outputs, vertices in outcomes:
        assert loss == pytest.approx(dense_loss, rel=1e-12)
        assert all(map(close, of_weights, dense_gradients))
        assert close(outputs, dense_outputs[-1][vertices])
        if of_features is not None:
            assert close(of_features, dense_features[vertices])


ROWS = [
    *((grid, exchange, "paper", "paper", "paper") for grid in GRIDS for exchange in EXCHANGES),
    *((grid, exchange, "interleaved", "paper", "paper") for grid in GRIDS[5:] for exchange in ("fused", "staged")),
    *((grid, "fused", "paper", *order) for grid in ((4, 1), (6, 2)) for order in ORDERS[1:]),
]


@pytest.mark.parametrize(("grid", "exchange", "assignment", "order", "epoch"), drawn(ROWS, n=6), ids=str)
def test_epoch_equals_dense_epoch(
    grid: tuple[int, int], exchange: str, assignment: str, order: str, epoch: str
) -> None:
    check_epoch(grid, exchange, assignment, order, epoch)


def test_losses_agree_across_grids_exchanges_orders_and_partitions() -> None:
    """Ten epochs of Adam differ by rounding only (Section 6.2)."""
    graph = problem(60, seed=3, features=6)

    def train(trainer, _):  # type: ignore[no-untyped-def]
        return [*(trainer.epoch() for _ in range(10)), trainer.score()["loss"], trainer.score()["top_1"]]

    def curve(
        grid: tuple[int, int], seed: int, exchange: str, assignment: str = "paper", order: tuple[str, ...] = ()
    ) -> list[float]:
        placement = Placement.of(*grid, assignment)
        parts = uneven(60, placement.parts, seed)
        options = {"optimizer": Adam(lr=0.05), "shape": GCN(3, 4, *order)}
        curves = on_trainers(graph, placement, parts, train, exchange=exchange, **options)
        assert all(rank_curve == curves[0] for rank_curve in curves)
        return curves[0]

    alone = curve((1, 1), 0, "fused")
    assert alone[9] < 0.9 * alone[0]
    runs = [((4, 1), "oblivious"), ((4, 2), "staged"), ((6, 3), "fused"), ((3, 1), "overlapped")]
    for (seed, (grid, exchange)), order in few(product(enumerate(runs), ORDERS), 4):
        ours = curve(grid, seed, exchange, order=order)
        assert ours == pytest.approx(alone, rel=1e-9)
    assert curve((8, 2), 5, "fused", "interleaved") == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize(
    ("grid", "exchange", "symmetric"), cells([(1, 1), (5, 1), (8, 2), (6, 3)], EXCHANGES, [True, False], n=3), ids=str
)
def test_bytes_sent_equal_plan_and_never_exceed_oblivious(
    grid: tuple[int, int], exchange: str, symmetric: bool
) -> None:
    placement = Placement.of(*grid)
    graph, parts = problem(50, seed=8, symmetric=symmetric, features=6), uneven(50, placement.parts)

    def bytes_sent(trainer, _):  # type: ignore[no-untyped-def]
        trainer.epoch()
        first = trainer.sent
        trainer.epoch()
        spans = sum(span.bytes for span in trainer.recorder.trace)
        return first, trainer.sent - first, spans, trainer.products, trainer.shape.products(6, 3)

    outcomes = on_trainers(graph, placement, parts, bytes_sent, exchange=exchange)
    volumes = [plan.volumes for plan in build_plans(graph.operator, parts, placement)]
    for rank, (first, second, spans, products, calls) in enumerate(outcomes):
        rows = [int((each.oblivious() if exchange == "oblivious" else each).send[rank]) for each in volumes]
        assert first == second == spans == sum(8 * call.width * rows[call.backward] for call in calls)
        assert products == 2 * len(calls) == 12
        assert all(each.send[rank] <= each.oblivious().send[rank] for each in volumes)


def test_gradients_are_summed_once_per_block_row() -> None:
    """The published 1.5D code sums weight gradients over all processes, which makes them c times too large."""
    graph = problem(seed=2)
    norms = [
        on_trainers(
            graph,
            Placement.of(*grid),
            uneven(37, grid[0] // grid[1]),
            lambda trainer, _: (trainer.gradients(), trainer.state.gradient.norm().item()),
        )[0][1]
        for grid in ((2, 1), (4, 2), (6, 3))
    ]
    assert norms[1:] == pytest.approx(norms[:1] * 2, rel=1e-12)


def test_part_of_isolated_vertices_and_more_parts_than_vertices() -> None:
    graph = problem(6, seed=4, density=0.2)
    isolated = (graph.operator.sum(axis=0) + graph.operator.sum(axis=1)) == 0

    def train(trainer, _):  # type: ignore[no-untyped-def]
        return [trainer.epoch() for _ in range(3)]

    (alone,) = on_trainers(graph, Placement(1), np.zeros(6, int), train)
    for placement, parts in ((Placement(2), isolated.astype(int)), (Placement(8), np.arange(6))):
        assert on_trainers(graph, placement, parts, train)[-1] == pytest.approx(alone, rel=1e-12)


# -- every system of conf/system -------------------------------------------------------------------------------------


def systems() -> list[Sequence[str]]:
    """Overrides of the systems that train whole graphs."""
    return [overrides for overrides in every_system().values() if resolve(overrides).system.graphs]


@pytest.mark.slow("every system of graphs is trained")
@pytest.mark.parametrize("grid", drawn([((2, 1),), ((4, 2),)], n=1), ids=str)
def test_every_system_matches_losses_of_one_process(grid: tuple[int, int], tmp_path: Path) -> None:
    """Losses of five epochs on the system's own partition, and its bytes."""
    alone = train_losses(["system=cagnet"], 1, 1, tmp_path)
    assert len(systems()) >= 4
    for overrides in systems():
        check_losses(overrides, *grid, alone, tmp_path)
