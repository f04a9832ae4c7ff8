"""Law 2 over every transport and launcher: MPI with one and two messages per value, gloo, NCCL's channels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baselines.gpipe import GPipe
from suite.core.grid import Grid
from suite.core.protocols import World
from suite.models import gpt
from suite.schedule import MessageDriven, OneFOneB
from suite.workload import Transformer
from tests.support.cases import Case, all_cases, gpt_case, text
from tests.support.drawn import drawn
from tests.support.laws import check_gradients, engine_of
from tests.support.ranks import on_ranks

USUAL = (2, "", "auto any 16384", True)
ROWS = [  # ranks, launcher, transport with its order and eager bytes, every case or two that differ most
    USUAL,
    (2, "", "mpi any 512", False),  # a header message, followed by tensors
    *((2, "", f"{transport} 16384", False) for transport in ("mpi static", "gloo any", "ordered static")),
    (2, "", "gloo any 512", True),
    *((2, "torchrun", each, False) for each in ("auto any 512", "gloo static 16384", "ordered static 16384")),
    *((4, "", f"{transport} any 16384", False) for transport in ("auto", "gloo", "ordered")),
    (4, "", "auto any 16384", True),
]


def compare(world: World, every_case: bool) -> tuple[str, list[int]]:
    """Name of the world's class, and the number of compared gradients of each grid."""
    grids = [Grid(data=data, inter=world.size // data) for data in range(1, world.size + 1) if world.size % data == 0]
    cases, schedules = all_cases(), [MessageDriven(), GPipe()]
    if world.size == 2:  # four ranks share two cores on a laptop: only the most different orders run there
        schedules += [MessageDriven(pipeline_limit=6, prefer="forward"), OneFOneB()]
    if not every_case:  # one case has ties, the other has tuples of several dtypes and running statistics
        cases, schedules = [cases[0], cases[-1]], schedules[-2:]
    compared = []
    for grid in grids:
        compared.append(0)
        for case in [gpt_case("tied", "float64", layers=4)] if grid.inter > 2 else cases:
            for schedule in schedules:
                tolerance = 0.0 if grid.data <= 2 else (1e-12 if "64" in case.name else 1e-5)
                compared[-1] += check_gradients(case, grid, schedule, world, tolerance=tolerance)
    if world.backend == "mpi":
        staged(world, grids[0])
    return type(world).__name__, compared


def staged(world: World, grid: Grid) -> None:
    """Compare where every value is copied to host memory before it is sent, as on a GPU without CUDA-aware MPI."""
    copied, to_host = [], torch.Tensor.cpu
    torch.Tensor.cpu = lambda tensor: copied.append(1) or to_host(tensor)  # type: ignore[method-assign]
    world.staged = True
    check_gradients(all_cases()[0], grid, MessageDriven(), world)
    torch.Tensor.cpu = to_host  # type: ignore[method-assign]
    assert len(copied) >= 17, "values were sent without being staged"


@pytest.mark.parametrize(("ranks", "launcher", "channel", "every_case"), drawn(ROWS, n=1, always=[USUAL]))
def test_gradients_match_reference(ranks: int, launcher: str, channel: str, every_case: bool) -> None:
    transport, order, eager_bytes = channel.split()
    settings: dict[str, Any] = {"transport": transport, "order": order, "eager_bytes": int(eager_bytes)}
    if transport == "ordered":
        del settings["order"]
    over_mpi = transport == "mpi" or (transport == "auto" and not launcher)
    for kind, compared in on_ranks(ranks, compare, every_case, launcher=launcher, deadline=180, **settings):
        assert kind == ("MpiWorld" if over_mpi else "TorchWorld")
        assert len(compared) == (2 if ranks == 2 else 3)
        assert min(compared) > 0


def send_and_reduce(world: World) -> None:
    """Train with large messages, ties and replicas, with a collective right after a send.

    A last stage that enters the tie's reduction while its last gradient is still a pending rendezvous send deadlocks
    unless it drives message progress. Without kernel-assisted copies that shows on one machine.
    """
    grid = Grid(inter=2, data=world.size // 2)
    for sequence in (40, 512):  # 40 kB and 0.5 MB per message
        shape = Transformer(2, 128, 2, sequence, 16)
        case = Case("large", gpt.layers(shape), gpt.loss, text(shape), microbatch=2, ties=gpt.ties(shape))
        engine = engine_of(case, grid, MessageDriven(), world)
        for number in range(3):
            engine.train_batch(case.batch(number, 2, grid.data))
        engine.evaluate([case.batch(9, 12, grid.data)])  # more values than a channel may hold
        engine.close()


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_wait_without_progress_would_deadlock(ranks: int) -> None:
    on_ranks(ranks, send_and_reduce, deadline=60, pair_exchange=False)  # a reduction over MPI would itself progress
