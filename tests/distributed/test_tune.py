"""A small tuning run: two plans on two ranks in interleaved rounds; the selected plan's file runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from suite.cli.tune import main
from suite.core.record import Outcome, Record
from suite.runner.runs import expand
from tests.support.processes import processes_of
from tests.support.tools import needs
from tests.support.waiting import patience, wait_until

SHORT = [
    "batch.size=4",
    "tune.candidates=2",
    "tune.rounds=1",
    "tune.batches=2",
    "measure.discard_first=0",
    "measure.eval_batches=0",
]


@pytest.mark.ranks
@pytest.mark.exhaustive
def test_tune_measures_two_plans_and_selects_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("mpiexec")
    assert main(["system=axonn", "model.shape.layers=2", "machine=h200", *SHORT, f"reports={tmp_path}"]) == 0
    records = [Record.read(file) for file in (tmp_path / "records").iterdir()]
    assert [record.outcome for record in records] == [Outcome.OK] * 2, records[0].reason
    assert [len(record.metrics["batch_time"].values) for record in records] == [2, 2]
    assert len({record.provenance["turns"] for record in records}) == 1
    assert {record.experiment for record in records} == {"tuning"}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "axonn, gpt_tiny on 2 devices: 6 plans, 1 refused, 2 measured"
    assert ["measured " in line for line in lines[1:7]] == [True] * 2 + [False] * 4
    (selected,) = [line for line in lines[1:7] if line.endswith(", selected")]
    (file,) = (tmp_path / "tuned").iterdir()
    assert lines[-1] == f"  suite run @{file} reports={tmp_path}"
    (run,) = expand([f"@{file}"])
    assert f"  {run.grid} microbatch {run.config.batch.microbatch} " in selected
    assert run.config.model.shape.arguments["layers"] == 2
    assert main(["system=axonn", "model.shape.layers=2", "machine=h200", *SHORT, f"reports={tmp_path}"]) == 0
    assert capsys.readouterr().out.splitlines() == lines, "what is measured stands"


@pytest.mark.ranks
def test_interrupt_records_cancellation_and_leaves_no_process(tmp_path: Path) -> None:
    needs("mpiexec")
    long = [*SHORT[:2], "tune.rounds=1", "tune.batches=100000", "model.shape.layers=2", "machine=h200"]
    process = subprocess.Popen(
        [sys.executable, "-m", "suite", "tune", *long, f"reports={tmp_path}"],
        env={**os.environ, "TMPDIR": str(tmp_path)},  # the command line of every rank contains it
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )

    def ranks_are_up() -> bool:
        assert process.poll() is None
        return len(processes_of(tmp_path)) >= 3  # the command itself, and ranks

    wait_until(ranks_are_up, 60, poll=0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=patience(20))
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "interrupted by SIGINT; run the same command again to continue"
    assert "Traceback" not in errors
    records = [Record.read(file) for file in (tmp_path / "records").iterdir()]
    assert [(record.outcome, record.reason) for record in records] == [(Outcome.CANCELLED, "interrupted by SIGINT")] * 2
    assert not processes_of(tmp_path)
    assert not list(tmp_path.rglob("*.partial"))
