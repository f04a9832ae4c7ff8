"""PyTorch's placed schedules, the engine's same schedules and plain PyTorch have the same losses."""

from __future__ import annotations

import pytest

from baselines.torch_pipelining import TorchPipelining
from suite.core.errors import Unsupported
from suite.core.protocols import Ready
from tests.support.curves import config_of, one_process, peer_curves
from tests.support.drawn import drawn
from tests.support.ranks import on_ranks
from tests.support.tools import needs

BATCHES = 4
TOLERANCE = 1e-11  # relative, in float64
CLIP_TOLERANCE = 1e-8  # PyTorch adds 1e-6 to the norm, the engine does not
HALF_TOLERANCE = 5e-4  # sums in half precision round by their order
MODEL = ("model.shape.layers=6", "batch.size=8", "batch.microbatch=1")
EXACT = "model.dtype=float64"
SCHEDULES = ("interleaved", "looped_bfs", "interleaved_zero_bubble", "zbv", "dual_pipe_v")
Run = tuple[tuple[str, ...], tuple[str, ...]]
"""Overrides of the grid and the system, and overrides that hold for the reference too."""


def compare(ranks: int, name: str, run: Run) -> None:
    """Train a schedule with PyTorch and with the engine, and compare losses with those of one process."""
    needs("mpiexec")
    grid, more = run
    systems = [f"system={system} schedule={name}" for system in ("torch_pipelining", "pipeline")]
    ours = tuple(word for word in grid if not word.startswith("system."))  # keys of torch's alone
    configs = [
        config_of([*system.split(), *MODEL, *place, *more]) for system, place in zip(systems, (grid, ours), strict=True)
    ]
    expected = one_process(BATCHES, *MODEL, *more)
    curves = zip(*on_ranks(ranks, peer_curves, BATCHES, configs, deadline=300), strict=True)
    for label, config, by_rank in zip(systems, configs, curves, strict=True):
        own = config.system.on_engine
        assert all(one["losses"] == by_rank[0]["losses"] for one in by_rank), label
        tolerance = HALF_TOLERANCE if config.precision.half else TOLERANCE
        if config.optimizer.clip_norm is not None and own:
            tolerance = CLIP_TOLERANCE
        assert by_rank[0]["losses"] == pytest.approx(expected["losses"], rel=tolerance, abs=0), label
        assert by_rank[0]["held_out"] == pytest.approx(expected["held_out"], rel=tolerance, abs=0), label
        assert by_rank[0]["losses"][-1] < by_rank[0]["losses"][0] - 0.2, label
        assert all(one["memory"]["weights"] > 0 for one in by_rank), label


TWO: list[Run] = [
    (("grid.inter=2",), (EXACT,)),
    (("grid.inter=2",), (EXACT, "optimizer=sgd", "optimizer.clip_norm=0.3", "activation_checkpointing=1")),
    (("grid.data=2",), (EXACT, "optimizer=sgd")),
    (("grid.inter=2",), ("precision=bf16", "optimizer=sgd", "optimizer.lr=0.02")),
]
FOUR: Run = (("grid.inter=2", "grid.data=2"), (EXACT, "optimizer=sgd"))
DDP: Run = (("grid.inter=2", "grid.data=2", "system.data_parallel=ddp"), (EXACT, "optimizer=sgd"))
STAGES: Run = (("grid.inter=4",), (EXACT, "model.shape.tied=false"))
ODD: Run = (("grid.inter=2",), (EXACT, "batch.size=3"))
ROWS = [
    *((2, name, run) for name in SCHEDULES for run in TWO),
    *((2, name, ODD) for name in ("looped_bfs", "zbv")),  # these take every number of microbatches
    (2, "interleaved", (("grid.inter=2", "schedule.chunks=3"), (EXACT,))),
    *((4, name, run) for name in SCHEDULES for run in (FOUR, STAGES)),
    *((4, name, DDP) for name in ("interleaved", "looped_bfs")),
]


@pytest.mark.ranks
@pytest.mark.slow("two ranks of torch.distributed")
@pytest.mark.parametrize(("ranks", "name", "run"), drawn(ROWS, n=1), ids=str)
def test_losses_of_a_schedule_are_those_of_one_process(ranks: int, name: str, run: Run) -> None:
    compare(ranks, name, run)


@pytest.mark.parametrize("name", drawn(SCHEDULES, n=2))
def test_schedules_are_ready_on_two_ranks(name: str) -> None:
    assert (
        TorchPipelining.probe(config_of(["system=torch_pipelining", f"schedule={name}", "grid.inter=2", *MODEL]))
        == Ready()
    )


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        (["system=torch_pipelining", "schedule=zbv", "grid.inter=2"], "apart from backward passes"),
        (["system=torch_pipelining", "schedule=dual_pipe_v", "grid.inter=2"], "apart from backward passes"),
        (["system=torch_pipelining", "schedule=interleaved_zero_bubble", "grid.inter=2"], "apart from backward passes"),
        (["system=torch_pipelining", "schedule=interleaved"], "two modules of DistributedDataParallel"),
    ],
)
def test_ddp_is_refused_where_it_would_not_reduce(overrides: list[str], rule: str) -> None:
    config = config_of([*overrides, *MODEL, "grid.data=2", "system.data_parallel=ddp"])
    with pytest.raises(Unsupported) as refusal:
        TorchPipelining.probe(config)
    assert (refusal.value.key, refusal.value.value) == ("system.data_parallel", "ddp")
    assert rule in refusal.value.rule
    assert refusal.value.legal == "system.data_parallel=flat"
