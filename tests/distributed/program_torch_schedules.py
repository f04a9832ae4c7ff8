"""Train with torch's pipeline runtime in the orders of schedule files of this suite.

    mpiexec -n 2 python -m mpi4py program_torch_schedules.py FOLDER zbv zb_h1

Rank 0 prints a line per schedule. A rank raises an AssertionError where a loss or a weight differs from one process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.nn.functional import mse_loss

from suite.comm.world import init_world
from suite.config.compose import resolve
from suite.core.op import FlushInterval
from suite.schedule.check import check
from suite.schedule.torch_csv import check_schedule_file, parse, write

WIDTH, ROWS, UPDATES = 6, 2, 3


def layers(stages: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(stages)]


def batches(microbatches: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    shape = microbatches * ROWS, WIDTH
    return [(torch.randn(shape).double(), torch.randn(shape).double()) for _ in range(UPDATES)]


def of_one_process(stages: int, microbatches: int) -> tuple[list[float], list[nn.Module]]:
    """Losses and trained layers of plain PyTorch."""
    modules = layers(stages)
    model = nn.Sequential(*modules)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches(microbatches):
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, modules


def train(path: Path, microbatches: int) -> None:
    """Train from a schedule file, and compare every loss and weight with one process."""
    rank, homes = dist.get_rank(), parse(path.read_text()).homes
    modules = layers(len(homes))
    device = torch.device("cpu")
    held = [stage for stage, home in enumerate(homes) if home == rank]
    stages = [PipelineStage(modules[stage], stage, len(homes), device) for stage in held]
    pipeline = _PipelineScheduleRuntime(stages, microbatches, loss_fn=mse_loss)
    pipeline._load_csv(str(path), format="compute_only")
    optimizer = torch.optim.SGD([p for stage in held for p in modules[stage].parameters()], lr=0.5)
    expected_losses, expected = of_one_process(len(homes), microbatches)
    for (inputs, targets), wanted in zip(batches(microbatches), expected_losses, strict=True):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        arguments = (inputs,) if 0 in held else ()
        keywords = {"target": targets, "losses": losses} if len(homes) - 1 in held else {}
        pipeline.step(*arguments, **keywords)
        optimizer.step()
        if losses:
            assert len(losses) == microbatches
            torch.testing.assert_close(torch.stack(losses).mean().item(), wanted, rtol=1e-12, atol=0)
    for stage in held:
        for mine, other in zip(modules[stage].parameters(), expected[stage].parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    world = init_world(transport="gloo")
    ranks = world.size
    microbatches = 2 * ranks + 1
    for name in names:
        path = folder / f"{name}.csv"
        if dist.get_rank() == 0:
            schedule = resolve([f"schedule={name}"]).schedule.build()
            timeline = check(schedule, ranks, FlushInterval(0, microbatches, None, 0))
            path.write_text(write([timeline.order(rank) for rank in range(ranks)]))
            check_schedule_file(parse(path.read_text()))
        dist.barrier()
        train(path, microbatches)
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"{name} trained", flush=True)
    world.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
