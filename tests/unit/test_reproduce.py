"""Decides when `make reproduce` has failed: what it cannot run here is a row, what went wrong a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite import reproduce
from suite.core.record import Outcome, Record, Source


def record(outcome: Outcome) -> Record:
    return Record(
        key=outcome.value,
        experiment="e",
        system="s",
        label=outcome.value,
        outcome=outcome,
        source=Source.MEASURED,
        config={},
    )


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([Outcome.OK], 0),
        ([Outcome.OK, Outcome.UNSUPPORTED, Outcome.MISSING_DEPENDENCY], 0),
        ([Outcome.OK, Outcome.FAILED], 1),
        ([Outcome.OK, Outcome.DIVERGED, Outcome.UNSUPPORTED], 1),
        ([Outcome.UNSUPPORTED], 2),
        ([Outcome.FAILED], 2),
    ],
    ids=str,
)
def test_the_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcomes: list[Outcome], code: int) -> None:
    monkeypatch.setattr(reproduce, "run", lambda overrides, progress: [record(outcome) for outcome in outcomes])
    monkeypatch.setattr("suite.report.write_report", lambda folder: folder / "index.html")
    assert reproduce.main(["scale=smoke", f"reports={tmp_path}"]) == code
