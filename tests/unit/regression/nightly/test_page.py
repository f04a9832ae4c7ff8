"""The pages of nights: bounded, offline, and hostile text stays text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from suite.core.record import Metric
from suite.regression.nightly import night, page
from suite.regression.nightly.night import Night, NightlyStatus
from tests.support.nights import record, store


def write_nights(folder: Path, count: int, runs: int, text: str = "overhead") -> None:
    """Write nights of which the last is a regression."""
    for number in range(count):
        name, last = f"2026-01-{1 + number:02d}", number == count - 1
        status = NightlyStatus.REGRESSION if last else NightlyStatus.PASSED
        words = [f"{text} is slower"] if last else []
        more = {"regressions": words, "notes": words, "metrics": ["batch_time", "update_time"]}
        night.write(folder, Night(name, "", text, f"{name}T01:00:00", f"{name}T01:12:00", status, **more))
        for run in range(runs):
            times = Metric("s", "lower", (0.01 * (run + 1), 0.011 * (run + 1)))
            metrics = {"batch_time": times, "update_time": times, "peak_memory": times}
            one = record(label=f"{text}{run}", config={"seed": run}, metrics=metrics)
            store(folder / name, one)


def test_index_draws_a_bounded_number_of_trends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_PLOTS", 3)
    write_nights(tmp_path, 12, 4)
    text = page.write_index(tmp_path).read_text()
    assert text.count("<svg") == 3
    assert "5 more metrics" in text
    assert text.count("<tr>") == 12 + 2  # and two header rows
    assert re.search(r'<td class="bad">regression</td>', text)
    assert "12 min" in text


def test_pages_load_nothing_and_escape_text(tmp_path: Path) -> None:
    write_nights(tmp_path, 2, 1, "<script>alert(1)</script>")
    text = page.write_index(tmp_path).read_text()
    assert "&lt;script" in text
    assert "<script" not in text
    assert not re.search(r'(src|href)="?(https?:)?//', text)
    assert "default-src 'none'" in text
