"""Sweeps through a real slurmctld and slurmd: arrays, srun's ranks, cancels and time limits.

The executor in tests/plugins/deadly.py ends its job as `executor.how` selects, without ranks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.config.compose import register
from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record
from suite.runner import slurm as jobs_of_slurm
from suite.runner.slurm import submit
from tests.support.short import deadly, short
from tests.support.slurm_cluster import Cluster, cluster
from tests.support.waiting import patience, wait_until

ROOT = Path(__file__).resolve().parents[2]
SHORT = short(rounds=1, batches=2, evaluated=0, warm_up=0)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    register()
    with cluster() as one_node, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(one_node.conf))
        patch.setattr(jobs_of_slurm, "GONE_AFTER", 4.0)  # this controller is never too busy to answer
        yield one_node


def records_by_tag(reports: Path) -> dict[str, Record]:
    records = map(Record.read, (reports / "records").glob("*.json"))
    return {record.config["tag"]: record for record in records}


def outcomes(reports: Path) -> dict[str, Outcome]:
    return {tag: record.outcome for tag, record in records_by_tag(reports).items()}


def deadly_job(reports: Path, how: str, number: int = 0, *overrides: str) -> list[str]:
    return ["launch=slurm", *deadly(reports, how), f"tag={how}{number}", *overrides]


def job_id_of(lines: list[str]) -> str:
    """Slurm's number of the first array that a submission reported."""
    return next(line.split()[2].rstrip(",") for line in lines if line.startswith("slurm: job "))


def test_job_cancelled_before_it_starts_alone_runs_again(slurm: Cluster, tmp_path: Path) -> None:
    ranks = ["launch=slurm", *SHORT, "grid.inter=2", f"reports={tmp_path}", "tag=ranks"]
    jobs = [ranks, *(deadly_job(tmp_path, "well", n) for n in range(4))]
    jobs = [[*job, "launch.array_parallelism=3"] for job in jobs]
    lines: list[str] = []

    def cancel_last_job(line: str) -> None:
        lines.append(line)
        if "an array of 4" in line:  # three run at a time, so the last one waits
            slurm.run("scancel", f"{line.split()[2].rstrip(',')}_3")

    assert submit(jobs, report=cancel_last_job) == [Exit.OK] * 4 + [Exit.NOTHING], lines
    assert outcomes(tmp_path) == {"ranks": "ok", "well0": "ok", "well1": "ok", "well2": "ok", "well3": "cancelled"}
    records = records_by_tag(tmp_path)
    assert "PENDING" in records["well3"].reason
    assert records["ranks"].provenance["carrier"] == "gloo"
    assert len(records["ranks"].metrics["batch_time"].values) == 2
    assert submit(jobs, report=lines.append) == [Exit.OK] * 5
    assert outcomes(tmp_path)["well3"] == "ok"
    assert (tmp_path / "log").read_text() == "well\n" * 4, "a run with a record ran again"


@pytest.mark.exhaustive
def test_jobs_that_end_abnormally_leave_records(slurm: Cluster, tmp_path: Path) -> None:
    """One job is cancelled while it runs, one is killed, two end themselves, and sbatch rejects one."""
    jobs = [deadly_job(tmp_path, how) for how in ("sleeps", "killed", "exits", "raises")]
    jobs.append(deadly_job(tmp_path, "well", 0, "launch.partition=nowhere"))
    lines: list[str] = []
    cancelled = False

    def cancel_first_job(line: str) -> None:
        nonlocal cancelled
        lines.append(line)
        if not cancelled and " running" in line:
            cancelled = True
            wait_until(lambda: (tmp_path / "log").exists() and "sleeps" in (tmp_path / "log").read_text())
            slurm.run("scancel", f"{job_id_of(lines)}_0")

    assert submit(jobs, report=cancel_first_job) == [Exit.NOTHING] * 5
    assert outcomes(tmp_path) == {
        "sleeps0": "cancelled",
        "killed0": "lost_rank",
        "exits0": "failed",
        "raises0": "failed",
        "well0": "unsupported",
    }
    records = records_by_tag(tmp_path)
    assert "SIGTERM" in records["sleeps0"].reason
    assert "SIGKILL" in records["killed0"].reason
    assert "status 77" in records["exits0"].reason
    assert "a deliberate fault" in records["raises0"].reason
    assert "invalid partition" in records["well0"].reason


@pytest.mark.exhaustive
def test_interrupted_sweep_cancels_its_own_jobs_only(slurm: Cluster, tmp_path: Path) -> None:
    foreign_job = slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 60").strip()
    process = subprocess.Popen(
        [sys.executable, "-m", "suite", "run", *deadly_job(tmp_path, "sleeps")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        # a process in the background of a shell inherits that SIGINT is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    wait_until(lambda: process.poll() is not None or (tmp_path / "log").exists())
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=patience(30))[0].decode()
    assert process.returncode == 128 + signal.SIGINT, output
    assert "cancelled" in output
    assert outcomes(tmp_path) == {"sleeps0": "cancelled"}
    assert slurm.run("squeue", "-h", "-o", "%i").split() == [foreign_job]
    slurm.run("scancel", foreign_job)


@pytest.mark.exhaustive
def test_cancel_and_time_limit_leave_other_jobs_alone(slurm: Cluster, tmp_path: Path) -> None:
    """A time limit is at least a minute, and Slurm checks limits twice a minute."""
    jobs = [deadly_job(tmp_path, "well", n) for n in range(20)]
    jobs += [["launch=slurm", *SHORT, f"grid.inter={n}", f"reports={tmp_path}", f"tag=ranks{n}"] for n in (1, 2)]
    endless = ["launch=slurm", "grid.inter=2", "measure.rounds=100000", f"reports={tmp_path}"]
    jobs += [[*endless, "launch.time=1", "tag=limit"], [*endless, "tag=scancel"]]
    lines: list[str] = []
    cancelled = False

    def cancel_one_job(line: str) -> None:
        nonlocal cancelled
        lines.append(line)
        *_, last = [line.split()[2].rstrip(",") for line in lines if line.startswith("slurm: job ")]
        if (
            not cancelled
            and " running" in line
            and last in slurm.run("squeue", "-h", "-t", "running", "-o", "%i").split()
        ):
            cancelled = True
            slurm.run("scancel", last)

    statuses = submit(jobs, report=cancel_one_job)
    assert cancelled
    counts = outcomes(tmp_path)
    assert len(counts) == 24
    assert counts.pop("limit") is Outcome.TIMEOUT
    assert counts.pop("scancel") is Outcome.CANCELLED
    assert set(counts.values()) == {Outcome.OK}
    assert statuses[:22] == [Exit.OK] * 22
