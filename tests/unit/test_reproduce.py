"""Exit status of `make reproduce`: unsupported runs are rows, failures are failures."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from suite.cli import reproduce
from suite.cli.run import run as made
from suite.config.compose import resolve
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record, Source
from suite.core.resources import conf_folder
from suite.papers.public.cells import load_cells
from suite.papers.public.league_file import read_league
from suite.runner.progress import Progress
from suite.runner.runs import Run, expand
from tests.support.refusals import refused


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
def test_exit_code_follows_outcomes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcomes: list[Outcome], code: int
) -> None:
    monkeypatch.setattr(reproduce, "run", lambda overrides, progress: [record(outcome) for outcome in outcomes])
    monkeypatch.setattr("suite.report.write_report", lambda folder: folder / "index.html")
    assert reproduce.main(["scale=smoke", f"reports={tmp_path}"]) == code


def test_command_line_overrides_follow_those_of_an_entry() -> None:
    entry = "samo_fig1 executor.widths=[128,256] tag='two words'"
    expected = ["experiment=samo_fig1", "executor.widths=[128,256]", "tag=two words", "seed=3"]
    assert reproduce.command(entry, ["seed=3"]) == expected
    assert reproduce.command("overhead_bound") == ["experiment=overhead_bound"]


@pytest.mark.parametrize("entry", ["", "overhead_bound tag='", 3, None, ["overhead_bound"]])
def test_illegal_scale_entry_is_refused(entry: object) -> None:
    with refused(InvalidRequest, subject="scale.reproduce holds", rule="an experiment and overrides"):
        reproduce.command(entry)


def test_each_entry_is_run_as_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands_run = []
    monkeypatch.setattr(
        reproduce, "run", lambda overrides, progress: commands_run.append(overrides) or [record(Outcome.OK)]
    )
    monkeypatch.setattr("suite.report.write_report", lambda folder: folder / "index.html")
    scale = "scale.reproduce=['smoke seed=3',formulas]"
    assert reproduce.main(["scale=smoke", f"reports={tmp_path}", scale]) == 0
    arguments = ["scale=smoke", f"reports={tmp_path}", scale]
    assert commands_run == [["experiment=smoke", "seed=3", *arguments], ["experiment=formulas", *arguments]]


@pytest.mark.parametrize("scores", [False, True])
def test_simulator_is_scored_before_the_page_where_the_scale_says_so(
    scores: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps: list[tuple[str, Path]] = []
    monkeypatch.setattr(reproduce, "run", lambda overrides, progress: [record(Outcome.OK)])
    monkeypatch.setattr(reproduce, "score_simulator", lambda folder, progress: steps.append(("league", folder)))
    monkeypatch.setattr("suite.report.write_report", lambda folder: steps.append(("page", folder)) or folder)
    more = ["scale.league=true"] if scores else []
    assert reproduce.main(["scale=smoke", f"reports={tmp_path}", *more]) == Exit.OK
    assert steps == [*([("league", tmp_path)] if scores else []), ("page", tmp_path)]


def test_scales_that_score_the_simulator() -> None:
    scales = [path.stem for path in (conf_folder() / "scale").glob("*.yaml")]
    assert {name for name in scales if resolve([f"scale={name}"]).scale.league} == {"laptop", "evening"}


def test_scores_are_for_the_page_of_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tuple(cell for cell in load_cells() if cell.group in ("zb_sync", "titan_h200"))
    monkeypatch.setattr("suite.papers.public.write_league.load_cells", lambda path: few)
    progress = Progress(reproduce.LEAGUE_SECONDS)
    reproduce.score_simulator(tmp_path, progress)
    assert read_league(tmp_path) is not None
    assert "mean error over 2 groups: " in capsys.readouterr().err
    assert progress.remaining == 0.0
    monkeypatch.setattr("suite.papers.public.write_league.load_cells", lambda path: ())
    reproduce.score_simulator(tmp_path, progress)
    assert "refused: cells=" in capsys.readouterr().err


CLUSTER = [
    entry
    for entry in resolve(["scale=cluster"]).scale.reproduce
    if "launch.device=cuda" in entry or entry.startswith("cluster_")
]
GPU = resolve(["scale=h200"]).scale.reproduce
ENTRIES = [GPU, pytest.param(CLUSTER, marks=pytest.mark.exhaustive)]


@cache
def run_of(entry: str) -> Run:
    [only] = expand(reproduce.command(entry, ["launch.memory_check=false"]))  # this machine need not hold it
    return only


def word(run: Run, path: str) -> str:
    """The value at a path of a run's config."""
    setting: Any = run.settings | {"system": run.config.system.name}
    for key in path.split("."):
        setting = setting[key]
    return str(setting)


