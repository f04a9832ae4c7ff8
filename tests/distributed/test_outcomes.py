"""One record per run for every outcome, with the samples collected before a fault."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from suite.cli.run import exit_code, run
from suite.core.record import Outcome, Record
from suite.engine.system import EngineSystem
from suite.runner.interleave import measure
from suite.runner.progress import Progress
from suite.runner.provenance import circumstances
from suite.runner.runs import expand
from suite.runner.store import key_of
from tests.support.curves import losses_of
from tests.support.drawn import drawn
from tests.support.short import deadly, faulty, short
from tests.support.waiting import slowness

ROOT = Path(__file__).parents[2]
SHORT = [*short(), "batch.size=8"]


@pytest.fixture(scope="module", autouse=True)
def mark() -> Iterator[None]:
    """Mark the environment of the ranks that these tests start: another worker's tests may run ranks meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUITE_TEST_OUTCOMES", str(os.getpid()))
        yield


def no_rank_left() -> bool:
    """Processes of this user anywhere in the tree: an orphan has no parent."""
    for process in psutil.process_iter(["cmdline", "environ"]):
        line, environ = process.info["cmdline"] or [], process.info["environ"] or {}
        if "suite.runner.ranks.rank" in line and environ.get("SUITE_TEST_OUTCOMES") == str(os.getpid()):
            return False
    return True


RAISED = "a deliberate fault"
FAULTS = [
    ("raise", Outcome.FAILED, RAISED, ["grid.inter=2"]),
    ("raise", Outcome.FAILED, RAISED, ["grid.inter=2", "comm.transport=gloo"]),
    ("kill", Outcome.LOST_RANK, "rank 1 ended without a message", ["grid.data=2"]),  # in a reduction
    ("kill", Outcome.LOST_RANK, "rank 1 ended", ["grid.inter=2", "launch.launcher=torchrun"]),  # over gloo
    ("hang", Outcome.TIMEOUT, "train_batch", ["grid.inter=2", "launch.heartbeat_interval=0.5"]),
    ("hold", Outcome.TIMEOUT, "sent no heartbeat for", ["grid.inter=2", "launch.heartbeat_interval=1"]),
    ("stop", Outcome.TIMEOUT, "sent no heartbeat for", ["grid.inter=2", "launch.heartbeat_interval=1"]),
    ("oom", Outcome.OOM, "allocate memory", ["launch.memory_limit=8000000000"]),
    ("diverge", Outcome.DIVERGED, "nan", []),
    ("missing", Outcome.MISSING_DEPENDENCY, "its package is not installed", []),
    ("package", Outcome.MISSING_DEPENDENCY, "a_package_that_nobody_has", []),
    ("close", Outcome.FAILED, "did not close", []),
    ("close", Outcome.FAILED, "did not close", ["grid.inter=2"]),
    ("hang_at_close", Outcome.FAILED, "did not close", ["launch.grace=1"]),
]
SILENT = ("launch.heartbeat_timeout", 15)
LIMITS = {"hang": ("measure.deadline", 12), "hold": SILENT, "stop": SILENT}  # seconds of an idle machine
SAMPLES = {
    "missing": 0,
    "diverge": 2,
    "close": 2,
    "hang_at_close": 2,
}  # times of batches that are kept; a batch that diverged was timed


@pytest.mark.parametrize(("fault", "outcome", "words", "more"), drawn(FAULTS, n=2))
def test_fault_is_recorded_as_outcome(
    tmp_path: Path, fault: str, outcome: Outcome, words: str, more: list[str]
) -> None:
    limits = [f"{key}={seconds * slowness():.0f}" for key, seconds in [LIMITS[fault]]] if fault in LIMITS else []
    (record,) = run([*SHORT, *faulty(fault), f"reports={tmp_path}", *more, *limits])
    assert record.outcome is outcome, record.reason
    assert words in record.reason
    if "hang" in fault or fault == "hold":
        assert "faulty.py" in record.reason, "no stack of the stuck rank"
    if fault == "hang":
        assert re.search(r"last heartbeat of rank 1 \d\.\d s ago at batch \d", record.reason)
    if fault == "close":
        assert RAISED in record.reason
        assert len(record.series["validation_loss"]) == 1
    if fault != "missing":
        assert len(record.metrics["batch_time"].values) == SAMPLES.get(fault, 1)
        assert len(record.series["loss"]) >= 2
    (stored,) = (tmp_path / "records").iterdir()
    assert stored.name == f"{record.key}.json"
    assert Record.read(stored).to_json() == record.to_json()  # texts: a loss may be NaN
    assert exit_code([record]) == 2
    assert no_rank_left()


