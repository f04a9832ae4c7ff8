"""Program of each MPI rank for test_mpi.py: large messages, ties and replicas, with a collective right after a send.

A last stage that enters the tie's reduction while its last gradient is still a pending rendezvous send deadlocks
unless it drives message progress. Without kernel-assisted copies that shows on one machine."""

from __future__ import annotations

import torch

from suite.comm.world import init_world
from suite.core.grid import Grid
from suite.models import gpt
from suite.schedule import MessageDriven
from suite.workload import Transformer
from tests.support.cases import Case, text
from tests.support.laws import engine_of

torch.set_num_threads(1)


def main() -> None:
    world = init_world(pair_exchange=False)  # a reduction over MPI would itself progress the messages
    grid = Grid(inter=2, data=world.size // 2)
    for sequence in (40, 512):  # 40 kB and 0.5 MB per message
        shape = Transformer(2, 128, 2, sequence, 16)
        case = Case("large", gpt.layers(shape), gpt.loss, text(shape), microbatch=2, ties=gpt.ties(shape))
        engine = engine_of(case, grid, MessageDriven(), world)
        for number in range(3):
            engine.train_batch(case.batch(number, 2, grid.data))
        engine.evaluate([case.batch(9, 12, grid.data)])  # more values than a channel may hold
        engine.close()
    if world.rank == 0:
        print("no deadlock")
    world.close()


if __name__ == "__main__":
    main()
