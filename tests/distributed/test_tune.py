"""A small tuning for real: two plans on two ranks take turns, one is kept, and the file that names it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import needs

from suite.bench.experiment import expand
from suite.core.record import Outcome, Record
from suite.tune import main

SHORT = [
    "batch.size=4",
    "tune.candidates=2",
    "tune.turns=1",
    "tune.batches=2",
    "measure.settle=0",
    "measure.evaluate=0",
]


@pytest.mark.ranks
def test_two_plans_are_measured_and_one_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("mpiexec")
    assert main(["system=axonn", "model.shape.layers=2", "machine=h200", *SHORT, f"reports={tmp_path}"]) == 0
    records = [Record.read(file) for file in (tmp_path / "records").iterdir()]
    assert [record.outcome for record in records] == [Outcome.OK] * 2, records[0].reason
    assert [len(record.metrics["batch_time"].values) for record in records] == [2, 2]
    assert len({record.provenance["turns"] for record in records}) == 1
    assert {record.experiment for record in records} == {"tuning"}
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "axonn, gpt_tiny on 2 devices: 6 plans, 1 refused, 2 measured"
    assert ["measured " in line for line in said[1:7]] == [True] * 2 + [False] * 4
    (kept,) = [line for line in said[1:7] if line.endswith(", kept")]
    (file,) = (tmp_path / "tuned").iterdir()
    assert said[-1] == f"  python -m suite @{file}"
    (run,) = expand([f"@{file}"])
    assert f"  {run.grid} microbatch {run.config['batch']['microbatch']} " in kept
    assert run.config["model"]["shape"]["layers"] == 2
    assert main(["system=axonn", "model.shape.layers=2", "machine=h200", *SHORT, f"reports={tmp_path}"]) == 0
    assert capsys.readouterr().out.splitlines() == said, "what is measured stands"
