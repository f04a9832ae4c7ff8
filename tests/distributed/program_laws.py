"""What each MPI rank runs for test_mpi.py: law 2 on every grid of this world's size, over real messages."""

from __future__ import annotations

import sys

import torch
from cases import all_cases, gpt_case
from laws import check_gradients

from baselines.gpipe import GPipe
from suite.comm import here
from suite.core.grid import Grid
from suite.schedule import MessageDriven, OneFOneB

torch.set_num_threads(1)


def main(inline: int) -> None:
    world = here(inline=inline)
    grids = [Grid(data=data, inter=world.size // data) for data in range(1, world.size + 1) if world.size % data == 0]
    compared = 0
    schedules = [MessageDriven(), GPipe()]
    if world.size == 2:  # four ranks share two cores on a laptop: the orders that differ most are enough there
        schedules += [MessageDriven(pipeline_limit=6, prefer="forward"), OneFOneB()]
    for grid in grids:
        cases = [gpt_case("tied", "float64", layers=4)] if grid.inter > 2 else all_cases()
        for case in cases:
            for schedule in schedules:
                tolerance = 0.0 if grid.data <= 2 else (1e-12 if "64" in case.name else 1e-5)
                compared += check_gradients(case, grid, schedule, world, tolerance=tolerance)
    # what a GPU without CUDA-aware MPI does: every value is copied to host memory before it is sent
    copied, to_host = [], torch.Tensor.cpu
    torch.Tensor.cpu = lambda tensor: copied.append(1) or to_host(tensor)  # type: ignore[method-assign]
    world.staged = True
    compared += check_gradients(all_cases()[0], grids[0], MessageDriven(), world)
    assert len(copied) >= 17, "values were sent without being staged"
    if world.rank == 0:
        print(f"{len(grids)} grids, {compared} gradients compared")
    world.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
