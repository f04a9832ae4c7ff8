"""Law 8 over MPI, and for a killed run that the same command resumes."""

from __future__ import annotations

from pathlib import Path

from suite.cli.run import run
from suite.core.record import Outcome
from suite.engine.system import EngineSystem
from tests.support.curves import losses_of
from tests.support.persistent_ranks import run_persistent
from tests.support.short import faulty, short


def test_two_ranks_resume_bit_identically(tmp_path: Path) -> None:
    out = run_persistent(2, Path(__file__).with_name("program_resume.py"), str(tmp_path))
    assert "MpiWorld: " in out
    assert len([*tmp_path.iterdir()]) == 4


def test_same_command_resumes_after_kill(tmp_path: Path) -> None:
    """A rank is killed in its third batch; the second process trains the remaining batch and the memory batch."""
    folder, reports = tmp_path / "checkpoints", tmp_path / "reports"
    small = ["model.shape.layers=2", "model.shape.hidden=32", "model.shape.sequence=16", "batch.size=8"]
    small += short()
    command = [*small, f"reports={reports}", f"checkpoint.folder={folder}", "checkpoint.every=1", "rerun=failed"]
    command += [*faulty("kill"), "+system.supports_checkpoints=true"]
    (killed,) = run(command)
    assert killed.outcome is Outcome.LOST_RANK, killed.reason
    (run_folder,) = folder.iterdir()
    assert run_folder.name == killed.key
    assert sorted(path.name for path in run_folder.iterdir()) == ["step-000001", "step-000002"]
    (record,) = run(command)
    assert record.outcome is Outcome.OK, record.reason
    assert record.key == killed.key
    assert record.notes[-1].startswith("resumed after batch 2")
    assert record.series["loss"] == losses_of(EngineSystem, small, 4)
    assert record.series["loss"][:2] == killed.series["loss"]
    times = record.metrics["batch_time"].values
    assert times[:1] == killed.metrics["batch_time"].values
    assert len(times) == 2
    assert [path.name for path in folder.iterdir()] == [f"{record.key}.finished"]
