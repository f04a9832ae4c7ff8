"""Seconds and megabytes of a page of 5,000 records."""

from __future__ import annotations

import pytest

from suite.report import write_report
from tests.support import stores
from tests.support.samples import tell

RECORDS, MOST_BYTES, MOST_SECONDS = 5000, 15e6, 20.0  # on two idle cores


@pytest.mark.parametrize("nights", [1, 2, 60])
def test_page_of_thousands(benchmark, tmp_path, nights) -> None:
    """nights: how often a run was made; with 1 every record is the newest of its label"""
    stores.fill(tmp_path, RECORDS, nights=nights)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    benchmark.pedantic(write_report, (tmp_path,), rounds=1)
    page_bytes = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file() and path not in before)
    tell(
        benchmark,
        peer=False,
        timing="one page, with its tables and traces, by a clock",
        records=RECORDS,
        bytes=page_bytes,
    )
    assert page_bytes < MOST_BYTES
    assert benchmark.stats.stats.min < MOST_SECONDS
