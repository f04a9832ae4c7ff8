"""Program of each of two ranks for test_communication.py: one round trip of a value, by every backend in turn."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from time import perf_counter

import torch
import torch.distributed as dist
from mpi4py import MPI

from suite.comm.world import init_world
from suite.core.op import Kind, Op
from suite.core.protocols import Transport
from suite.microbench.communication import SecondBackend

torch.set_num_threads(1)
WARM_UP = 5
Tensor = torch.Tensor
Turn = Callable[[int, Tensor], Tensor]  # (number, value) -> what came back (rank 0) or came (rank 1)


def over(transport: Transport, rank: int) -> Turn:
    """Rank 0 sends the output of a forward and waits for the backward's; rank 1 answers as the engine's worker does."""

    def turn(number: int, value: Tensor) -> Tensor:
        forward, backward = Op(0, Kind.FORWARD, number), Op(1, Kind.BACKWARD, number)
        if rank == 0:
            transport.send(forward, (value,))
        arrival = transport.recv_any((backward if rank == 0 else forward,), None)
        assert arrival is not None
        if rank == 1:
            transport.send(backward, arrival[1])
        return arrival[1][0]

    return turn


def over_torch(rank: int, space: Tensor) -> Turn:
    """torch.distributed's blocking send and recv, into memory that is there already."""

    def turn(_: int, value: Tensor) -> Tensor:
        if rank == 0:
            dist.send(value, 1)
            dist.recv(space, 1)
        else:
            dist.recv(space, 0)
            dist.send(space, 0)
        return space

    return turn


def over_mpi4py(rank: int, space: Tensor) -> Turn:
    """mpi4py's blocking Send and Recv of buffers, into memory that is there already."""
    comm = MPI.COMM_WORLD

    def turn(_: int, value: Tensor) -> Tensor:
        if rank == 0:
            comm.Send(value, dest=1)
            comm.Recv(space, source=1)
        else:
            comm.Recv(space, source=0)
            comm.Send(space, dest=0)
        return space

    return turn


def main(sizes: list[int], rounds: list[int]) -> None:
    world = init_world(transport="mpi")
    rank = world.rank
    lanes = {
        "suite over MPI": world.transport((0, 1)),
        "suite over gloo": SecondBackend(world, "gloo").transport((0, 1)),
    }
    took: dict[str, dict[int, list[float]]] = {}
    number = 0
    for size, count in zip(sizes, rounds, strict=True):
        value, space = torch.zeros(size // 4), torch.empty(size // 4)
        turns = {name: over(lane, rank) for name, lane in lanes.items()}
        turns |= {"torch send/recv": over_torch(rank, space), "mpi4py Send/Recv": over_mpi4py(rank, space)}
        for round_ in range(-WARM_UP, count):
            for name, turn in turns.items():  # A B C D, A B C D: drift falls on all alike
                number += 1
                value.fill_(number)
                space.zero_()
                world.all_reduce_scalar(0.0, "sum", lambda: None)  # both are here: late arrival is not timed
                begin = perf_counter()
                back = turn(number, value)
                end = perf_counter()
                assert float(back[0]) == float(back[-1]) == number, f"{name}: {back[0]} and {back[-1]} for {number}"
                if round_ >= 0:
                    took.setdefault(name, {}).setdefault(size, []).append((end - begin) / 2)
    for lane in lanes.values():
        lane.close()
    if rank == 0:
        print(json.dumps(took))
    world.close()


if __name__ == "__main__":
    arguments = [int(text) for text in sys.argv[1:]]
    main(arguments[0::2], arguments[1::2])
