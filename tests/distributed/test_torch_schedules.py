"""Schedule files of this suite train in torch's pipeline runtime, to the losses and weights of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.cli.draw import draw
from suite.cli.run import run
from suite.config.families import groups
from suite.conformance.outcomes import check_losses
from suite.core.record import Outcome
from tests.support.drawn import few
from tests.support.persistent_ranks import run_persistent
from tests.support.tools import needs

PROGRAM = Path(__file__).with_name("program_torch_schedules.py")
EVERY = [name for name in groups()["schedule"] if name != "torch_csv"]


@pytest.mark.parametrize(
    ("ranks", "names"),
    [
        (2, few(EVERY, 2)),
        pytest.param(2, EVERY, marks=pytest.mark.exhaustive),
        pytest.param(4, EVERY, marks=pytest.mark.exhaustive),
    ],
    ids=["2", "2-every", "4-every"],
)
def test_torch_trains_in_the_orders_of_our_files(ranks: int, names: list[str], tmp_path: Path) -> None:
    out = run_persistent(ranks, PROGRAM, str(tmp_path), *names)
    assert out.split("\n")[:-1] == [f"{name} trained" for name in names]


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
