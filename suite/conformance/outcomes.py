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
from suite.runner.launch.signals import end_program, run_program

SHORT = (
    "measure.warm_up=1",
    "measure.discard_first=0",
    "measure.rounds=1",
    "measure.batches=2",
    "measure.eval_batches=0",
)
LONG = (
    "measure.warm_up=1",
    "measure.discard_first=0",
    "measure.rounds=1",
    "measure.batches=100000",
    "measure.eval_batches=0",
)
DEADLINE = 180.0  # seconds for one command
GONE = 10.0  # seconds within which every process of a run has ended


def run(overrides: Sequence[str], reports: Path) -> Record:
    """The record that `suite run` leaves. Raises AssertionError where it leaves none."""
    done = run_program(_line(overrides, reports), seconds=DEADLINE)
    return _left(reports, done.stdout + done.stderr)


def _line(overrides: Sequence[str], reports: Path) -> list[str]:
    return [sys.executable, "-m", "suite", "run", *overrides, f"reports={reports}"]


def _left(reports: Path, said: str) -> Record:
    files = sorted((reports / "records").glob("*.json"))
    assert len(files) == 1, f"{len(files)} records were left: {said.strip()[-500:]}"
    return Record.read(files[0])


def check_losses(overrides: Sequence[str], plain: Sequence[str], folder: Path) -> tuple[Record, float]:
    """A run's losses against another system's on the same data, within 1e-5; the record, and the largest difference.

    Raises AssertionError for a run that did not go well, SuiteError where the other one did not."""
    actual, right = run([*overrides, *SHORT], folder / "own"), run([*plain, *SHORT], folder / "plain")
    if right.outcome is not Outcome.OK:
        raise SuiteError(f"the reference did not run: {headline(right.reason)}")
    assert actual.outcome is Outcome.OK, f"it ended as {actual.outcome.value}: {headline(actual.reason)}"
    ours, theirs = actual.series.get("loss", []), right.series["loss"]
    assert len(ours) == len(theirs), f"{len(ours)} losses, {len(theirs)} batches were trained"
    off = [abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)]
    worst = max(range(len(off)), key=off.__getitem__)
    assert off[worst] <= 1e-5, f"batch {worst} has loss {ours[worst]:.9g}, plain PyTorch {theirs[worst]:.9g}"
    return actual, max(off)


def check_killed(overrides: Sequence[str], folder: Path) -> str:
    """Kill one rank of a run while it trains: a record reports it, and soon no process is left. Text of the record's
    outcome.
    """
    process = subprocess.Popen(
        _line([*overrides, *LONG], folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    seen: dict[int, psutil.Process] = {}
    try:
        parent, late = psutil.Process(process.pid), time.monotonic() + DEADLINE
        chosen = None
        while chosen is None and process.poll() is None and time.monotonic() < late:
            seen |= {child.pid: child for child in _children(parent)}
            ranks = [child for child in seen.values() if _is_rank(child)]
            # seconds of processor time that only a rank has taken that has loaded torch and trains
            busy = [rank for rank in ranks if _seconds(rank) > 3.0]
            chosen = busy[-1] if busy and len(busy) == len(ranks) else None
            time.sleep(0.1)
        assert chosen is not None, f"no rank trained: {process.stderr.read()[-500:] if process.stderr else ''}"
        seen |= {child.pid: child for child in _children(parent)}
        chosen.kill()
        said = process.communicate(timeout=DEADLINE)[1]
    finally:
        if process.poll() is None:
            end_program(process)
    record = _left(folder, said)
    assert record.outcome is Outcome.LOST_RANK, f"outcome {record.outcome.value}: {headline(record.reason)}"
    _, alive = psutil.wait_procs(list(seen.values()), timeout=GONE)
    assert not alive, f"{len(alive)} processes are left after {GONE:g} s: {[one.pid for one in alive]}"
    return headline(record.reason)


def _children(parent: psutil.Process) -> list[psutil.Process]:
    try:
        return list(parent.children(recursive=True))
    except psutil.Error:
        return []


def _is_rank(process: psutil.Process) -> bool:
    try:
        line = process.cmdline()
    except psutil.Error:
        return False
    python = bool(line) and Path(line[0]).name.startswith("python")
    return python and "suite.runner.ranks.rank" in line and "torch.distributed.run" not in line


def _seconds(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:2]))
    except psutil.Error:
        return 0.0