@pytest.mark.parametrize("entries", ENTRIES, ids=["h200", "cluster"])
def test_entries_for_a_gpu_are_distinct_points_of_plots(entries: list[str]) -> None:
    runs = [run_of(entry) for entry in entries]
    for name in {run.config.experiment.name for run in runs}:
        mine = [run for run in runs if run.config.experiment.name == name]
        for panel in mine[0].config.experiment.more.get("panels", ()):
            places = {(word(run, panel["key"]), word(run, panel.get("curve", "system"))) for run in mine}
            assert len(places) == len(mine), panel["title"]


@pytest.mark.parametrize("entries", ENTRIES, ids=["h200", "cluster"])
def test_no_two_entries_that_want_a_gpu_are_one_run(entries: list[str]) -> None:
    assert len({(run_of(entry).config.experiment.name, run_of(entry).label) for entry in entries}) == len(entries)


@pytest.mark.parametrize("entry", [*GPU, *(pytest.param(entry, marks=pytest.mark.exhaustive) for entry in CLUSTER)])
def test_entries_for_a_gpu_request_a_device(entry: str) -> None:
    run = run_of(entry)
    assert run.refusal is None, run.refusal
    assert run.config.launch.device == "cuda"
    assert run.config.experiment.expected_seconds > 0


def test_jobs_of_a_scheduler_are_submitted_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every entry is a job; what they left makes the page, and their worst end is the command's."""
    submitted: list[list[str]] = []

    def scheduled(commands: list[list[str]], dry: bool = False) -> list[int]:
        submitted.extend(commands)
        return [0, 1]

    monkeypatch.setattr("suite.cli.hydra_sweep.submit", scheduled)
    overrides = ["scale.reproduce=[formulas,smoke]", "++launch.submit=true", f"reports={tmp_path}"]
    assert reproduce.main(overrides) == Exit.SOME_FAILED
    assert submitted == [["experiment=formulas", *overrides], ["experiment=smoke", *overrides]]
    assert (tmp_path / "index.html").exists()


def test_dry_run_lists_runs_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["scale.reproduce=[smoke]", f"reports={tmp_path}", "--dry-run"]) == Exit.OK
    said = capsys.readouterr().out
    assert said.splitlines()[0] == "smoke"
    assert "axonn 1x1" in said
    assert "would run on 1 rank" in said
    assert said.splitlines()[-1] == "dry run of 2 runs: 2 would run, 0 have a record, 0 refused; nothing was run"
    assert not list(tmp_path.iterdir())


def test_entry_for_a_gpu_is_unsupported_without_one(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    entry = next(entry for entry in GPU if entry.startswith("h200_memory"))
    [command_run] = made(reproduce.command(entry, [f"reports={tmp_path}"]))
    assert command_run.outcome is Outcome.MISSING_DEPENDENCY
    assert "CUDA device 0" in command_run.reason
    assert command_run.outcome in reproduce.CANNOT


def test_key_applies_to_entries_that_read_it() -> None:
    first, second = reproduce.expand_entries(["formulas", "smoke"], ["launch.threads=2", "reports=elsewhere"])
    assert first == ["experiment=formulas", "reports=elsewhere"]
    assert second == ["experiment=smoke", "launch.threads=2", "reports=elsewhere"]
