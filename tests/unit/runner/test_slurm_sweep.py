"""A sweep on a fake Slurm: submissions, and records after a job's end."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from suite.core.errors import MissingDependency
from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record
from suite.runner.executors import in_process
from suite.runner.provenance import circumstances
from suite.runner.runs import Run, expand
from suite.runner.slurm import job_state, submit, wait
from suite.runner.slurm.job_state import JobState
from suite.runner.store import Store, key_of
from tests.support import slurm_cluster

SBATCH = """
if grep -q 'partition=nowhere' "$1"; then
  echo 'sbatch: error: invalid partition specified: nowhere' >&2
  exit 1
fi
echo "$1" >> $(dirname $0)/submitted
echo Submitted batch job 7
"""
ENDED = "JobId=7 ArrayJobId=7 ArrayTaskId=0 JobState={} Reason=None ExitCode=0:0"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Slurm's programs, of a cluster on which every job has ended in one state; the file of what was submitted."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def ending(state: str) -> Path:
        texts = {"sbatch": SBATCH, "scontrol": f"echo '{ENDED.format(state)}'", "scancel": "", "sacct": "exit 1"}
        for name, text in texts.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
        return folder / "submitted"

    return ending


def sweep(tmp_path: Path, *more: str) -> list[str]:
    return ["launch=slurm", "executor=check", f"reports={tmp_path / 'reports'}", *more]


def key(run: Run) -> str:
    return key_of(run.settings, circumstances(run.outline))


def kept(tmp_path: Path) -> list[Record]:
    files = sorted((tmp_path / "reports" / "records").glob("*.json"))
    return [Record.read(file) for file in files]


def test_a_dry_run_by_the_config_submits_nothing(tmp_path: Path, programs: Callable[[str], Path]) -> None:
    submitted = programs("COMPLETED")
    said: list[str] = []
    jobs = [sweep(tmp_path, "launch.dry_run=true"), sweep(tmp_path, "tag=real")]
    ended = submit.submitted(jobs[:1], say=said.append)
    assert [(job.state, job.status) for job in ended] == [("dry run", Exit.OK)]
    assert "#SBATCH" in said[0]
    assert not submitted.exists()
    assert not (tmp_path / "reports").exists()
    ended = submit.submitted(jobs, say=said.append)
    assert [job.state for job in ended] == ["dry run", "COMPLETED"]
    assert len(submitted.read_text().splitlines()) == 1


def test_an_array_that_sbatch_does_not_take_leaves_the_others(tmp_path: Path, programs: Callable[[str], Path]) -> None:
    programs("COMPLETED")
    said: list[str] = []
    jobs = [sweep(tmp_path, "tag=no", "launch.partition=nowhere"), sweep(tmp_path, "tag=yes")]
    ended = submit.submitted(jobs, say=said.append)
    assert [(job.job, job.state, job.status) for job in ended] == [
        ("", "refused", Exit.NOTHING),
        ("7_0", "COMPLETED", Exit.NOTHING),
    ]
    found = {record.config["tag"]: record for record in kept(tmp_path)}
    assert (found["no"].outcome, found["yes"].outcome) == (Outcome.UNSUPPORTED, Outcome.FAILED)
    assert "invalid partition specified: nowhere" in found["no"].reason
    assert any("invalid partition" in line for line in said)


TOO_MANY = ["executor=real", "grid.inter=64"]  # stages of a model of fewer layers


def test_a_run_that_is_refused_asks_for_no_room(tmp_path: Path, programs: Callable[[str], Path]) -> None:
    submitted = programs("COMPLETED")
    (small,) = expand(sweep(tmp_path, "executor=real", "grid.inter=2", "launch.tasks_per_node=2"))
    (large,) = expand(sweep(tmp_path, *TOO_MANY, "launch.tasks_per_node=2"))
    assert large.refusal is not None
    assert submit._options([small, large])["nodes"] == 1
    elsewhere = replace(large, refusal=MissingDependency("a package", "a node may have it"))
    assert submit._options([small, elsewhere])["nodes"] == 32
    (ended,) = submit.submitted([sweep(tmp_path, *TOO_MANY)], say=lambda line: None)
    assert (ended.state, ended.status) == ("refused", Exit.NOTHING)
    assert not submitted.exists()
    (record,) = kept(tmp_path)
    assert (record.outcome, record.reason) == (Outcome.UNSUPPORTED, str(large.refusal))


@pytest.mark.parametrize("starter", ["srun", "mpiexec"])  # one is refused with its run, one only as a job
def test_ranks_without_a_place_are_a_record(tmp_path: Path, programs: Callable[[str], Path], starter: str) -> None:
    asked = ["executor=real", "grid.inter=4", "launch.nodes=1", "launch.tasks_per_node=2", f"launch.launcher={starter}"]
    submitted = programs("COMPLETED")
    (ended,) = submit.submitted([sweep(tmp_path, *asked)], say=lambda line: None)
    assert ended.status == Exit.NOTHING
    assert not submitted.exists()
    (record,) = kept(tmp_path)
    assert record.outcome is Outcome.UNSUPPORTED
    assert "4 ranks on launch.nodes=1" in record.reason


@pytest.mark.parametrize("earlier", [Outcome.OK, Outcome.TIMEOUT])
def test_an_earlier_record_is_no_work_of_a_job_that_was_killed(
    tmp_path: Path, programs: Callable[[str], Path], earlier: Outcome
) -> None:
    programs("OUT_OF_MEMORY")
    (run,) = expand(sweep(tmp_path))
    store = Store(tmp_path / "reports")
    old = in_process.lost(run, key(run), earlier, "an earlier one")
    store.write(old)
    said: list[str] = []
    (ended,) = submit.submitted([sweep(tmp_path, "rerun=all")], say=said.append)
    assert (ended.state, ended.status) == ("OUT_OF_MEMORY", Exit.NOTHING)
    now = store.find(old.key)
    assert now is not None
    if earlier is Outcome.OK:
        assert now == old, "a good record was written over"
        assert any("more memory" in line and "earlier run" in line for line in said)
    else:
        assert now.outcome is Outcome.OOM


@pytest.mark.parametrize(
    ("state", "told", "outcome", "more", "status"),
    [
        ("COMPLETED", None, Outcome.OK, [], Exit.OK),
        ("OUT_OF_MEMORY", None, Outcome.OK, [], Exit.SOME_FAILED),  # after its last record
        ("CANCELLED", Exit.OK, Outcome.OK, [], Exit.OK),  # it had said its own
        ("FAILED", None, Outcome.FAILED, [], Exit.NOTHING),
        ("FAILED", None, Outcome.FAILED, ["on_error=stop"], Exit.STOPPED),
    ],
)
def test_the_status_of_a_job(
    tmp_path: Path, state: str, told: int | None, outcome: Outcome, more: list[str], status: Exit
) -> None:
    runs = expand(sweep(tmp_path, *more))
    Store(tmp_path / "reports").write(in_process.lost(runs[0], key(runs[0]), outcome, "its own"))
    job = SimpleNamespace(command=(), runs=runs)
    array = SimpleNamespace(jobs=[job], job="7", name="suite-a-0", before={}, refusal=None, status=lambda task: told)
    (ended,) = submit._closed([array], {("7", 0): JobState(state)}, lambda line: None)
    assert ended.status == status
    assert [record.outcome for record in kept(tmp_path)] == [outcome]


class Clock:
    """A controller whose answers are given by the second."""

    def __init__(self, answers: Callable[[float], str | None], told: float = float("inf")) -> None:
        self.now, self.answers, self.told = 0.0, answers, told
        self.said: list[str] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def status(self, task: int) -> int | None:
        return 0 if self.now >= self.told else None

    def waited(self, monkeypatch: pytest.MonkeyPatch, limit: float = 3600) -> JobState:
        """The last word on the only job of an array."""
        monkeypatch.setattr(wait, "time", self)
        monkeypatch.setattr(job_state, "ask", lambda *command: self.answers(self.now))
        array = SimpleNamespace(job="7", jobs=[None], status=self.status)
        return wait.waited([array], self.said.append, limit=limit)["7", 0]


RUNNING = ENDED.format("RUNNING")


def test_a_controller_that_does_not_answer_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(lambda now: RUNNING if now < 5 else None if now < 600 else ENDED.format("COMPLETED"))
    assert clock.waited(monkeypatch).name == "COMPLETED"
    assert clock.now >= 600
    assert any("Slurm does not answer" in line for line in clock.said)
    assert not any("1 ended" in line for line in clock.said[:-1])


def test_a_job_that_slurm_does_not_know_is_gone_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(lambda now: RUNNING if now < 5 else "")
    assert clock.waited(monkeypatch).name == "RUNNING"
    assert wait.GONE <= clock.now - 5 <= wait.GONE + 20
    clock = Clock(lambda now: "" if now < 30 else ENDED.format("COMPLETED"))
    assert clock.waited(monkeypatch).name == "COMPLETED", "it was only not known yet"
    clock = Clock(lambda now: "" if now < 40 or 60 < now < 100 else RUNNING if now < 120 else ENDED.format("COMPLETED"))
    assert clock.waited(monkeypatch).name == "COMPLETED", "it was known in between"


@pytest.mark.parametrize("answer", ["", None])
def test_a_job_that_has_left_its_status_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, answer: str | None) -> None:
    clock = Clock(lambda now: answer, told=10.0)
    clock.waited(monkeypatch)
    assert 10 <= clock.now < 20


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("echo JobId=7", "JobId=7\n"),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", ""),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1", None),
        ("exec sleep 5", None),
    ],
)
def test_no_answer_is_no_word_of_a_job(monkeypatch: pytest.MonkeyPatch, program: str, answer: str | None) -> None:
    monkeypatch.setattr(job_state, "_ASK", 0.5)
    assert job_state.ask("sh", "-c", program) == answer
    assert job_state.ask("no-such-program") is None


def test_a_cluster_that_wants_root_is_a_skip_that_no_skip_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_cluster, "needs", lambda tool: tool)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with ExitStack() as stack, pytest.raises(pytest.skip.Exception, match=r"^slurm: "):
        stack.enter_context(slurm_cluster.cluster())
