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
from suite.runner.interleave import measure
from suite.runner.progress import Progress
from suite.runner.provenance import circumstances
from suite.runner.runs import expand
from suite.runner.store import key_of
from tests.support.drawn import drawn

PLUGINS = Path(__file__).parents[1] / "plugins"
SHORT = [
    "measure.warm_up=1",
    "measure.discard_first=0",
    "measure.rounds=2",
    "measure.batches=1",
    "measure.eval_batches=1",
    "batch.size=8",
]


def faulty(tmp_path: Path, fault: str, *more: str) -> list[str]:
    return [
        *SHORT,
        f"reports={tmp_path}",
        "system._target_=faulty.Faulty",
        "system.name=faulty",
        f"+system.fault={fault}",
        f"launch.python_path=[{PLUGINS}]",
        *more,
    ]


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


@pytest.mark.parametrize(
    ("fault", "outcome", "words", "more"),
    drawn(
        [
            ("raise", Outcome.FAILED, "a deliberate fault", ["grid.inter=2"]),
            ("raise", Outcome.FAILED, "a deliberate fault", ["grid.inter=2", "comm.transport=gloo"]),
            ("kill", Outcome.LOST_RANK, "rank 1 ended without a message", ["grid.data=2"]),  # in a reduction
            ("kill", Outcome.LOST_RANK, "rank 1 ended", ["grid.inter=2", "launch.launcher=torchrun"]),  # over gloo
            ("kill", Outcome.LOST_RANK, "rank 0 ended", []),
            (
                *("hang", Outcome.TIMEOUT, "train_batch"),
                ["grid.inter=2", "measure.deadline=3", "launch.heartbeat_interval=0.5"],
            ),
            (
                *("stop", Outcome.TIMEOUT, "sent no heartbeat for 6 s"),
                ["grid.inter=2", "launch.heartbeat_interval=1", "launch.heartbeat_timeout=6"],
            ),
            ("oom", Outcome.OOM, "allocate memory", ["launch.memory_limit=8000000000"]),
            ("diverge", Outcome.DIVERGED, "nan", []),
            ("missing", Outcome.MISSING_DEPENDENCY, "its package is not installed", []),
            ("package", Outcome.MISSING_DEPENDENCY, "a_package_that_nobody_has", []),
        ],
        n=3,
    ),
)
def test_fault_is_recorded_as_outcome(
    tmp_path: Path, fault: str, outcome: Outcome, words: str, more: list[str]
) -> None:
    (record,) = run(faulty(tmp_path, fault, *more))
    assert record.outcome is outcome, record.reason
    assert words in record.reason
    if fault == "hang":
        assert "faulty.py" in record.reason, "no stack of the stuck rank"
        assert re.search(r"last heartbeat of rank 1 \d\.\d s ago at batch \d", record.reason)
    if fault != "missing":
        samples = 2 if fault == "diverge" else 1  # a batch that diverged was timed
        assert len(record.metrics["batch_time"].values) == samples, "the sample before the fault is kept"
        assert len(record.series["loss"]) >= 2
    assert (tmp_path / "records" / f"{record.key}.json").exists()
    assert exit_code([record]) == 2
    assert no_rank_left()


@pytest.mark.parametrize("more", drawn([["grid.inter=2"], []], n=1))
def test_unclosed_ranks_are_recorded_as_failed(tmp_path: Path, more: list[str]) -> None:
    (record,) = run(faulty(tmp_path, "close", *more))
    assert record.outcome is Outcome.FAILED
    assert "did not close" in record.reason
    assert "a deliberate fault" in record.reason
    assert len(record.metrics["batch_time"].values) == 2
    assert len(record.series["validation_loss"]) == 1
    (stored,) = (tmp_path / "records").iterdir()
    assert Record.read(stored) == record
    assert no_rank_left()


@pytest.fixture(scope="module")
def in_turns(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Two interleaved systems, of which the first is killed."""
    folder = tmp_path_factory.mktemp("turns")
    runs = [
        *expand(faulty(folder, "kill")),
        *expand([*SHORT, f"reports={folder}", "grid.inter=2"]),
    ]
    records = measure(runs, Progress(10))
    assert [record.label for record in records] == [run.label for run in runs], "an experiment keeps its order"
    assert {path.stem for path in (folder / "records").iterdir()} == {record.key for record in records}
    assert no_rank_left()
    return records


def test_fault_does_not_end_sweep(in_turns: list[Record]) -> None:
    """The other system has all its samples."""
    assert [record.outcome for record in in_turns] == [Outcome.LOST_RANK, Outcome.OK]
    assert [len(record.metrics["batch_time"].values) for record in in_turns] == [1, 2]
    assert exit_code(in_turns) == 1


@pytest.mark.exhaustive
def test_torchrun_outcome_matches_mpiexec(tmp_path: Path, in_turns: list[Record]) -> None:
    """Equal losses, and a record of the transport and the order of ops."""
    usual = in_turns[1]
    (other,) = run([*SHORT, f"reports={tmp_path}", "grid.inter=2", "launch.launcher=torchrun", "comm.order=static"])
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
    return key_of(expanded.settings, circumstances(expanded.outline))


def test_same_command_skips_recorded_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [*SHORT, f"reports={tmp_path}"]
    path = tmp_path / "records" / f"{key(command)}.json"
    path.parent.mkdir()
    path.write_text('{"schema_version": 1, "key": ')
    (first,) = run(command)
    assert first.outcome is Outcome.OK, "a damaged record is measured anew"
    assert Record.read(path) == first
    monkeypatch.setattr("suite.runner.launch.processes.RankGroup.start", lambda *_: pytest.fail("measured again"))
    (again,) = run(command)
    assert again == first
    monkeypatch.undo()
    (other,) = run([*command, "rerun=all"])
    assert other.metrics["batch_time"].values != first.metrics["batch_time"].values


def test_rerun_failed_repeats_failures(tmp_path: Path) -> None:
    command = faulty(tmp_path, "raise")
    (failed,) = run(command)
    (stored,) = run(command)
    assert stored == failed
    (again,) = run([*command, "rerun=failed"])
    assert again.key == failed.key
    times = [(record.provenance["started"], record.provenance["seconds"]) for record in (again, failed)]
    assert times[0] != times[1], "it did not run again"


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


@pytest.mark.parametrize(
    "arguments", drawn([["grid.inter=1,9", "grid.data=1"], ["system=axonn,gpipe", "batch.size=7"]], n=1)
)
def test_sweep_continues_after_failed_job(tmp_path: Path, arguments: list[str]) -> None:
    line = [sys.executable, "-m", "suite", "sweep", *SHORT[:-1], f"reports={tmp_path}", *arguments]
    done = subprocess.run(line, cwd=PLUGINS.parents[1], capture_output=True, text=True, check=False)
    assert len(list((tmp_path / "records").glob("*.json"))) == 2, done.stdout + done.stderr
    assert done.returncode in (1, 2)
