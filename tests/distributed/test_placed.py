"""Several stages per rank and split backward passes over real messages: law 2, and random orders without a deadlock."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from suite.conformance.gradients import check_engine
from suite.core.grid import Grid
from suite.core.op import Kind, Op
from suite.core.protocols import World
from tests.support.cases import gpt_case, odd_case, shared_case
from tests.support.drawn import drawn, few
from tests.support.laws import engine_of
from tests.support.placed import RandomOrder, random_homes, random_order, run_order
from tests.support.ranks import on_ranks
from tests.support.schedules import PLACED

ORDERS = 10  # random orders per placement
CASES = {
    "tied": partial(gpt_case, "tied", "float64", layers=6),
    "shared": partial(shared_case, "float64"),
    "untied": partial(gpt_case, "untied", "float64", tied=False, layers=6),
    "dropout": partial(gpt_case, "dropout", "float32", dropout=0.3, layers=6),
}
ROWS = [(ranks, transport, case) for ranks in (2, 4) for transport in ("mpi", "gloo", "ordered") for case in CASES]


def train(world: World, name: str) -> int:
    """Compare the gradients of some schedules on every grid. Returns the number of compared gradients."""
    compared, case = 0, CASES[name]()
    schedules = few(PLACED.items(), 8, name)
    for grid, trained in [
        *((Grid(data=data, inter=world.size // data), case) for data in (1, 2)),
        *([(Grid(inter=2), odd_case(torch.float64))] if world.size == 2 else []),
    ]:
        for schedule_name, schedule in schedules:
            batches = (8,) if schedule_name == "dual_pipe_v" else (8, 3)  # it wants two microbatches per rank
            # looped BFS adds the gradient of the last microbatch first
            tolerance = 0.0 if schedule_name != "looped_bfs" else 1e-12 if "64" in trained.name else 1e-5
            engine = engine_of(trained, grid, schedule, world)
            compared += check_engine(engine, trained, schedule, world, batches=batches, tolerance=tolerance)
    return compared


def run_orders(world: World, placements: int) -> int:
    """Run ORDERS random orders on each placement, over one transport. Returns the number of received messages."""
    received = 0
    for number in range(placements):
        homes = random_homes(number, world.size)
        transport = world.transport(homes)
        for seed in range(number * ORDERS, (number + 1) * ORDERS):
            order = random_order(seed, homes, first_in_first_out=not transport.any_order)
            received += run_order(order, world.rank, transport)
        transport.close()
    return received


@pytest.mark.parametrize(("ranks", "transport", "case"), drawn(ROWS, n=1, always=[(2, "mpi", "tied")]))
def test_gradients_and_random_orders(ranks: int, transport: str, case: str) -> None:
    assert min(on_ranks(ranks, train, case, deadline=900, transport=transport)) > 200
    assert min(on_ranks(ranks, run_orders, 20, deadline=240, transport=transport)) > 100


# -- a long burst of messages around a loop of three ranks -------------------------------------------------------------

HOMES, BURST = (0, 1, 2, 0), 800


def burst(world: World) -> int:
    """Run an order in which rank 1 needs the last message of a burst first. Returns the number of received messages.

    Rank 0 sends all values of stage 0 and then waits for rank 2, which waits for rank 1. So rank 1 receives the whole
    burst while rank 0 reads nothing from it.
    """
    stages = [
        [Op(stage, kind, index) for index in reversed(range(BURST))]
        for kind, order in ((Kind.FORWARD, (1, 2, 3)), (Kind.BACKWARD, (3, 2, 1, 0)))
        for stage in order
    ]
    first = [Op(0, Kind.FORWARD, index) for index in range(BURST)]
    orders = tuple(tuple(op for ops in (first, *stages) for op in ops if HOMES[op.stage] == rank) for rank in range(3))
    messages = world.transport(HOMES)
    received = run_order(RandomOrder(HOMES, orders), world.rank, messages)
    messages.close()
    return received


@pytest.mark.parametrize("transport", ["gloo", "mpi"])
def test_long_burst_around_a_loop_of_three_ranks(transport: str) -> None:
    """A rank that receives 800 messages waits for no peer that itself waits for a third rank."""
    assert on_ranks(3, burst, deadline=60, transport=transport) == [2 * BURST] * 3
