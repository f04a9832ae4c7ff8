"""Distributed epochs over MPI and gloo equal the dense epoch and send the bytes of the plan."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from suite.core.record import Outcome
from suite.runner.interleave import measure
from suite.runner.progress import Progress
from suite.runner.runs import expand
from tests.support.persistent_ranks import run_persistent
from tests.support.ranks import run_ranks

PROGRAM = Path(__file__).parent / "program_graphs.py"


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "launcher"), [(2, "mpiexec"), pytest.param(6, "torchrun", marks=pytest.mark.exhaustive)]
)
def test_every_grid_and_exchange_runs_on_ranks(ranks: int, launcher: str) -> None:
    grids = sum(ranks % replication == 0 for replication in range(1, ranks + 1))
    if launcher == "mpiexec":
        output = run_persistent(ranks, PROGRAM)
    else:
        output = run_ranks(ranks, PROGRAM, launcher=launcher)
    assert f"{4 * grids} epochs" in output


@pytest.mark.ranks
def test_measured_run_matches_planned_bytes_and_predicted_memory(tmp_path: Path) -> None:
    overrides = ["system=sparsity_aware", "partitioner=metis", "grid.data=2", "graph.source.vertices=2048"]
    runs = expand([*overrides, "measure.rounds=2", f"reports={tmp_path}"])
    (record,) = measure(runs, Progress(1.0, io.StringIO()))
    assert (record.outcome, record.reason) == (Outcome.OK, "")
    planned = record.metrics["planned_bytes"].values[0]
    assert planned > 0
    assert set(record.metrics["exchanged_bytes"].values) == {planned}
    for rank in (0, 1):
        measured, predicted = (
            sum(kind[rank] for kind in record.memory[side].values()) for side in ("measured", "predicted")
        )
        assert measured == pytest.approx(predicted, rel=0.05)
    assert record.metrics["top_1"].values[0] > 50  # percent, of eight learnable labels
    assert record.series["loss"][-1] < record.series["loss"][0]
    assert {"time_gather", "time_exchange", "time_product", "time_gemm", "time_reduce"} < record.metrics.keys()
    assert record.provenance["data"]["vertices"] == 2048
    assert not list(tmp_path.glob("**/rank-*.npz"))
