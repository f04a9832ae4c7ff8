"""Executor `replay`: one process runs all ranks of a system, from the command line to the record."""

from __future__ import annotations

from pathlib import Path

from suite.cli.run import run
from suite.core.record import Outcome

SMALL = ["grid.inter=2", "model.shape.tied=false", "model.shape.layers=2", "measure.warm_up=0", "measure.rounds=1"]
SMALL += ["measure.discard_first=0", "measure.batches=2", "measure.eval_batches=0"]


def test_replay_of_a_pipeline_writes_a_record(tmp_path: Path) -> None:
    (record,) = run(["system=pipeoptim", "executor=replay", *SMALL, f"reports={tmp_path}"])
    assert record.outcome is Outcome.OK, record.reason
    assert len(record.series["loss"]) >= 2
