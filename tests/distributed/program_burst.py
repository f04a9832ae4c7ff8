"""Program of each rank for test_placed.py: a long burst of messages around a loop of three ranks."""

from __future__ import annotations

import sys

from suite.core.op import Kind, Op
from tests.distributed.program_laws import world_of
from tests.support.placed import RandomOrder, run_order

HOMES = (0, 1, 2, 0)


def burst(microbatches: int) -> RandomOrder:
    """An order in which rank 1 needs the last message of the burst first.

    Rank 0 sends all values of stage 0 and then waits for rank 2, which waits for rank 1. So rank 1 receives the whole
    burst while rank 0 reads nothing from it.
    """
    rising, falling = range(microbatches), range(microbatches)[::-1]
    stages = [
        [Op(stage, kind, index) for index in falling]
        for kind, order in ((Kind.FORWARD, (1, 2, 3)), (Kind.BACKWARD, (3, 2, 1, 0)))
        for stage in order
    ]
    first = [Op(0, Kind.FORWARD, index) for index in rising]
    orders = tuple(tuple(op for ops in (first, *stages) for op in ops if HOMES[op.stage] == rank) for rank in range(3))
    return RandomOrder(HOMES, orders)


def main(transport: str, microbatches: int) -> None:
    world = world_of(transport, "any", 16384)
    messages = world.transport(HOMES)
    received = run_order(burst(microbatches), world.rank, messages)
    messages.close()
    world.close()
    if world.rank == 0:
        print(f"{transport} {microbatches}: {received} messages", flush=True)


if __name__ == "__main__":
    for line in sys.argv[1:]:
        name, count = line.split()
        main(name, int(count))
