"""Program of each rank for test_ends.py: the ways in which users' training scripts end.

program_ends.py HOW [TRANSPORT]

HOW=calls,GRID,COUNT,COUNT: number of train_batch calls of each rank.
HOW=loop,GRID,COUNT,COUNT: number of batches after which each rank leaves its loop.
HOW=sizes,GRID and HOW=other,GRID: rank 1 trains on fewer samples, or evaluates.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch.nn.functional import cross_entropy

from suite import AdamW, Engine, Grid
from suite.comm.world import init_world

how, transport = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "auto"
grid = Grid(data=2) if how == "collective" or ",data," in how else Grid(inter=2)
world = init_world(transport=transport)
torch.manual_seed(0)
layers = [torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)]
engine = Engine(layers, loss=cross_entropy, optimizer=AdamW(lr=1e-2), microbatch=4, grid=grid, world=world)
batch = (torch.randn(16, 8), torch.zeros(16, dtype=torch.long))
if "," not in how:
    engine.train_batch(batch)
if how.startswith("calls"):
    for _ in range(int(how.split(",")[2 + engine.rank])):
        engine.train_batch(batch)
elif how.startswith("loop"):
    for number, _ in enumerate(engine.train(iter([batch] * 10)), 1):
        if number == int(how.split(",")[2 + engine.rank]):
            break
elif how.startswith("sizes"):
    engine.train_batch(tuple(tensor[:8] for tensor in batch) if engine.rank else batch)
elif how.startswith("other"):
    engine.evaluate([batch]) if engine.rank else engine.train_batch(batch)
elif how == "two":  # a second engine, neither closed
    Engine(layers, loss=cross_entropy, optimizer=AdamW(lr=1e-2), microbatch=4, grid=grid, world=world).train_batch(
        batch
    )
elif how == "close":
    engine.close()
elif how == "destroy":
    torch.distributed.destroy_process_group()
elif how == "slow" and engine.rank == 1:
    time.sleep(8)  # longer than the other rank waits at its exit
elif how == "interrupt":
    if engine.rank == 1:
        os.kill(os.getpid(), signal.SIGINT)
    engine.train_batch(batch)
elif how == "collective":  # a collective is under way when its rank raises
    if engine.rank == 1:
        under_way = world.group((0, 1)).all_reduce(torch.ones(1))
        raise ValueError("a deliberate fault")
    time.sleep(600)
elif how.startswith(("exit", "raise")):
    if engine.rank == 1:
        if how == "raise":
            raise ValueError("a deliberate fault")
        sys.exit(int(how.removeprefix("exit")))
    engine.train_batch(batch)  # waits for a message that never comes
print("ended")
