"""Program of each rank for test_transports.py: law 2 on every grid of this world's size, over real messages."""

from __future__ import annotations

import sys

import torch

from baselines.gpipe import GPipe
from suite.comm.collective.process_group import TorchWorld
from suite.comm.rendezvous.launcher_env import launch_info
from suite.comm.world import connect_ranks, init_world
from suite.core.grid import Grid
from suite.core.protocols import World
from suite.schedule import MessageDriven, OneFOneB
from tests.support.cases import all_cases, gpt_case
from tests.support.laws import check_gradients

torch.set_num_threads(1)


def world_of(transport: str, order: str, eager_bytes: int) -> World:
    """World of a transport; `ordered` is NCCL's channels and static order, on gloo."""
    if transport == "ordered":
        return TorchWorld(launch_info(), connect_ranks(launch_info()), transport="nccl", eager_bytes=eager_bytes)
    return init_world(transport=transport, order=order, eager_bytes=eager_bytes)


def compare(transport: str, order: str, eager_bytes: int, *, every_case: bool) -> None:
    world = world_of(transport, order, eager_bytes)
    grids = [Grid(data=data, inter=world.size // data) for data in range(1, world.size + 1) if world.size % data == 0]
    compared = 0
    everything = all_cases()
    schedules = [MessageDriven(), GPipe()]
    if world.size == 2:  # four ranks share two cores on a laptop: only the most different orders run there
        schedules += [MessageDriven(pipeline_limit=6, prefer="forward"), OneFOneB()]
    if not every_case:
        everything, schedules = [everything[0], everything[-1]], schedules[-2:]
    for grid in grids:
        cases = [gpt_case("tied", "float64", layers=4)] if grid.inter > 2 else everything
        for case in cases:
            for schedule in schedules:
                tolerance = 0.0 if grid.data <= 2 else (1e-12 if "64" in case.name else 1e-5)
                compared += check_gradients(case, grid, schedule, world, tolerance=tolerance)
    if world.backend == "mpi":
        compared += staged(world, grids[0])
    world.close()
    if world.rank == 0:
        label = f"{transport} {order} {eager_bytes} {'all' if every_case else 'some'}"
        print(f"{label}: {type(world).__name__}, {len(grids)} grids, {compared} gradients compared", flush=True)


def staged(world: World, grid: Grid) -> int:
    # like a GPU without CUDA-aware MPI: every value is copied to host memory before it is sent
    copied, to_host = [], torch.Tensor.cpu
    torch.Tensor.cpu = lambda tensor: copied.append(1) or to_host(tensor)  # type: ignore[method-assign]
    world.staged = True
    compared = check_gradients(all_cases()[0], grid, MessageDriven(), world)
    torch.Tensor.cpu = to_host  # type: ignore[method-assign]
    assert len(copied) >= 17, "values were sent without being staged"
    return compared


if __name__ == "__main__":
    for line in sys.argv[1:]:  # one world after the other
        name, ops, most, cases = line.split()
        compare(name, ops, int(most), every_case=cases == "all")
