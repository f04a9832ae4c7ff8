"""Program of each rank for test_placed.py: law 2 for several stages per rank and split backward passes, and lanes."""

from __future__ import annotations

import sys
from functools import partial

import torch

from suite.conformance.gradients import check_engine
from suite.core.grid import Grid
from suite.core.protocols import World
from tests.distributed.program_laws import world_of
from tests.support.cases import Case, gpt_case, odd_case, shared_case
from tests.support.laws import engine_of
from tests.support.placed import PLACED, random_homes, random_order, run_order

torch.set_num_threads(1)
ORDERS = 10  # random orders per placement

CASES = {
    "tied": partial(gpt_case, "tied", "float64", layers=6),
    "shared": partial(shared_case, "float64"),
    "untied": partial(gpt_case, "untied", "float64", tied=False, layers=6),
    "dropout": partial(gpt_case, "dropout", "float32", dropout=0.3, layers=6),
}


def train(world: World, cases: list[Case], names: list[str]) -> int:
    """Compare the gradients of every schedule on every grid. Returns the number of compared gradients."""
    compared = 0
    for data in {1, 2} & {data for data in range(1, world.size + 1) if world.size % data == 0}:
        grid = Grid(data=data, inter=world.size // data)
        for case in cases:
            for name in names:
                batches = (8,) if name == "dual_pipe_v" else (8, 3)  # it wants twice as many microbatches as ranks
                # looped BFS adds the gradient of the last microbatch first
                tolerance = 0.0 if name != "looped_bfs" else 1e-12 if "64" in case.name else 1e-5
                engine = engine_of(case, grid, PLACED[name], world)
                compared += check_engine(engine, case, PLACED[name], world, batches=batches, tolerance=tolerance)
    return compared


def run_orders(world: World, number: int) -> int:
    """Run ORDERS random orders on placement `number`, one after the other over one transport."""
    homes = random_homes(number, world.size)
    transport = world.transport(homes)
    seeds = range(number * ORDERS, (number + 1) * ORDERS)
    orders = [random_order(seed, homes, first_in_first_out=not transport.any_order) for seed in seeds]
    received = sum(run_order(order, world.rank, transport) for order in orders)
    transport.close()
    return received


def main(transport: str, cases: str, orders: str) -> None:
    world = world_of(transport, "any", 16384)
    trained = [CASES[name]() for name in cases.split(",")]
    if world.size == 2:
        trained.append(odd_case(torch.float64))
    compared = train(world, trained, list(PLACED))
    received = sum(run_orders(world, number) for number in range(int(orders) // ORDERS))
    world.close()
    if world.rank == 0:
        print(f"{transport} {cases} {orders}: {compared} gradients, {received} messages", flush=True)


if __name__ == "__main__":
    for line in sys.argv[1:]:
        main(*line.split())
