"""CPU time that others take, from planted counters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from suite.cli.run import run
from suite.core import load
from suite.core.load import CpuTime, cpu_time, foreign_cores
from suite.core.record import Outcome, Record, Source
from suite.report.load import StoredRecord
from suite.report.tables.provenance_table import facts


def test_own_time_is_not_foreign_and_stolen_time_is() -> None:
    before = CpuTime(all=100.0, own=10.0, stolen=1.0, clock=0.0)
    assert foreign_cores(before, CpuTime(108.0, 18.0, 1.0, 4.0)) == 0.0, "two ranks of ours on two cores"
    assert foreign_cores(before, CpuTime(108.0, 14.0, 1.0, 4.0)) == 1.0
    assert foreign_cores(before, CpuTime(104.0, 14.0, 3.0, 4.0)) == 0.5
    assert foreign_cores(None, before) == 0.0


def test_counters_are_read_and_absent_ones_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STAT", tmp_path / "stat")
    assert cpu_time() is None
    (tmp_path / "stat").write_text("cpu  100 200 300 4000 50 6 7 80 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
    ticks = load.os.sysconf("SC_CLK_TCK")
    seconds = cpu_time()
    assert seconds is not None
    assert (seconds.all * ticks, seconds.stolen * ticks) == pytest.approx((613, 80))


def test_record_holds_the_load_at_start_and_end(tmp_path: Path) -> None:
    (record,) = run(["executor=check", "system=gpipe", "grid.inter=2", f"reports={tmp_path}"])
    load_facts = record.provenance["load"]
    assert load_facts["cores"] == record.provenance["machine"]["cores"]
    for moment in ("start", "end"):
        assert list(load_facts[moment]) == ["1min", "5min", "15min"]
    ((name, text),) = [fact for fact in facts([StoredRecord(record, "a.json")] * 2) if fact[0] == "load · start · 1min"]
    assert (name, text) == ("load · start · 1min", [str(load_facts["start"]["1min"])])


def test_page_shows_the_range_of_many_loads() -> None:
    records = [
        replace(EMPTY, key=str(number), provenance={"load": {"end": {"1min": number / 2}}}) for number in range(9)
    ]
    old = replace(EMPTY, key="old")
    rows = dict(facts([StoredRecord(record, record.key) for record in (*records, old)]))
    assert rows["load · end · 1min"] == ["0 to 4"]


EMPTY = Record("a", "b", "c", "d", Outcome.OK, Source.MEASURED)
