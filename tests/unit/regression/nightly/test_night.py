"""The course of a night, with made-up runs in place of processes; and one whole night with real ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from suite.cli import nightly
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.record import Metric, Outcome, Source
from suite.regression.compare.matching import Name
from suite.regression.compare.metrics import Change
from suite.regression.nightly import confirm, history, judge, page, reference_workload, repeat, run, settings
from suite.regression.nightly.run import NightlyResult
from suite.regression.nightly.settings import NightlySettings
from suite.stats.inference import ChangeVerdict, Effect
from tests.support.nights import Shaky, record, stored

ROOT = Path(__file__).resolve().parents[4]


class House:
    """A repository whose runs take as long as is said, on a machine that is as shaky as is said."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.made = folder, 0
        self.base, self.slower = 0.05, 1.0  # seconds of a batch of old code, and how much longer new code takes
        self.machine = Shaky(0)
        self.changes: dict[str, Any] = {}  # of the records of new code
        self.of: dict[str, dict[str, Any]] = {}  # the same, by command line, of old and new code
        self.slow = ""  # the command line that new code is slower in, where it is not all
        self.status: int | None = 0
        self.after: Callable[[], None] = lambda: None
        self.old_runs = True
        monkeypatch.setattr(repeat, "make", self.make)
        monkeypatch.setattr(reference_workload, "measured", lambda tree: {"products/1": 0.01 * self.machine.speed})
        monkeypatch.setattr(confirm, "checked_out", self.checked_out)
        monkeypatch.setattr("suite.report.write_report", lambda place: None)

    @contextmanager
    def checked_out(self, tree: Path, commit: str) -> Iterator[Path]:
        if not self.old_runs:
            raise confirm.CannotRun("git has none")
        yield self.folder / "old"

    def make(self, tree: Path, command: str, folder: Path, deadline: float) -> repeat.Made:
        self.made += 1
        folder.mkdir(parents=True, exist_ok=True)
        self.after()
        old = tree.name == "old"
        slower = 1.0 if old or self.slow not in ("", command) else self.slower
        times = self.machine.run(self.base * slower, 8)
        (folder / "said.txt").write_text(command)
        stored(folder, record(times, **self.of.get(command, {}), **({} if old else self.changes)))
        return repeat.Made(command, self.status, 1.0, "what it said", 1)

    def settings(self, **changes: Any) -> NightlySettings:
        told = {"repeated": "[system=axonn]", "once": "[]", "reports": self.folder / "nights", **changes}
        return settings.read([f"{key}={value}" for key, value in told.items()])

    def night(self, **changes: Any) -> NightlyResult:
        return run.run(self.settings(**changes), self.folder / "new", lambda text: None)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    return House(tmp_path, monkeypatch)


def test_the_first_night_is_compared_with_none(house: House) -> None:
    found = house.night()
    assert (found.line["status"], found.exit) == ("first", Exit.OK)
    assert house.made == 10


def test_nights_of_unchanged_code_are_good(house: House) -> None:
    house.night()
    assert {house.night().line["status"] for _ in range(4)} <= {"good", "undecided"}
    names = [one["night"] for one in history.read(house.folder / "nights")[0]]
    assert [name.split("-", 3)[3:] for name in names] == [[], *[[str(n)] for n in range(2, 6)]]


