"""Command `suite reproduce`: its entries, its exit status, and the scores of the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from suite.cli import reproduce
from suite.cli.run import run as made
from suite.config.compose import resolve
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record, Source
from tests.support.refusals import refused

Done = list[tuple[str, Any]]


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Done:
    """What the command did, without runs: commands, scores and pages."""
    steps: Done = []
    answer = [record(Outcome.OK)]
    monkeypatch.setattr(reproduce, "run", lambda overrides, progress: steps.append(("run", overrides)) or answer)
    monkeypatch.setattr(reproduce, "score_simulator", lambda folder, progress: steps.append(("accuracy", folder)))
    monkeypatch.setattr("suite.report.write_report", lambda folder, changed: steps.append(("page", folder)) or folder)
    return steps


def record(outcome: Outcome) -> Record:
    return Record(outcome.value, "e", "s", outcome.value, outcome, Source.MEASURED)


def test_exit_code_follows_outcomes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, done: Done, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that did not end well is named, with the command that repeats it."""
    outcomes: Sequence[Outcome] = ()
    monkeypatch.setattr(reproduce, "run", lambda overrides, progress: [record(outcome) for outcome in outcomes])
    for outcomes, code in (
        ([Outcome.OK], 0),
        ([Outcome.OK, Outcome.UNSUPPORTED, Outcome.MISSING_DEPENDENCY], 0),
        ([Outcome.OK, Outcome.FAILED], 1),
        ([Outcome.OK, Outcome.DIVERGED, Outcome.UNSUPPORTED], 1),
        ([Outcome.UNSUPPORTED], 2),
        ([Outcome.FAILED], 2),
    ):
        assert reproduce.main(["scale=smoke", f"reports={tmp_path}"]) == code, outcomes
        said = capsys.readouterr().out
        assert all((f"{one}: {one}, " in said) is (one is not Outcome.OK) for one in outcomes)


def test_command_line_overrides_follow_those_of_an_entry() -> None:
    entry = "samo_fig1 executor.widths=[128,256] tag='two words'"
    expected = ["experiment=samo_fig1", "executor.widths=[128,256]", "tag=two words", "seed=3"]
    assert reproduce.command_line(entry, ["seed=3"]) == expected
    for illegal in ('"overhead_bound tag=\'"', "3", "null", "[overhead_bound]"):
        with refused(InvalidRequest, "scale.reproduce"):
            resolve([f"scale.reproduce=[{illegal}]"])


@pytest.mark.parametrize("scored", [False, True])
def test_entries_are_run_and_scored_before_the_page(scored: bool, tmp_path: Path, done: Done) -> None:
    arguments = ["scale=smoke", f"reports={tmp_path}", "scale.reproduce=['smoke seed=3',formulas]"]
    arguments += ["scale.accuracy=true"] if scored else []
    assert reproduce.main(arguments) == Exit.OK
    runs = [("run", ["experiment=smoke", "seed=3", *arguments]), ("run", ["experiment=formulas", *arguments])]
    assert done == [*runs, *([("accuracy", tmp_path)] if scored else []), ("page", tmp_path)]


def test_entry_for_a_gpu_is_unsupported_without_one(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    (one,) = made(["experiment=gpu_layers", f"reports={tmp_path}"])
    assert one.outcome is Outcome.MISSING_DEPENDENCY
    assert one.outcome in reproduce.CANNOT
    assert "the device cuda:0" in one.reason


def test_dry_run_lists_runs_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["scale.reproduce=[smoke]", f"reports={tmp_path}", "--dry-run"]) == Exit.OK
    entry, *runs, last = capsys.readouterr().out.splitlines()
    assert (entry, len(runs)) == ("smoke", 2)
    assert "2 runs: 2 would run, 0 have a record, 0 refused" in last
    assert not list(tmp_path.iterdir())
