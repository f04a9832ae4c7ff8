"""Checks of a real run: a record, and the losses of another run on the same data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from suite.core.errors import SuiteError
from suite.core.reasons import headline
from suite.core.record import Outcome, Record
from suite.runner.launch.process_tree import run_program

SHORT = (
    *("measure.warm_up=1", "measure.discard_first=0", "measure.rounds=1", "measure.eval_batches=0"),
    "measure.batches=2",
)
DEADLINE = 180.0  # seconds for one command


def run(overrides: Sequence[str], reports: Path) -> Record:
    """Record of `suite run`. Raises AssertionError if it leaves none."""
    command = [sys.executable, "-m", "suite", "run", *overrides, f"reports={reports}"]
    process = run_program(command, seconds=DEADLINE)
    files = sorted((reports / "records").glob("*.json"))
    assert len(files) == 1, f"{len(files)} records were left: {(process.stdout + process.stderr).strip()[-500:]}"
    return Record.read(files[0])


def check_losses(
    overrides: Sequence[str], reference: Sequence[str], folder: Path, tolerance: float = 1e-5
) -> tuple[Record, float]:
    """Compare the losses of a run with those of a reference on the same data.

    Raises AssertionError if the run failed, and SuiteError if the reference failed.

    Args:
        overrides: Overrides of the run.
        reference: Overrides of the same run in plain PyTorch, or in a replay.
        folder: Folder of both reports.
        tolerance: Largest relative difference.

    Returns:
        The record, and the largest relative difference.
    """
    actual, plain = run([*overrides, *SHORT], folder / "own"), run([*reference, *SHORT], folder / "plain")
    if plain.outcome is not Outcome.OK:
        raise SuiteError(f"the reference did not run: {headline(plain.reason)}")
    assert actual.outcome is Outcome.OK, f"it ended as {actual.outcome.value}: {headline(actual.reason)}"
    losses, expected = actual.series.get("loss", []), plain.series["loss"]
    assert len(losses) == len(expected), f"{len(losses)} losses, {len(expected)} batches were trained"
    errors = [abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)]
    worst = max(range(len(errors)), key=errors.__getitem__)
    message = f"batch {worst} has loss {losses[worst]:.9g}, the reference {expected[worst]:.9g}"
    assert errors[worst] <= tolerance, message
    return actual, errors[worst]
