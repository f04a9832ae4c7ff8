"""Sweeps whose jobs fail: other jobs run, every run has a record, and a repeat makes exactly the missing runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record
from tests.support.pairwise import cells

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "tests" / "plugins"
FATES = {  # what a job does, and the outcome of its record
    "well": Outcome.OK,
    "killed": Outcome.LOST_RANK,
    "told_to_end": Outcome.CANCELLED,
    "raises": Outcome.FAILED,
}

HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def line(folder: Path, *more: str) -> list[str]:
    """The command line of `suite run`, or of `suite sweep` where `more` begins with -m."""
    overrides = [f"launch.python_path=[{PLUGINS}]", "executor=deadly", f"executor.log={folder / 'log'}"]
    command = "sweep" if more[:1] == ("-m",) else "run"
    words = more[1:] if command == "sweep" else more
    return [sys.executable, "-m", "suite", command, *overrides, f"reports={folder / 'reports'}", *words]


def run_command(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    # 10 seconds on a quiet machine
    return subprocess.run(line(folder, *more), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def outcomes(folder: Path) -> Counter[tuple[str, Outcome]]:
    """Of all records, by what their job did."""
    files = (folder / "reports" / "records").glob("*.json")
    records = [Record.read(file) for file in files]
    return Counter((record.config["executor"]["how"], record.outcome) for record in records)


def begun(folder: Path) -> Counter[str]:
    """How often each run was begun since the last time this was asked."""
    log = folder / "log"
    lines = Counter(log.read_text().split()) if log.exists() else Counter()
    log.unlink(missing_ok=True)
    return lines


def wait_until_begun(folder: Path, seconds: float = 60.0) -> None:
    """Wait for the first run. Polling `begun` could delete the log between its creation and its first line."""
    log, end = folder / "log", time.monotonic() + seconds
    while not (log.exists() and log.read_text()):
        assert time.monotonic() < end, "no run has begun"
        time.sleep(0.02)


def test_killed_job_ends_alone_and_rerun_repeats_selected_runs(tmp_path: Path) -> None:
    sweep = ["-m", f"executor.how={','.join(FATES)}"]
    process = run_command(tmp_path, *sweep)
    assert process.returncode == Exit.SOME_FAILED, process.stderr
    assert "Traceback" not in process.stderr
    assert outcomes(tmp_path) == Counter(FATES.items())
    assert set(begun(tmp_path)) == set(FATES)
    reasons = [file.read_text() for file in (tmp_path / "reports" / "records").glob("*.json")]
    assert any("was ended by SIGKILL" in text for text in reasons)
    assert run_command(tmp_path, *sweep).returncode == Exit.SOME_FAILED
    assert begun(tmp_path) == Counter(["told_to_end"]), "a run that was cancelled was not made"
    run_command(tmp_path, *sweep, "rerun=failed")
    assert begun(tmp_path) == Counter([how for how, outcome in FATES.items() if outcome is not Outcome.OK])


@pytest.mark.exhaustive
@pytest.mark.parametrize("launcher", ["hydra/launcher=joblib hydra.launcher.n_jobs=2", "hydra/launcher=submitit_local"])
def test_killed_job_ends_no_sweep_under_other_launchers(launcher: str, tmp_path: Path) -> None:
    process = run_command(tmp_path, "-m", *launcher.split(), "executor.how=killed,well,slow")
    assert process.returncode == Exit.SOME_FAILED, process.stderr
    assert outcomes(tmp_path) == Counter(
        {("killed", Outcome.LOST_RANK): 1, ("well", Outcome.OK): 1, ("slow", Outcome.OK): 1}
    )


@pytest.mark.exhaustive
def test_sweep_stops_at_the_first_failure_with_on_error_stop(tmp_path: Path) -> None:
    sweep = ["-m", "executor.how=well,raises,slow"]
    assert run_command(tmp_path, *sweep, "on_error=stop").returncode == Exit.STOPPED
    assert outcomes(tmp_path) == Counter({("well", Outcome.OK): 1, ("raises", Outcome.FAILED): 1})
    begun(tmp_path)
    assert run_command(tmp_path, *sweep).returncode == Exit.SOME_FAILED
    assert begun(tmp_path) == Counter(["slow"])


def test_concurrent_sweeps_execute_each_run_once(tmp_path: Path) -> None:
    sweep = line(tmp_path, "-m", "executor.how=slow,well", "seed=0")
    both = [subprocess.Popen(sweep, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=120)[1].decode() for process in both]
    assert [process.returncode for process in both] == [Exit.OK, Exit.OK], said
    assert begun(tmp_path) == Counter(["slow", "well"])
    assert outcomes(tmp_path) == Counter([("slow", Outcome.OK), ("well", Outcome.OK)])


def test_rerun_repeats_a_run_after_waiting_for_its_lock(tmp_path: Path) -> None:
    """That one has made nothing of it: it was killed."""
    run_command(tmp_path, "executor.how=well", f"executor.log={tmp_path / 'log'}")
    begun(tmp_path)
    (record,) = (tmp_path / "reports" / "records").glob("*.json")
    lock = tmp_path / "reports" / "locks" / f"{record.stem}.lock"
    lock.parent.mkdir(exist_ok=True)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    waiting = subprocess.Popen(
        line(tmp_path, "executor.how=well", "rerun=all"), cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert waiting.stderr is not None
    while b"waiting for" not in waiting.stderr.readline():
        assert waiting.poll() is None
    holder.kill()
    waiting.communicate(timeout=60)
    holder.wait()
    assert waiting.returncode == Exit.OK
    assert begun(tmp_path) == Counter(["well"])


def test_sweep_reads_an_override_file(tmp_path: Path) -> None:
    (tmp_path / "asked.yaml").write_text("['executor.how=well,raises']")
    assert run_command(tmp_path, "-m", f"@{tmp_path / 'asked.yaml'}").returncode == Exit.SOME_FAILED
    assert sum(outcomes(tmp_path).values()) == 2


def test_status_differs_if_no_run_succeeds(tmp_path: Path) -> None:
    assert run_command(tmp_path, "executor.how=raises").returncode == Exit.NOTHING
    assert run_command(tmp_path, "executor.how=raises", "on_error=stop").returncode == Exit.STOPPED
    assert outcomes(tmp_path) == Counter({("raises", Outcome.FAILED): 1})


def test_dry_sweep_counts_runs_and_starts_none(tmp_path: Path) -> None:
    """A record, a run to come, and two that are refused."""
    run_command(tmp_path, "executor.how=well")
    begun(tmp_path)
    dry = run_command(tmp_path, "-m", "--dry-run", "executor.how=well,raises", "grid.inter=1,0")
    assert dry.stdout.splitlines()[-1] == "dry run of 4 runs: 1 would run, 1 has a record, 2 refused; nothing was run"
    assert " ok" not in dry.stderr
    assert dry.returncode == Exit.SOME_FAILED
    assert not begun(tmp_path)
    assert len(outcomes(tmp_path)) == 1
    refused = run_command(tmp_path, "-m", "--dry-run", "executor.how=well,raises", "grid.inter=0")
    assert refused.returncode == Exit.NOTHING


@pytest.mark.parametrize(
    "launcher",
    [
        "hydra/launcher=basic",
        pytest.param("hydra/launcher=joblib hydra.launcher.n_jobs=2", marks=pytest.mark.exhaustive),
        pytest.param("hydra/launcher=submitit_local", marks=pytest.mark.exhaustive),
    ],
)
def test_killed_sweep_leaves_no_job(launcher: str, tmp_path: Path) -> None:
    command = line(tmp_path, "-m", *launcher.split(), "executor.how=sleeps", "seed=0,1")
    sweep = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until_begun(tmp_path)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.wait()
    end = time.monotonic() + 10
    while any(str(tmp_path) in " ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])):
        assert time.monotonic() < end, "a job went on"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "sweep"),
    cells([signal.SIGTERM, signal.SIGINT], ["-m executor.how=sleeps,slow", "executor.how=sleeps"]),
)
def test_signal_to_the_command_ends_its_jobs(tmp_path: Path, number: signal.Signals, sweep: str) -> None:
    """As `kill` sends it: a terminal would send it to every process."""
    process = subprocess.Popen(
        line(tmp_path, *sweep.split()),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    wait_until_begun(tmp_path)
    process.send_signal(number)
    _, output = process.communicate(timeout=15)
    assert process.returncode == 128 + number
    assert output.splitlines()[-1] == f"interrupted by {number.name}; run the same command again to continue"
    assert "Traceback" not in output
    assert outcomes(tmp_path) == Counter({("sleeps", Outcome.CANCELLED): 1})
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(one.info["cmdline"] or [])]


def test_cancelled_run_keeps_an_earlier_good_record(tmp_path: Path) -> None:
    assert run_command(tmp_path, "executor.how=slow").returncode == Exit.OK
    begun(tmp_path)
    process = subprocess.Popen(line(tmp_path, "executor.how=slow", "rerun=all"), cwd=ROOT, stderr=subprocess.DEVNULL)
    wait_until_begun(tmp_path)
    process.terminate()
    assert process.wait(15) == 128 + signal.SIGTERM
    assert outcomes(tmp_path) == Counter({("slow", Outcome.OK): 1})
