"""The pages of nights: quick and small for a season of them, offline, and hostile text stays text."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suite.regression.nightly import history, page, trends

METRIC = {"unit": "s", "better": "lower", "n": 10}


def season(folder: Path, nights: int, runs: int) -> None:
    """Lines as nights write them; a third of the runs have a slower machine one week."""
    random = np.random.default_rng(0)
    lines = []
    for number in range(nights):
        slow = 1.3 if 20 <= number < 27 else 1.0
        found = []
        for run in range(runs):
            value = (
                0.01 * (run + 1) * slow * float(np.exp(random.normal(0, 0.01))) * (1.1 if number == nights - 1 else 1)
            )
            numbers = {"median": value, "low": value * 0.99, "high": value * 1.02}
            metrics = {name: {**METRIC, **numbers} for name in ("batch_time", "update_time", "pipeline_time")}
            names = {"experiment": "overhead_bound", "label": f"system{run} 2x1", "config": "c", "outcome": "ok"}
            found.append({**names, "metrics": metrics})
        line: dict[str, Any] = {
            "schema": history.SCHEMA,
            "night": f"2026-{1 + number // 28:02d}-{1 + number % 28:02d}",
            "started": "2026-01-01T01:00:00+00:00",
            "ended": "2026-01-01T01:12:00+00:00",
            "status": "regression" if number == nights - 1 else "good",
            "commit": f"{number:012x}",
            "base": None,
            "reference": {"products/1": 0.01 * slow, "copies/1": 0.02 * slow},
            "runs": found,
            "regressions": ["overhead · system0 2x1 · batch_time is slower"] if number == nights - 1 else [],
            "notes": [],
            "threshold": 0.05,
            "metrics": ["batch_time"],
        }
        lines.append(json.dumps(line))
    (folder / history.FILE).write_text("\n".join(lines) + "\n")


def test_sixty_nights_are_an_index_in_seconds(tmp_path: Path) -> None:
    """83 runs a night are 4,980 records in all: as many pictures are drawn as a page carries, and the rest is told."""
    season(tmp_path, 60, 83)
    begin = time.process_time()
    path = page.write_index(tmp_path)
    assert time.process_time() - begin < 15
    text = path.read_text()
    assert path.stat().st_size < 2_000_000
    assert text.count("<svg") == trends.MOST
    assert f"{83 - trends.MOST} more trends are in history.jsonl" in text
    assert text.count("<tr>") == 60 + 2  # and two heads


def test_the_index_shows_the_machine_and_the_regression(tmp_path: Path) -> None:
    season(tmp_path, 30, 1)
    text = page.write_index(tmp_path).read_text()
    assert "+30.0 %" in text  # the week of the slow machine
    assert re.search(r'<td class="bad">regression</td>', text)
    assert "batch_time: " in text
    assert "% from the last good night before" in text


def test_pages_ask_nobody_for_anything_and_escape_what_they_show(tmp_path: Path) -> None:
    season(tmp_path, 2, 1)
    evil = "<script>alert(1)</script>"
    lines = [json.loads(line) for line in (tmp_path / history.FILE).read_text().splitlines()]
    for line in lines:
        line.update(commit=evil, regressions=[evil], notes=[evil])
        line["runs"][0]["label"] = evil
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


def test_no_nights_are_a_page_too(tmp_path: Path) -> None:
    assert "make nightly" in page.write_index(tmp_path).read_text()


def test_slowness_is_of_the_parts_that_were_timed() -> None:
    nights = [
        {"reference": {"a": 1.0}},
        {"reference": {"a": 2.0, "b": 3.0}},
        {"reference": {"a": 1.0}},
        {"reference": {}},
    ]
    found = trends.slowness(nights)
    assert found[0] == found[2] == 1.0
    assert found[1] == pytest.approx(2**0.5)
    assert math.isnan(found[3])
