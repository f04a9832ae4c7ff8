"""Schedule files of this suite train in torch's pipeline runtime, to the losses and weights of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.nn.functional import mse_loss

from suite.cli.draw import draw
from suite.cli.run import run
from suite.config.compose import resolve
from suite.config.families import groups
from suite.conformance.outcomes import check_losses
from suite.core.op import FlushInterval
from suite.core.protocols import World
from suite.core.record import Outcome
from suite.schedule.check import check
from suite.schedule.torch_csv import check_schedule_file, parse, write
from tests.support.drawn import drawn
from tests.support.ranks import on_ranks
from tests.support.tools import needs

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


def train(world: World, path: Path, microbatches: int) -> None:
    """Train from a schedule file, and compare every loss and weight with one process."""
    rank, homes = world.rank, parse(path.read_text()).homes
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


EVERY = [(ranks, name) for ranks in (2, 4) for name in groups()["schedule"] if name != "torch_csv"]


@pytest.mark.parametrize(("ranks", "name"), drawn(EVERY, n=1))
def test_torch_trains_in_the_order_of_our_file(ranks: int, name: str, tmp_path: Path) -> None:
    path, microbatches = tmp_path / f"{name}.csv", 2 * ranks + 1
    timeline = check(resolve([f"schedule={name}"]).schedule.build(), ranks, FlushInterval(0, microbatches, None, 0))
    path.write_text(write([timeline.order(rank) for rank in range(ranks)]))
    check_schedule_file(parse(path.read_text()))
    on_ranks(ranks, train, path, microbatches, transport="gloo")


@pytest.mark.exhaustive
def test_engine_trains_in_the_order_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "zbv.csv"
    draw(["schedule=zbv", "grid.inter=2"], file)
    alike = ["batch.size=8", "batch.microbatch=1"]
    file_run = ["system=pipeline", "schedule=torch_csv", f"schedule.file={file}", "grid.inter=2", *alike]
    record, difference = check_losses(file_run, ["system=pytorch", *alike], tmp_path)
    assert record.provenance["schedule_file"]
    assert difference < 1e-6


@pytest.mark.ranks
def test_pytorch_refuses_a_batch_that_its_schedule_does_not_run(tmp_path: Path) -> None:
    needs("mpiexec")
    batch = ["batch.size=2", "batch.microbatch=2"]
    (record,) = run(["system=torch_pipelining", "grid.inter=2", *batch, f"reports={tmp_path}"])
    assert record.outcome is Outcome.UNSUPPORTED
    assert "batch.size=2; rule: Number of microbatches (1) must be greater" in record.reason
    assert "legal: batch.size=4" in record.reason
