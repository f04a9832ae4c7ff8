"""Checks of a real run: a record, the losses of plain PyTorch, and no process left after a rank dies."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from suite.core.errors import SuiteError
from suite.core.reasons import headline
from suite.core.record import Outcome, Record
from suite.runner.launch.process_tree import end_program, run_program

ONE_ROUND = ("measure.warm_up=1", "measure.discard_first=0", "measure.rounds=1", "measure.eval_batches=0")
SHORT = (*ONE_ROUND, "measure.batches=2")
LONG = (*ONE_ROUND, "measure.batches=100000")
DEADLINE = 180.0  # seconds for one command
CLEANUP = 10.0  # seconds within which every process of a run has ended


def run(overrides: Sequence[str], reports: Path) -> Record:
    """Record of `suite run`. Raises AssertionError if it leaves none."""
    process = run_program(_command(overrides, reports), seconds=DEADLINE)
    return _read_record(reports, process.stdout + process.stderr)


def _command(overrides: Sequence[str], reports: Path) -> list[str]:
    return [sys.executable, "-m", "suite", "run", *overrides, f"reports={reports}"]


def _read_record(reports: Path, output: str) -> Record:
    files = sorted((reports / "records").glob("*.json"))
    assert len(files) == 1, f"{len(files)} records were left: {output.strip()[-500:]}"
    return Record.read(files[0])


def check_losses(overrides: Sequence[str], plain: Sequence[str], folder: Path) -> tuple[Record, float]:
    """Compare the losses of a run with plain PyTorch on the same data, within 1e-5 relative.

    Raises AssertionError if the run failed, and SuiteError if plain PyTorch failed.

    Args:
        overrides: Overrides of the run.
        plain: Overrides of the same run with plain PyTorch.
        folder: Folder of both reports.

    Returns:
        The record, and the largest relative difference.
    """
    actual, reference = run([*overrides, *SHORT], folder / "own"), run([*plain, *SHORT], folder / "plain")
    if reference.outcome is not Outcome.OK:
        raise SuiteError(f"the reference did not run: {headline(reference.reason)}")
    assert actual.outcome is Outcome.OK, f"it ended as {actual.outcome.value}: {headline(actual.reason)}"
    losses, expected = actual.series.get("loss", []), reference.series["loss"]
    assert len(losses) == len(expected), f"{len(losses)} losses, {len(expected)} batches were trained"
    errors = [abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)]
    worst = max(range(len(errors)), key=errors.__getitem__)
    message = f"batch {worst} has loss {losses[worst]:.9g}, plain PyTorch {expected[worst]:.9g}"
    assert errors[worst] <= 1e-5, message
    return actual, errors[worst]


def check_killed(overrides: Sequence[str], folder: Path) -> str:
    """Kill one rank of a run while it trains. Returns the reason in its record.

    Raises AssertionError if the record does not report a lost rank, or a process of the run is left.
    """
    process = subprocess.Popen(
        _command([*overrides, *LONG], folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    processes: dict[int, psutil.Process] = {}
    try:
        parent, deadline = psutil.Process(process.pid), time.monotonic() + DEADLINE
        rank = None
        while rank is None and process.poll() is None and time.monotonic() < deadline:
            processes |= {child.pid: child for child in _children(parent)}
            ranks = [child for child in processes.values() if _is_rank(child)]
            # a rank that trains has used more processor time than loading torch takes
            busy = [child for child in ranks if _cpu_seconds(child) > 3.0]
            rank = busy[-1] if busy and len(busy) == len(ranks) else None
            time.sleep(0.1)
        assert rank is not None, f"no rank trained: {process.stderr.read()[-500:] if process.stderr else ''}"
        processes |= {child.pid: child for child in _children(parent)}
        rank.kill()
        errors = process.communicate(timeout=DEADLINE)[1]
    finally:
        if process.poll() is None:
            end_program(process)
    record = _read_record(folder, errors)
    assert record.outcome is Outcome.LOST_RANK, f"outcome {record.outcome.value}: {headline(record.reason)}"
    _, alive = psutil.wait_procs(list(processes.values()), timeout=CLEANUP)
    assert not alive, f"{len(alive)} processes are left after {CLEANUP:g} s: {[child.pid for child in alive]}"
    return headline(record.reason)


def _children(parent: psutil.Process) -> list[psutil.Process]:
    try:
        return list(parent.children(recursive=True))
    except psutil.Error:
        return []


def _is_rank(process: psutil.Process) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    is_python = bool(command) and Path(command[0]).name.startswith("python")
    return is_python and "suite.runner.ranks.rank" in command and "torch.distributed.run" not in command


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:2]))
    except psutil.Error:
        return 0.0
