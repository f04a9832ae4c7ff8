"""Program of each of two ranks for test_communication.py: round trips or sums of values, by every operation in turn.

Arguments: round_trips or all_reduces, then pairs of bytes and samples. Prints seconds by operation and bytes: of rank 0
for a round trip, else of the slower rank."""

from __future__ import annotations

import json
import sys

import torch
from mpi4py import MPI

from suite.comm.world import init_world
from suite.microbench import communication
from suite.runner.executors.message_sizes import sweep

torch.set_num_threads(1)
MAKE = {"round_trips": communication.round_trips, "all_reduces": communication.all_reduces}


def main(kind: str, sizes: list[int], rounds: list[int]) -> None:
    world = init_world(transport="mpi")
    operations = MAKE[kind](world, ["mpi", "gloo"])
    took: dict[str, dict[int, list[float]]] = {each.name: {} for each in operations}
    for size, count in zip(sizes, rounds, strict=True):
        of_ranks = MPI.COMM_WORLD.allgather(sweep(world, operations, [size], count, size * count))
        for name, by_size in took.items():
            ranks = [samples[name][0] for samples in of_ranks]
            by_size[size] = ranks[0] if kind == "round_trips" else [max(pair) for pair in zip(*ranks, strict=True)]
    for each in operations:
        each.close()
    if world.rank == 0:
        print(json.dumps(took))
    world.close()


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[2:]]
    main(sys.argv[1], numbers[0::2], numbers[1::2])
