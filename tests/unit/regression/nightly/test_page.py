"""The pages of nights: quick and small for a season of them, offline, and hostile text stays text."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suite.regression.nightly import history, page, trends

METRIC = {"unit": "s", "better": "lower", "n": 10}


def write_history(folder: Path, nights: int, runs: int) -> None:
    """Write a history in which the machine is slower for a week and the last run is a regression."""
    random = np.random.default_rng(0)
    lines = []
    for number in range(nights):
        slow = 1.3 if 20 <= number < 27 else 1.0
        run_lines: list[dict[str, Any]] = []
        for run in range(runs):
            value = (
                0.01 * (run + 1) * slow * float(np.exp(random.normal(0, 0.01))) * (1.1 if number == nights - 1 else 1)
            )
            numbers = {"median": value, "low": value * 0.99, "high": value * 1.02}
            metrics = {name: {**METRIC, **numbers} for name in ("batch_time", "update_time", "pipeline_time")}
            names = {"experiment": "overhead_bound", "label": f"system{run} 2x1", "config": "c", "outcome": "ok"}
            run_lines.append({**names, "metrics": metrics})
        line: dict[str, Any] = {
            "schema": history.SCHEMA,
            "night": f"2026-{1 + number // 28:02d}-{1 + number % 28:02d}",
            "started": "2026-01-01T01:00:00+00:00",
            "ended": "2026-01-01T01:12:00+00:00",
            "status": "regression" if number == nights - 1 else "passed",
            "commit": f"{number:012x}",
            "base": None,
            "reference": {"products/1": 0.01 * slow, "copies/1": 0.02 * slow},
            "runs": run_lines,
            "regressions": ["overhead · system0 2x1 · batch_time is slower"] if number == nights - 1 else [],
            "notes": [],
            "threshold": 0.05,
            "metrics": ["batch_time"],
        }
        lines.append(json.dumps(line))
    (folder / history.FILE).write_text("\n".join(lines) + "\n")


def test_index_draws_a_bounded_number_of_trends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trends, "MAX_PLOTS", 3)
    write_history(tmp_path, 12, 8)
    text = page.write_index(tmp_path).read_text()
    assert text.count("<svg") == 3
    assert "5 more trends" in text
    assert text.count("<tr>") == 12 + 2  # and two header rows


def test_index_shows_slow_machine_and_regression(tmp_path: Path) -> None:
    write_history(tmp_path, 30, 1)
    text = page.write_index(tmp_path).read_text()
    assert "+30.0 %" in text  # the week of the slow machine
    assert re.search(r'<td class="bad">regression</td>', text)


def test_pages_load_nothing_and_escape_text(tmp_path: Path) -> None:
    write_history(tmp_path, 2, 1)
    hostile = "<script>alert(1)</script>"
    lines = [json.loads(line) for line in (tmp_path / history.FILE).read_text().splitlines()]
    for line in lines:
        line.update(commit=hostile, regressions=[hostile], notes=[hostile])
        line["runs"][0]["label"] = hostile
    lines[0]["night"] = "../outside"
    folder = tmp_path / "nights"
    for place in (tmp_path / "outside", folder):
        place.mkdir()
        (place / "night.html").write_text("")
    (folder / history.FILE).write_text("\n".join(map(json.dumps, lines)))
    text = page.write_index(folder).read_text()
    assert "<script" not in text
    assert "outside/night.html" not in text
    assert not re.search(r'(src|href)="?(https?:)?//', text)
    assert "default-src 'none'" in text


def test_slowdown_averages_the_timed_parts() -> None:
    nights = [
        {"reference": {"a": 1.0}},
        {"reference": {"a": 2.0, "b": 3.0}},
        {"reference": {"a": 1.0}},
        {"reference": {}},
    ]
    slowdowns = trends.slowdowns(nights)
    assert slowdowns[0] == slowdowns[2] == 1.0
    assert slowdowns[1] == pytest.approx(2**0.5)
    assert math.isnan(slowdowns[3])