def test_a_tenth_slower_is_named_with_its_size_and_commits(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    house.night()
    house.slower = 1.1
    found = house.night()
    [told] = found.line["regressions"]
    assert (found.line["status"], found.exit) == ("regression", Exit.REGRESSION)
    assert told.startswith("single · axonn 2x1 · batch_time is slower: old and new code in 12 turns: +")
    assert f"in {'a' * 12}.." in told
    nightly.told(found)
    assert f"REGRESSION {told}" in capsys.readouterr().out
    assert told in (house.folder / "nights" / "index.html").read_text()
    assert house.night().line["base"] == history.read(house.folder / "nights")[0][0]["night"]  # not that one


def test_a_slower_machine_is_suspected_and_ruled_out(house: House) -> None:
    house.night()
    house.base *= 1.3  # of old and new code alike: the machine's
    found = house.night()
    assert found.line["status"] == "good"
    assert any("ruled out, old and new code in" in text for text in found.line["notes"])


def test_a_machine_that_is_too_busy_to_tell_is_no_measure_for_later_nights(house: House) -> None:
    first = house.night().name
    house.machine, house.slower = Shaky(3, steps=0.7), 1.1
    found = house.night()
    assert (found.line["status"], found.exit) == ("undecided", Exit.NOT_COMPARABLE)
    assert "undecided, old and new code in 24 turns" in found.line["notes"][0]
    house.machine = Shaky(1)
    found = house.night()
    assert (found.line["status"], found.line["base"]) == ("regression", first)


@pytest.mark.parametrize(
    ("better", "low", "high", "expected"),
    [
        ("lower", 0.98, 1.03, False),
        ("lower", 0.5, 1.2, False),  # quicker it may be
        ("lower", 0.7, 1.4, True),
        ("higher", 0.7, 1.4, True),
        ("higher", 0.9, 1.6, False),
    ],
)
def test_what_a_night_could_not_have_seen_is_left_to_turns(
    better: str, low: float, high: float, expected: bool, house: House
) -> None:
    effect = Effect(ratio=1.0, low=low, high=high, delta=0.0, p=1.0, least=0.001, repeats=(10, 10))
    change = Change(Name("single", "axonn 2x1"), "m", "s", better, 1.0, 1.0, ChangeVerdict.UNDECIDED, effect=effect)
    assert judge.blind(change, house.settings()) is expected
    assert not judge.suspicious(change, house.settings())


def test_without_old_code_two_nights_alone_decide_with_room(house: House) -> None:
    house.old_runs = False
    house.machine = Shaky(0, steps=0.002)
    house.night()
    house.slower = 1.25
    found = house.night()
    assert found.line["regressions"] == []
    assert any("two nights alone decide, at 35 %: git has none" in text for text in found.line["notes"])
    house.slower = 1.7
    assert "two nights alone decide" in house.night().line["regressions"][0]


def test_what_no_clock_decides_needs_no_turns(house: House) -> None:
    house.night()
    house.changes = {"metrics": {"peak_memory": Metric("B", "lower", (8192.0,))}}
    found = house.night()
    assert found.exit is Exit.REGRESSION
    assert house.made == 20
    assert "peak_memory is worse: +100.0 %" in found.line["regressions"][0]


def test_another_config_begins_a_new_line_of_nights(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    house.night()
    house.changes = {"config": {"seed": 3}}
    found = house.night()
    assert (found.line["status"], found.exit) == ("new baseline", Exit.NOT_COMPARABLE)
    nightly.told(found)
    assert "not comparable: single · axonn 2x1: seed 0 -> 3" in capsys.readouterr().out
    assert house.night().line["status"] == "good"


def test_failures_are_no_good_night(house: House) -> None:
    house.night()
    house.changes = {"outcome": Outcome.FAILED, "reason": "it broke"}
    found = house.night()
    assert found.exit is Exit.REGRESSION
    assert "ok -> failed: it broke" in found.line["regressions"][0]
    house.changes, house.status = {}, -9
    assert (found := house.night()).exit is Exit.SOME_FAILED
    assert "ended with -9: what it said" in found.line["notes"][0]


OOM = {"outcome": Outcome.OOM, "reason": "too large", "source": Source.SIMULATED, "label": "large", "metrics": {}}


def test_a_run_that_never_goes_well_is_no_failure_of_every_night(house: House) -> None:
    """A simulated run that is too large has told what it was asked; what fails as it did before got no worse."""
    house.of["system=large"] = OOM
    assert [house.night(once="[system=large]").line["status"] for _ in range(2)] == ["first", "good"]
    house.of["system=large"] = {**OOM, "outcome": Outcome.UNSUPPORTED}
    assert house.night(once="[system=large]").line["status"] == "good"


@pytest.mark.parametrize("kind", [Outcome.FAILED, Outcome.LOST_RANK, Outcome.TIMEOUT, Outcome.DIVERGED])
def test_a_run_that_fails_from_the_first_night_on_has_to_be_accepted(house: House, kind: Outcome) -> None:
    house.of["system=large"] = {**OOM, "outcome": kind}
    found = house.night(once="[system=large]", repeats=2)
    assert (found.line["status"], found.exit) == ("failed", Exit.SOME_FAILED)
    assert found.line["notes"][0] == f"single · large: {kind}: too large (accept={found.name} says that it is meant)"
    run.accept(house.settings(), found.name)
    assert house.night(once="[system=large]", repeats=2).line["status"] in ("good", "undecided")


def test_a_measured_run_that_is_out_of_memory_is_a_failure(house: House) -> None:
    house.of["system=large"] = {**OOM, "source": Source.MEASURED}
    assert house.night(once="[system=large]", repeats=2).line["status"] == "failed"


def test_a_night_that_lost_a_run_says_so_and_begins_a_new_line(house: House) -> None:
    house.of["system=other"] = {"label": "other"}
    first = house.night(once="[system=other]").name
    house.of["system=other"] = {"label": "other", "config": {"seed": 3}}
    found = house.night(once="[system=other]")
    assert (found.line["status"], found.exit) == ("new baseline", Exit.NOT_COMPARABLE)
    assert "not comparable: single · other: seed 0 -> 3" in found.line["notes"]
    second, found = found.name, house.night()
    assert (found.line["status"], found.exit) == ("new baseline", Exit.NOT_COMPARABLE)
    assert f"only in {second}: single · other" in found.line["notes"]
    assert first != second


def test_a_night_that_lost_a_metric_says_so(house: House) -> None:
    house.night(repeats=2)
    house.changes = {"series": {}}
    found = house.night(repeats=2)
    assert (found.line["status"], found.exit) == ("new baseline", Exit.NOT_COMPARABLE)
    assert "single · axonn 2x1 · loss is only in A" in found.line["notes"]


def test_metrics_that_no_run_has_are_refused_before_the_night_is_spent(house: House) -> None:
    with pytest.raises(InvalidRequest, match=r"no run has nope; rule: of batch_time, peak_memory; legal: metrics=\[b"):
        house.night(metrics="[batch_time, nope]")
    with pytest.raises(InvalidRequest, match="no run has replay_time"):
        house.night(metrics="[replay_time]")
    assert house.made == 1
    found = house.night()
    assert found.line["notes"][-1] == "no run has a metric replay_time, so none is judged by it"
    assert house.made == 10  # the night is gone on with


def test_two_command_lines_of_one_label_are_suspected_apart(house: House) -> None:
    """A label leaves out what is measured how; turns have to run the command that got slower."""
    house.of["system=axonn seed=1"] = {"config": {"seed": 1}}
    asked = {"repeated": "[system=axonn, system=axonn seed=1]"}
    house.night(**asked)
    for house.slow in ("system=axonn", "system=axonn seed=1"):
        house.slower = 1.3
        found = house.night(**asked)
        assert [f.suspect.command for f in found.judged.findings if f.confirmed] == [house.slow]
    house.slow = ""
    assert len([f for f in house.night(**asked).judged.findings if f.confirmed]) == 2


def test_a_first_repeat_without_metrics_hides_none_from_history(house: House) -> None:
    def breaks() -> None:
        house.changes = {"metrics": {}, "outcome": Outcome.FAILED} if house.made == 1 else {}

    house.after = breaks
    assert "batch_time" in house.night(repeats=3).line["runs"][0]["metrics"]


def test_accepting_a_night_that_is_not_there_makes_no_folder(house: House) -> None:
    with pytest.raises(InvalidRequest, match="accept=x: no such night"):
        run.accept(house.settings(), "x")
    assert not (house.folder / "nights").exists()


@pytest.mark.parametrize(("killed", "left"), [("early late", "late"), ("early later latest last", "latest last")])
def test_nights_that_were_killed_go_with_those_of_their_time(house: House, killed: str, left: str) -> None:
    folder = house.folder / "nights"
    for number, name in enumerate(killed.split()):
        (folder / name).mkdir(parents=True)
        (folder / name / history.STATE).write_text("{}")
        os.utime(folder / name / history.STATE, (10**9 * (1 + number),) * 2)  # in 2001, 2033, 2065, ...
    for _ in range(2):
        house.night(keep=2, repeats=2)
    assert [name for name in killed.split() if (folder / name).is_dir()] == left.split()


def test_a_night_that_was_ended_is_gone_on_with(house: House) -> None:
    def stop() -> None:
        if house.made == 4:
            raise SystemExit(143)

    house.after = stop
    with pytest.raises(SystemExit):
        house.night()
    folder = house.folder / "nights"
    assert len(history.incomplete(folder, [])) == 1
    assert "incomplete" in page.write_index(folder).read_text()
    house.after = lambda: None
    found = house.night()
    assert house.made == 4 + 7  # three repeats stood
    assert len(found.line["runs"]) == 1
    assert found.line["runs"][0]["metrics"]["batch_time"]["n"] == 10
    assert history.incomplete(folder, history.read(folder)[0]) == []


def test_another_plan_goes_on_with_nothing(house: House) -> None:
    def stop() -> None:
        raise SystemExit(143)

    house.after = stop
    with pytest.raises(SystemExit):
        house.night()
    house.after = lambda: None
    assert house.night(repeats=3).name.endswith("-2")


def test_only_so_many_nights_keep_their_records(house: House) -> None:
    names = [house.night(keep=2, repeats=2).name for _ in range(4)]
    left = [name for name in names if (house.folder / "nights" / name).is_dir()]
    assert left[-2:] == names[-2:]
    assert len(left) <= 3  # and the last good one
    assert len(history.read(house.folder / "nights")[0]) == 4


def test_a_named_baseline_is_compared_with_too(house: House) -> None:
    """A creeping change that was accepted step by step shows against a fixed run."""
    first = house.night().name
    house.slower = 1.1
    run.accept(house.settings(), name := house.night().name)
    found = house.night(baseline=first)
    assert found.exit is Exit.REGRESSION
    assert found.line["base"] == name
    assert {finding.suspect.against for finding in found.judged.findings if finding.confirmed} == {first}


def test_what_is_accepted_is_compared_with(house: House) -> None:
    house.night()
    house.slower = 1.2
    name = house.night().name
    run.accept(house.settings(), name)
    assert history.read(house.folder / "nights")[0][-1]["accepted"]
    house.base, house.slower = 0.06, 1.0
    assert house.night().line["base"] == name


def test_the_merged_records_hold_the_samples_of_all_repeats(house: House) -> None:
    found = house.night(repeats=3)
    [path] = (house.folder / "nights" / found.name / "records").glob("*.json")
    data = json.loads(path.read_text())
    assert len(data["metrics"]["batch_time"]["values"]) == 24
    assert len(data["metrics"]["peak_memory"]["values"]) == 1
    assert data["provenance"]["repeats"] == 3


# -- real processes -------------------------------------------------------------------------------------------------


def test_old_code_is_checked_out_and_taken_away(tmp_path: Path) -> None:
    if not shutil.which("git"):
        pytest.skip("no git")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@localhost"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    for text in ("old", "new"):
        (tmp_path / "code.py").write_text(text)
        subprocess.run([*git, "add", "code.py"], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", text], check=True)
    first = subprocess.run([*git, "rev-parse", "HEAD~1"], check=True, capture_output=True, text=True).stdout.strip()
    with confirm.checked_out(tmp_path, f"{first[:12]}+") as old:
        assert (old / "code.py").read_text() == "old"
    assert not old.exists()
    with pytest.raises(confirm.CannotRun, match="git has no 000000"), confirm.checked_out(tmp_path, "0" * 12):
        pass


def test_the_reference_workload_is_timed_in_two_processes() -> None:
    found = reference_workload.measured(ROOT)
    assert set(found) == {f"{part}/{reference_workload.VERSION}" for part in ("products", "copies", "steps", "trips")}
    assert all(0 < seconds < 5 for seconds in found.values())
    assert reference_workload.measured(ROOT, python="no-such-python") == {}


def test_a_command_that_is_not_done_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "__init__.py").touch()
    (tmp_path / "suite" / "__main__.py").write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    made = repeat.make(tmp_path, "system=axonn", tmp_path / "out", 4.0)
    assert made.status is None
    child = int(made.said)
    assert made.trouble == f"suite run system=axonn was not done at its deadline and left no record: {child}"
    deadline = time.monotonic() + 10
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("status", "records", "trouble"),
    [
        (0, 1, False),
        (1, 3, False),
        (2, 1, False),
        (0, 0, True),
        (1, 0, True),
        (2, 0, True),
        (3, 1, True),
        (-9, 1, True),
        (None, 1, True),
    ],
)
def test_what_a_command_leaves_decides_whether_it_went_well(status: int | None, records: int, trouble: bool) -> None:
    assert bool(repeat.Made("system=axonn", status, 1.0, "", records).trouble) is trouble


@pytest.mark.exhaustive
def test_a_whole_night_and_the_next(tmp_path: Path) -> None:
    """Simulated runs, so that it is short: every process is real."""
    command = [
        *(sys.executable, "-m", "suite", "nightly", f"reports={tmp_path / 'nights'}", "repeats=1", "once=[]"),
        "repeated=['system=axonn executor=simulated grid.inter=2']",
    ]
    for status in ("first", "good"):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f": {status}" in done.stdout
    nights, _ = history.read(tmp_path / "nights")
    folder = tmp_path / "nights" / nights[-1]["night"]
    assert {"night.html", "index.html", "comparison.json", "records", "repeats"} <= {p.name for p in folder.iterdir()}
    assert "no change" in (folder / "night.html").read_text()
