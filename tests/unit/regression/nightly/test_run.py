"""Nightly runs, with synthetic command results in place of processes; and one with real processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from markupsafe import escape

from suite.cli import nightly as command
from suite.config import nightly
from suite.config.nightly import NightlySettings
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.record import Metric, Outcome, Source
from suite.regression.decide import ChangeVerdict
from suite.regression.matching import config_key
from suite.regression.nightly import confirm, page, repeat, run
from suite.regression.nightly import night as nights
from suite.regression.nightly.run import NightlyResult
from tests.support.drawn import drawn
from tests.support.nights import NoisyMachine, record, store
from tests.support.refusals import refused
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[4]


class FakeRuns:
    """Command results of old and new code on a noisy machine.

    Attributes:
        commands_run: Number of commands that ran.
        base: Seconds of a batch of old code.
        slower: Factor of new code.
        commit: Hash of new code; empty for another one every night.
        slow_command: The only command that is slower; empty for all.
        changes: Fields of the records of new code.
        changes_by_command: Fields of the records of both codes, by command line.
        status: Exit status of every command.
        before_command: Called before each command.
        old_runs: Whether git has the old code.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.commands_run = folder, 0
        self.base, self.slower, self.commit = 0.05, 1.0, ""
        self.machine = NoisyMachine(0)
        self.changes: dict[str, Any] = {}
        self.changes_by_command: dict[str, dict[str, Any]] = {}
        self.slow_command = ""
        self.status: int | None = 0
        self.before_command: Callable[[], None] = lambda: None
        self.old_runs = True
        monkeypatch.setattr(repeat, "run_command", self.run_command)
        monkeypatch.setattr(confirm, "checkout", self.checkout)
        monkeypatch.setattr("suite.report.write_report", lambda place: None)

    @contextmanager
    def checkout(self, tree: Path, commit: str) -> Iterator[Path]:
        if not self.old_runs:
            raise confirm.CannotRun("git has none")
        yield self.folder / "old"

    def run_command(self, tree: Path, command: str, folder: Path, deadline: float) -> repeat.CommandResult:
        self.commands_run += 1
        folder.mkdir(parents=True, exist_ok=True)
        self.before_command()
        old = tree.name == "old"
        slower = 1.0 if old or self.slow_command not in ("", command) else self.slower
        times = self.machine.run(self.base * slower, 8)
        (folder / "output.txt").write_text(command)
        commit = self.commit or f"{len(nights.read(self.folder / 'nights')[0]):012x}"
        changes = self.changes_by_command.get(command, {}) | ({} if old else self.changes)
        store(folder, record(times, provenance={"commit": {"hash": commit, "dirty": False}}, **changes))
        return repeat.CommandResult(command, self.status, 1.0, "last line", 1)

    def settings(self, **changes: Any) -> NightlySettings:
        overrides = {"repeated": "[system=axonn]", "once": "[]", "reports": self.folder / "nights", **changes}
        return nightly.read([f"{key}={value}" for key, value in overrides.items()])

    def run(self, **changes: Any) -> NightlyResult:
        return run.run(self.settings(**changes), self.folder / "new", lambda text: None)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    return FakeRuns(tmp_path, monkeypatch)


def test_unchanged_code_passes(fake: FakeRuns) -> None:
    night = fake.run()
    assert (night.night.status, night.exit, fake.commands_run) == ("first", Exit.OK, 10)
    assert {fake.run().night.status for _ in range(3)} <= {"passed", "inconclusive"}
    names = [one.name for one in nights.read(fake.folder / "nights")[0]]
    assert [name.split("-", 3)[3:] for name in names] == [[], *[[str(n)] for n in range(2, 5)]]