@pytest.mark.slow("two runs take turns on new ranks")
def test_fault_does_not_end_sweep(tmp_path: Path) -> None:
    """Of two interleaved systems the first is killed; the other has all its samples."""
    command = [*SHORT, f"reports={tmp_path}"]
    runs = [*expand([*command, *faulty("kill")]), *expand(command)]
    records = measure(runs, Progress(10))
    assert [record.label for record in records] == [run.label for run in runs], "an experiment keeps its order"
    assert {path.stem for path in (tmp_path / "records").iterdir()} == {record.key for record in records}
    assert [record.outcome for record in records] == [Outcome.LOST_RANK, Outcome.OK]
    assert "rank 0 ended" in records[0].reason
    assert [len(record.metrics["batch_time"].values) for record in records] == [1, 2]
    assert exit_code(records) == 1
    assert no_rank_left()


@pytest.mark.slow("two runs on a new rank")
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


@pytest.mark.exhaustive
def test_torchrun_outcome_matches_mpiexec(tmp_path: Path) -> None:
    """Equal losses, and a record of the transport and the order of ops."""
    command = [*SHORT, f"reports={tmp_path}", "grid.inter=2"]
    (usual,) = run(command)
    (other,) = run([*command, "launch.launcher=torchrun", "comm.order=static"])
    assert usual.outcome is other.outcome is Outcome.OK, other.reason
    assert usual.series == other.series
    (away,) = usual.notes
    assert re.fullmatch(r"on the host of the fullest rank: moments (\d+ kB); predicted \1", away)
    assert (usual.provenance["carrier"], usual.provenance["order"]) == ("mpi", "any")
    assert (other.provenance["carrier"], other.provenance["order"]) == ("gloo", "static")
    assert other.notes == ("order=static: ops ran in the checker's order", away)
    assert no_rank_left()


@pytest.mark.usefixtures("no_ranks")
def test_rejected_configs_are_recorded_without_launch(tmp_path: Path) -> None:
    for more in (["batch.size=7"], ["grid.inter=9"], ["grid.inter=200"], ["grid.tensor=2"]):
        (record,) = run([*SHORT, f"reports={tmp_path}", "batch.microbatch=2", *more])
        assert record.outcome is Outcome.UNSUPPORTED
        assert "rule:" in record.reason
        assert "legal:" in record.reason


def test_missing_mpiexec_is_a_missing_dependency(tmp_path: Path) -> None:
    (record,) = run([*SHORT, f"reports={tmp_path}", "grid.inter=2", "launch.mpiexec=no-such-launcher"])
    assert record.outcome is Outcome.MISSING_DEPENDENCY
    assert "mpiexec" in record.reason


def key(command: list[str]) -> str:
    """Key of the record that a command would write now."""
    (expanded,) = expand(command)
    return key_of(expanded.settings, circumstances(expanded.config))


def test_same_command_skips_recorded_runs(tmp_path: Path) -> None:
    """A damaged record is measured anew, a record is not, and `rerun` repeats what it selects."""

    def begun(command: list[str]) -> tuple[Record, int]:
        """The record, and the number of runs that were begun so far."""
        (record,) = run(command)
        return record, len((tmp_path / "log").read_text().splitlines())

    command = deadly(tmp_path, "well")
    path = tmp_path / "records" / f"{key(command)}.json"
    path.parent.mkdir()
    path.write_text('{"schema_version": 1, "key": ')
    first, _ = begun(command)
    assert first.outcome is Outcome.OK
    assert Record.read(path) == first
    assert begun(command) == (first, 1)
    assert begun([*command, "rerun=failed"]) == (first, 1)
    assert begun([*command, "rerun=all"])[1] == 2
    command = deadly(tmp_path, "raises")
    failed, _ = begun(command)
    assert failed.outcome is Outcome.FAILED
    assert begun(command) == (failed, 3)
    again, runs = begun([*command, "rerun=failed"])
    assert (again.key, runs) == (failed.key, 4)


@pytest.mark.slow("a run on a new rank")
def test_rejected_config_is_validated_again(tmp_path: Path) -> None:
    """The reason may be gone, and the config does not contain it."""
    folder = tmp_path / "text"
    command = [*SHORT, f"reports={tmp_path}", "data=wikitext_103", f"data.folder={folder}"]
    (refused,) = run(command)
    assert refused.outcome is Outcome.UNSUPPORTED
    folder.mkdir()
    for name in ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"):
        (folder / name).write_text("= A title =\n words enough for a sequence " * 2000)
    (record,) = run(command)
    assert record.outcome is Outcome.OK, record.reason
    (folder / "wiki.train.tokens").write_text("= Another title =\n other words for a sequence " * 2000)
    assert key(command) != record.key, "a number must not be reused across changed data"


@pytest.mark.slow("three commands in new processes")
def test_sweep_continues_after_refused_job(tmp_path: Path) -> None:
    systems = ["system=deepspeed_3d,axonn", "schedule=gpipe"]  # the first system brings its own order
    line = [sys.executable, "-m", "suite", "sweep", *deadly(tmp_path, "well"), *systems]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    records = [Record.read(file) for file in (tmp_path / "records").glob("*.json")]
    assert {record.outcome for record in records} == {Outcome.UNSUPPORTED, Outcome.OK}, done.stdout + done.stderr
    assert done.returncode == 1
