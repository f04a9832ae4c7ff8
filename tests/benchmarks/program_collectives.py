"""Program of each of two ranks for test_communication.py: one sum of two tensors, by every group in turn."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from time import perf_counter

import torch
import torch.distributed as dist
from mpi4py import MPI

from suite.comm.p2p.mpi import PairGroup
from suite.comm.p2p.polling import wait_until
from suite.comm.world import init_world
from suite.core.protocols import Group

torch.set_num_threads(1)
WARM_UP = 5
Sum = Callable[[torch.Tensor], None]


def polled(group: Group) -> Sum:
    """As the engine's update waits: it polls, so that messages could move in between."""
    return lambda tensor: wait_until(group.all_reduce(tensor).done, lambda: None) and None


def main(sizes: list[int], rounds: list[int]) -> None:
    world = init_world(transport="mpi")
    pair = world.group(range(world.size))
    assert isinstance(pair, PairGroup)
    sums: dict[str, Sum] = {
        "suite, exchange over MPI": polled(pair),
        "suite, gloo": polled(world.collectives.group(pair.ranks)),
        "torch all_reduce": lambda tensor: dist.all_reduce(tensor) and None,
    }
    took: dict[str, dict[int, list[float]]] = {}
    for size, count in zip(sizes, rounds, strict=True):
        tensor = torch.empty(size // 4)
        for round_ in range(-WARM_UP, count):
            for name, add in sums.items():  # A B C, A B C: drift falls on all alike
                tensor.fill_(world.rank + 1 + round_)
                world.all_reduce_scalar(0.0, "sum", lambda: None)  # both are here: late arrival is not timed
                begin = perf_counter()
                add(tensor)
                end = perf_counter()
                assert float(tensor[0]) == float(tensor[-1]) == 3 + 2 * round_, f"{name}: {tensor[0]} and {tensor[-1]}"
                if round_ >= 0:
                    took.setdefault(name, {}).setdefault(size, []).append(end - begin)
    every = MPI.COMM_WORLD.gather(took)
    if every is not None:
        slowest = {
            name: {
                size: [max(pair) for pair in zip(*(of_rank[name][size] for of_rank in every), strict=True)]
                for size in sizes
            }
            for name in sums
        }
        print(json.dumps(slowest))
    world.close()


if __name__ == "__main__":
    arguments = [int(text) for text in sys.argv[1:]]
    main(arguments[0::2], arguments[1::2])