def test_regression_is_named_with_size_and_commits(fake: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    fake.run()
    fake.slower = 1.1
    night = fake.run()
    [sentence] = night.night.regressions
    assert (night.night.status, night.exit) == ("regression", Exit.REGRESSION)
    assert sentence.startswith("single · axonn 2x1 · batch_time is slower")
    assert "12 rounds" in sentence
    assert f"in {1:012x}..{2:012x}" in sentence
    command.print_result(night)
    assert sentence in capsys.readouterr().out
    assert escape(sentence) in (fake.folder / "nights" / "index.html").read_text()
    assert fake.run().night.base == nights.read(fake.folder / "nights")[0][0].name  # not the regression


MEMORY = {"peak_memory": Metric("B", "lower", (8192.0,))}
SECOND_NIGHTS: list[tuple[dict[str, Any], str, Exit]] = [  # attributes, status, exit
    ({"base": 0.065}, "passed", Exit.OK),  # both codes: the machine is slower
    ({"changes": {"metrics": MEMORY}}, "regression", Exit.REGRESSION),
    ({"changes": {"config": {"seed": 3}}}, "baseline reset", Exit.NOT_COMPARABLE),
    ({"changes": {"series": {}}}, "baseline reset", Exit.NOT_COMPARABLE),
    ({"changes": {"outcome": Outcome.FAILED, "reason": "it broke"}}, "regression", Exit.REGRESSION),
    ({"status": -9}, "failed", Exit.SOME_FAILED),
]


@pytest.mark.parametrize(("attributes", "status", "exit_status"), SECOND_NIGHTS)
def test_second_night_has_its_status(
    fake: FakeRuns, attributes: dict[str, Any], status: str, exit_status: Exit
) -> None:
    fake.machine = NoisyMachine(0, drift=0.002)
    fake.run()
    for name, value in attributes.items():
        setattr(fake, name, value)
    night = fake.run()
    assert (night.night.status, night.exit) == (status, exit_status)
    assert "it broke" not in str(attributes) or "ok -> failed: it broke" in night.night.regressions[0]


def test_inconclusive_run_is_no_baseline(fake: FakeRuns) -> None:
    first = fake.run().night.name
    fake.machine, fake.slower = NoisyMachine(3, drift=0.7), 1.1
    night = fake.run()
    assert (night.night.status, night.exit) == ("inconclusive", Exit.NOT_COMPARABLE)
    assert "12 rounds" in night.night.notes[0]
    fake.machine = NoisyMachine(1)
    night = fake.run()
    assert (night.night.status, night.night.base) == ("regression", first)


def test_equal_code_needs_no_rounds(fake: FakeRuns) -> None:
    fake.commit = "a" * 40
    fake.run()
    fake.base = 0.1
    assert (fake.run().night.status, fake.commands_run) == ("passed", 20)


def test_unpaired_threshold_decides_without_old_code(fake: FakeRuns) -> None:
    fake.old_runs = False
    fake.machine = NoisyMachine(0, drift=0.002)
    fake.run()
    fake.slower = 1.25
    assert fake.run().night.regressions == []
    fake.slower = 1.7
    assert "35 %" in fake.run().night.regressions[0]


OOM = {"outcome": Outcome.OOM, "reason": "too large", "source": Source.SIMULATED, "label": "large", "metrics": {}}


def test_unchanged_failure_is_no_regression(fake: FakeRuns) -> None:
    """A simulation that runs out of memory has a valid result, and an unchanged failure is no regression."""
    for outcome, statuses in ((Outcome.OOM, ["first", "passed"]), (Outcome.UNSUPPORTED, ["passed"])):
        fake.changes_by_command["system=large"] = {**OOM, "outcome": outcome}
        assert [fake.run(once="[system=large]").night.status for _ in statuses] == statuses


@pytest.mark.parametrize(
    "changes",
    drawn(
        [
            {"source": Source.MEASURED},
            *({"outcome": Outcome(kind)} for kind in ("failed", "lost_rank", "timeout", "diverged")),
        ],
        n=2,
    ),
)
def test_failure_without_baseline_must_be_accepted(fake: FakeRuns, changes: dict[str, Any]) -> None:
    fake.changes_by_command["system=large"] = OOM | changes
    night = fake.run(once="[system=large]", repeats=2)
    assert (night.night.status, night.exit) == ("failed", Exit.SOME_FAILED)
    assert f"accept={night.night.name}" in night.night.notes[0]
    run.accept(fake.settings(), night.night.name)
    assert fake.run(once="[system=large]", repeats=2).night.status in ("passed", "inconclusive")


def test_lost_run_resets_the_baseline(fake: FakeRuns) -> None:
    fake.changes_by_command["system=other"] = {"label": "other"}
    first = fake.run(once="[system=other]").night.name
    fake.changes_by_command["system=other"] = {"label": "other", "config": {"seed": 3}}
    night = fake.run(once="[system=other]")
    assert (night.night.status, night.exit) == ("baseline reset", Exit.NOT_COMPARABLE)
    second, night = night.night.name, fake.run()
    assert (night.night.status, night.exit) == ("baseline reset", Exit.NOT_COMPARABLE)
    assert f"only in {second}: single · other" in night.night.notes
    assert first != second


def test_missing_metric_is_refused_after_the_first_repeat(fake: FakeRuns) -> None:
    with refused(InvalidRequest, subject="nope", rule="batch_time, peak_memory", legal="metrics=[batch_time]"):
        fake.run(metrics="[batch_time, nope]")
    with refused(InvalidRequest, subject="replay_time"):
        fake.run(metrics="[replay_time]")
    assert fake.commands_run == 1
    assert "replay_time" in fake.run().night.notes[-1]
    assert fake.commands_run == 10  # the interrupted run is resumed


def test_commands_of_one_label_are_separate_candidates(fake: FakeRuns) -> None:
    """Rounds run the command that became slower, although both have the same label."""
    fake.changes_by_command["system=axonn seed=1"] = {"config": {"seed": 1}}
    settings = {"repeated": "[system=axonn, system=axonn seed=1]"}
    fake.run(**settings)
    keys = [config_key(record(config={"seed": seed})) for seed in range(2)]
    for fake.slow_command, worse in (("system=axonn", keys[:1]), ("system=axonn seed=1", keys[1:]), ("", keys)):
        fake.slower = 1.3
        [comparison] = fake.run(**settings).comparisons
        assert {change.config for change in comparison.select(ChangeVerdict.WORSE)} == {*worse}


def test_failed_first_repeat_hides_no_metric(fake: FakeRuns) -> None:
    def breaks() -> None:
        fake.changes = {"metrics": {}, "outcome": Outcome.FAILED} if fake.commands_run == 1 else {}

    fake.before_command = breaks
    fake.run(repeats=3)
    assert "batch_time" in (fake.folder / "nights" / "index.html").read_text()


def test_accepting_an_unknown_run_makes_no_folder(fake: FakeRuns) -> None:
    with refused(InvalidRequest, "accept", "x"):
        run.accept(fake.settings(), "x")
    assert not (fake.folder / "nights").exists()


def test_interrupted_run_is_resumed(fake: FakeRuns) -> None:
    def stop() -> None:
        if fake.commands_run == 4:
            raise SystemExit(143)

    fake.before_command = stop
    with pytest.raises(SystemExit):
        fake.run()
    folder = fake.folder / "nights"
    assert [each.status for each in nights.read(folder)[0]] == ["incomplete"]
    assert "incomplete" in page.write_index(folder).read_text()
    fake.before_command = lambda: None
    fake.run()
    assert fake.commands_run == 4 + 7  # three repeats were complete
    assert [each.status for each in nights.read(folder)[0]] == ["first"]

    fake.before_command = stop
    fake.commands_run = 3
    with pytest.raises(SystemExit):
        fake.run()
    fake.before_command = lambda: None
    assert fake.run(repeats=3).night.name.endswith("-3")  # another plan resumes nothing


def test_repeats_of_newest_runs_are_kept(fake: FakeRuns) -> None:
    """Merged records and pages of all runs stay, and of incomplete ones nothing."""
    folder = fake.folder / "nights"
    first = fake.run(keep=2, repeats=2).night.name
    nights.write(folder, nights.Night("stopped", "", "", nights.now()))
    names = [first, *(fake.run(keep=2, repeats=2).night.name for _ in range(4))]
    remaining = [name for name in names if (folder / name / "repeats").is_dir()]
    assert remaining[-2:] == names[-2:]
    assert len(remaining) <= 3  # and the accepted baseline
    assert [each.name for each in nights.read(folder)[0]] == names
    assert all((folder / name / "records").is_dir() for name in names)


def test_named_baseline_is_compared_in_addition(fake: FakeRuns) -> None:
    """A change that was accepted step by step shows against a fixed baseline."""
    first = fake.run().night.name
    fake.slower = 1.1
    run.accept(fake.settings(), name := fake.run().night.name)
    assert nights.read(fake.folder / "nights")[0][-1].accepted
    night = fake.run(baseline=first)
    assert night.exit is Exit.REGRESSION
    assert night.night.base == name
    assert first in {each.a for each in night.comparisons if each.is_regression}


def test_baseline_of_the_same_name_in_another_folder_is_compared(fake: FakeRuns) -> None:
    first = fake.run(repeats=3).night.name
    elsewhere = shutil.copytree(fake.folder / "nights" / first, fake.folder / "elsewhere" / first)
    assert [each.a for each in fake.run(repeats=3, baseline=elsewhere).comparisons] == [first, str(elsewhere)]
    again = nights.accepted_baseline(fake.folder / "nights", nights.read(fake.folder / "nights")[0])
    assert again is not None
    same = fake.folder / "nights" / "." / again.name
    assert len(fake.run(repeats=3, baseline=same).comparisons) == 1


def test_merged_records_hold_samples_of_all_repeats(fake: FakeRuns) -> None:
    night = fake.run(repeats=3)
    [path] = (fake.folder / "nights" / night.night.name / "records").glob("*.json")
    data = json.loads(path.read_text())
    assert len(data["metrics"]["batch_time"]["values"]) == 24
    assert len(data["metrics"]["peak_memory"]["values"]) == 1
    assert data["provenance"]["repeats"] == 3


# Real processes


def test_old_code_is_checked_out_and_removed(tmp_path: Path) -> None:
    if not shutil.which("git"):
        pytest.skip("no git")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@localhost"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    for text in ("old", "new"):
        (tmp_path / "code.py").write_text(text)
        subprocess.run([*git, "add", "code.py"], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", text], check=True)
    first = subprocess.run([*git, "rev-parse", "HEAD~1"], check=True, capture_output=True, text=True).stdout.strip()
    with confirm.checkout(tmp_path, first[:12]) as old:
        assert (old / "code.py").read_text() == "old"
    assert not old.exists()
    for commit, why in (("0" * 12, "git has no 000000"), (f"{first[:12]}+", "the tree differed"), ("", "no commit")):
        with pytest.raises(confirm.CannotRun, match=why), confirm.checkout(tmp_path, commit):
            pass


def test_command_at_deadline_ends_with_its_children(tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "__init__.py").touch()
    (tmp_path / "suite" / "__main__.py").write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    night = repeat.run_command(tmp_path, "system=axonn", tmp_path / "out", 4.0)
    assert night.status is None
    child = int(night.output)
    assert "deadline" in night.problem
    wait_until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


def test_command_without_records_has_a_problem() -> None:
    for status, records, has_problem in (
        *((0, 1, False), (1, 3, False), (2, 1, False)),
        *((0, 0, True), (1, 0, True), (2, 0, True), (3, 1, True), (-9, 1, True), (None, 1, True)),
    ):
        assert bool(repeat.CommandResult("system=axonn", status, 1.0, "", records).problem) is has_problem


@pytest.mark.exhaustive
def test_two_nightly_runs_with_real_processes(tmp_path: Path) -> None:
    """The commands are simulations, which are short; every process is real."""
    command = [
        *(sys.executable, "-m", "suite", "nightly", f"reports={tmp_path / 'nights'}", "repeats=1", "once=[]"),
        "repeated=['system=axonn executor=simulated grid.inter=2']",
    ]
    for status in ("first", "passed"):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f": {status}" in done.stdout
    folder = tmp_path / "nights" / nights.read(tmp_path / "nights")[0][-1].name
    assert {"night.html", "index.html", "comparison.json", "records", "repeats"} <= {p.name for p in folder.iterdir()}
    assert "no change" in (folder / "night.html").read_text()
