"""History of nightly runs: damaged lines, baselines, incomplete runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from suite.core.errors import InvalidRequest
from suite.regression.nightly import history
from tests.support.refusals import refused


def line(name: str, status: str = "passed", **changes: Any) -> dict[str, Any]:
    run = {"experiment": "single", "label": "axonn 2x1", "config": "c", "outcome": "ok"}
    metric = {"unit": "s", "better": "lower", "n": 10, "median": 0.1, "low": 0.09, "high": 0.11}
    return {
        "night": name,
        "started": "2026-11-22T01:00:00+00:00",
        "ended": "2026-11-22T01:10:00+00:00",
        "status": status,
        "commit": "a" * 12,
        "base": None,
        "reference": {"products/1": 0.01},
        "runs": [{**run, "metrics": {"batch_time": metric}}],
        "regressions": [],
        "notes": [],
        "threshold": 0.05,
        "metrics": ["batch_time"],
        **changes,
    }


DAMAGED = (
    "[]",
    "7",
    "{}",
    '{"schema": 2, "night": "x"}',
    '{"schema": 1, "accepted": "nobody"}',
    "\xff\x00",
    json.dumps({"schema": 1, **line("b")})[:100],
    *(json.dumps({"schema": 1, **line("x", **{key: 3})}) for key in ("status", "runs", "reference", "notes")),
    json.dumps({"schema": 1, **line("x", runs=[{"metrics": {"m": {}}}])}),
    json.dumps({"schema": 1, **line("x", reference={"products/1": -1})}),
)


def test_damaged_line_is_counted_and_skipped(tmp_path: Path) -> None:
    assert history.read(tmp_path / "none") == ([], 0)
    for text in DAMAGED:
        (tmp_path / history.FILE).unlink(missing_ok=True)
        history.append(tmp_path, line("b"))
        with (tmp_path / history.FILE).open("a", encoding="latin-1") as file:
            file.write(f"{text}\n")
        history.append(tmp_path, line("a"))
        lines, damaged = history.read(tmp_path)
        assert ([run["night"] for run in lines], damaged) == (["b", "a"], 1), text


def test_baseline_passed_and_has_records(tmp_path: Path) -> None:
    for name, status in (("1", "first"), ("2", "passed"), ("3", "good"), ("4", "inconclusive"), ("5", "regression")):
        history.append(tmp_path, line(name, status))
        if name != "3":
            (tmp_path / name / "repeats").mkdir(parents=True)

    def last() -> str:
        baseline = history.accepted_baseline(tmp_path, history.read(tmp_path)[0])
        return str(baseline["night"]) if baseline else ""

    assert last() == "2"
    history.append(tmp_path, {"accepted": "5"})
    assert last() == "5"


def test_run_without_a_line_is_incomplete(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / history.STATE).write_text("{}")
    history.append(tmp_path, line("1"))
    assert history.incomplete_runs(tmp_path, history.read(tmp_path)[0]) == ["2"]


def test_lock_is_exclusive(tmp_path: Path) -> None:
    with (
        history.lock(tmp_path),
        refused(InvalidRequest, subject="another nightly run is running"),
        history.lock(tmp_path),
    ):
        pass
    with history.lock(tmp_path):
        pass
