"""Sweeps through a real slurmctld and slurmd: arrays, srun's ranks, cancels, time limits; every run has a record.

The executor of tests/plugins/deadly.py ends its job as it is told, without ranks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.config.compose import register
from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record
from suite.runner.slurm import wait
from suite.runner.slurm.submit import FinishedJob, submitted
from tests.support.slurm_cluster import Cluster, cluster

PLUGINS = Path(__file__).resolve().parents[1] / "plugins"
ROOT = PLUGINS.parents[1]
DEADLY = ["launch=slurm", "executor=deadly", f"launch.python_path=[{PLUGINS}]"]
QUICK = [
    *("measure.rounds=1", "measure.batches=2", "measure.warm_up=0", "measure.discard_first=0"),
    "measure.eval_batches=0",
]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    register()
    with cluster() as one, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(one.conf))
        patch.setattr(wait, "GONE", 4.0)  # this controller is never too busy to know its jobs
        yield one


def records(reports: Path) -> dict[str, Record]:
    return {r.label: r for r in (Record.read(f) for f in (reports / "records").glob("*.json"))}


def deadly(reports: Path, how: str, number: int = 0, *more: str) -> list[str]:
    log = f"executor.log={reports / 'log'}"
    return [*DEADLY, f"executor.how={how}", log, f"reports={reports}", f"tag={how}{number}", *more]


def outcomes(reports: Path) -> dict[str, Outcome]:
    return {r.config["tag"]: r.outcome for r in records(reports).values()}


class Saying:
    """Output of a submission; a chosen word triggers an event."""

    def __init__(self, **acts: object) -> None:
        self.lines: list[str] = []
        self.acts = acts

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    @property
    def number(self) -> str:
        return next(line.split()[2].rstrip(",") for line in self.lines if line.startswith("slurm: job "))


def test_a_sweep_one_job_of_which_is_cancelled_before_it_begins(slurm: Cluster, tmp_path: Path) -> None:
    ranks = ["launch=slurm", *QUICK, "grid.inter=2", f"reports={tmp_path}", "tag=ranks"]
    jobs = [ranks, *(deadly(tmp_path, "well", n) for n in range(4))]
    jobs = [[*job, "launch.array_parallelism=3"] for job in jobs]
    said = Saying()

    def say(line: str) -> None:
        said(line)
        if "an array of 4" in line:  # three run at a time: the last waits
            slurm.run("scancel", f"{line.split()[2].rstrip(',')}_3")

    ended = submitted(jobs, say=say)
    assert [(e.state, e.status) for e in ended[:4]] == [("COMPLETED", Exit.OK)] * 4, said.lines
    assert (ended[4].state, ended[4].status) == ("CANCELLED", Exit.NOTHING)
    found = records(tmp_path)
    assert len(found) == 5
    assert outcomes(tmp_path) == {"ranks": "ok", "well0": "ok", "well1": "ok", "well2": "ok", "well3": "cancelled"}
    last = next(r for r in found.values() if r.config["tag"] == "well3")
    assert "before it had begun" in last.reason
    trained = next(r for r in found.values() if r.config["tag"] == "ranks")
    assert trained.provenance["carrier"] == "gloo"
    assert len(trained.metrics["batch_time"].values) == 2
    again: list[str] = []
    ended = submitted(jobs, say=again.append)
    assert [e.state for e in ended] == ["has records"] * 4 + ["COMPLETED"]
    assert outcomes(tmp_path)["well3"] == "ok"
    assert (tmp_path / "log").read_text() == "well\n" * 4, "a run that had a record was made again"


def wait_for(reached: object, seconds: float = 40) -> None:
    end = time.monotonic() + seconds
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.exhaustive
def test_jobs_that_end_hard(slurm: Cluster, tmp_path: Path) -> None:
    """One is cancelled while it runs, one is killed, two end themselves, and one is not taken."""
    jobs = [deadly(tmp_path, how) for how in ("sleeps", "killed", "exits", "raises")]
    jobs.append(deadly(tmp_path, "well", 0, "launch.partition=nowhere"))
    said = Saying()
    begun = False

    def say(line: str) -> None:
        nonlocal begun
        said(line)
        if not begun and " running" in line:
            begun = True
            wait_for(lambda: (tmp_path / "log").exists() and "sleeps" in (tmp_path / "log").read_text())
            slurm.run("scancel", f"{said.number}_0")

    ended = submitted(jobs, say=say)
    assert [e.state for e in ended] == ["CANCELLED", "FAILED", "FAILED", "FAILED", "refused"]
    assert ended[3].status == Exit.NOTHING, "what the command itself has said"
    found = {r.config["tag"]: r for r in records(tmp_path).values()}
    told = {tag.rstrip("0"): record.outcome for tag, record in found.items()}
    assert told == {
        "sleeps": "cancelled",
        "killed": "lost_rank",
        "exits": "failed",
        "raises": "failed",
        "well": "unsupported",
    }
    assert "Slurm says CANCELLED" in found["sleeps0"].reason
    assert "signal 9" in found["killed0"].reason
    assert "exit status 77" in found["exits0"].reason
    assert "a deliberate fault" in found["raises0"].reason
    assert "invalid partition" in found["well0"].reason


@pytest.mark.exhaustive
def test_an_interrupted_submission_cancels_its_own_jobs(slurm: Cluster, tmp_path: Path) -> None:
    other = slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 60").strip()
    line = [sys.executable, "-m", "suite", "run", *deadly(tmp_path, "sleeps")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def heeds_interrupts() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what runs in a shell's background inherits that it is ignored

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(line, env=env, start_new_session=True, preexec_fn=heeds_interrupts, **pipes)  # noqa: PLW1509
    wait_for(lambda: process.poll() is not None or (tmp_path / "log").exists())
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 128 + signal.SIGINT, output
    assert "cancelled" in output
    assert outcomes(tmp_path) == {"sleeps0": "cancelled"}
    assert slurm.run("squeue", "-h", "-o", "%i").split() == [other], "another's job was touched"
    slurm.run("scancel", other)


@pytest.mark.exhaustive
def test_twenty_four_runs_one_cancelled_and_one_past_its_time_limit(slurm: Cluster, tmp_path: Path) -> None:
    """A time limit is a minute at least, and Slurm looks at limits twice a minute."""
    jobs = [deadly(tmp_path, "well", n) for n in range(20)]
    jobs += [["launch=slurm", *QUICK, f"grid.inter={n}", f"reports={tmp_path}", f"tag=ranks{n}"] for n in (1, 2)]
    long = ["launch=slurm", "grid.inter=2", "measure.rounds=100000", f"reports={tmp_path}", "launch.time=1"]
    jobs += [[*long, "tag=limit"], [*long[:-1], "tag=scancel"]]
    said = Saying()
    cancelled = False

    def say(line: str) -> None:
        nonlocal cancelled
        said(line)
        running = slurm.run("squeue", "-h", "-t", "running", "-o", "%i").split()
        announced = list((tmp_path / "slurm" / "jobs").glob("*.json"))
        for path in announced:
            tags = [entry["label"] for entry in json.loads(path.read_text())["runs"]]
            if not cancelled and path.stem in running and any("scancel" in tag for tag in tags):
                cancelled = True
                slurm.run("scancel", path.stem)

    ended: list[FinishedJob] = submitted(jobs, say=say)
    assert cancelled
    found = outcomes(tmp_path)
    assert len(found) == 24
    assert found.pop("limit") is Outcome.TIMEOUT
    assert found.pop("scancel") is Outcome.CANCELLED
    assert set(found.values()) == {Outcome.OK}
    assert [e.status for e in ended[:22]] == [Exit.OK] * 22
