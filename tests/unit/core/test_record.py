"""Round trip of a record and of its maps of winners through JSON, and refusal of damaged files.

A sweep resumes from these files; a half-written or foreign one must never be taken for a result.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.config.panels import Winner, WinnerMap, is_map
from suite.core import load
from suite.core.errors import DamagedRecord, InvalidRequest, OtherSchema
from suite.core.load import CpuTime, cpu_time, foreign_cores
from suite.core.record import MAX_BYTES, SCHEMA_VERSION, Metric, Outcome, Record, Source
from tests.support.refusals import refused

NAN = math.nan
RECORD = Record(
    key="abc",
    experiment="axonn_table_2",
    system="axonn",
    label="2x1",
    outcome=Outcome.DIVERGED,
    source=Source.EMULATED,
    reason="loss is nan at batch 3",
    config={"grid": {"inter": 2}, "lr": 1e-3, "names": ["a", "b"]},
    metrics={"batch_time": Metric("s", "lower", (0.5, 0.25), "warm")},
    memory={"predicted": {"weights": [1, 2]}},
    series={"loss": [1.5, 1.25]},
    trace="traces/abc.json",
    notes=("order=static",),
    provenance={"cores": 2},
)


@given(st.sampled_from(Outcome), st.sampled_from(Source), st.text(), st.lists(st.floats(allow_nan=False, width=64)))
def test_a_record_reads_what_it_wrote(outcome: Outcome, source: Source, text: str, values: list[float]) -> None:
    finite = tuple(value for value in values if math.isfinite(value))
    record = Record(text, text, text, text, outcome, source, metrics={"m": Metric("s", "", finite, text)})
    for each in (record, RECORD):
        assert Record.from_json(each.to_json()) == each


def test_what_is_no_number_is_null_and_reads_as_nan() -> None:
    for value in (math.nan, math.inf, -math.inf):
        text = replace(RECORD, series={"loss": [1.0, value]}).to_json()
        assert json.loads(text)["series"]["loss"] == [1.0, None]
        first, second = Record.from_json(text).series["loss"]
        assert first == 1.0
        assert math.isnan(second)


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(RECORD.to_json()), **fields})


def test_damage_and_another_schema_are_told_apart() -> None:
    for version in (SCHEMA_VERSION + 1, 0, "1", None):
        with pytest.raises(OtherSchema, match=f"this suite reads {SCHEMA_VERSION}"):
            Record.from_json(changed(schema_version=version))
    whole = {"unit": "s", "better": "", "values": [1.0]}
    for text in (
        *("", "{", RECORD.to_json()[:-20], "[]", "3", "null", "{}", f'{{"schema_version": {SCHEMA_VERSION}}}'),
        *(changed(outcome="fine"), changed(source="guessed"), changed(metrics=[1]), changed(series={"loss": 3})),
        *(changed(config="grid"), changed(provenance=None), changed(key=7), changed(label=None), changed(surprise=1)),
        changed(metrics={"m": {"unit": "s"}}),
        *(
            changed(metrics={"m": {**whole, **wrong}})
            for wrong in ({"values": ["fast"]}, {"unit": 5}, {"note": ["text"]}, {"seconds": "soon"})
        ),
    ):
        with pytest.raises(DamagedRecord) as caught:
            Record.from_json(text)
        assert not isinstance(caught.value, OtherSchema), text


def test_a_file_is_a_record_or_is_told_why_not(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(RECORD.to_json(), encoding="utf-8")
    assert Record.read(file) == RECORD
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe{}")
    with open(tmp_path / "large", "wb") as large:
        large.truncate(MAX_BYTES + 1)
    reasons = {"folder": "not a file", "pipe": "not a file", "nowhere": "not a file", "bytes": "UnicodeDecodeError"}
    for name, reason in (reasons | {"large": f"{MAX_BYTES + 1} bytes; rule: a record is at most"}).items():
        with pytest.raises(DamagedRecord, match=reason):
            Record.read(tmp_path / name)


# -- maps of winners --------------------------------------------------------------------------------------------------

VALUES = {
    "a": [1.0, NAN, 1.0, 3.0, 2.0, 4.0],
    "b": [1.0 + 1e-12, NAN, NAN, 2.0, 2.5, NAN],
    "c": [1.25, NAN, NAN, 2.5, 2.5, 2.0],
}
TIE_BREAKS = {"a": [8.0, *[1.0] * 5], "b": [4.0, *[3.0] * 5], "c": [2.0] * 6}
MAP = WinnerMap(title="a title", x=["4", "8", "16"], y=["2", "3"], values=VALUES, tie_breaks=TIE_BREAKS)


def test_equal_values_are_ordered_by_the_tie_break() -> None:
    assert MAP.winner(0, 0) == Winner(("b", "a"), 1.0, "c", pytest.approx(0.25))
    assert MAP.winner(0, 1) is None
    assert MAP.winner(1, 0) == Winner(("b",), 2.0, "c", 0.25)
    assert MAP.winner(1, 1) == Winner(("a",), 2.0, "c", 0.25), "of two equal seconds the tie break names one"
    assert [*MAP.wins().items()] == [("b", 2), ("a", 2), ("c", 1)]
    alone = WinnerMap(title="t", x=["1"], y=["1"], values={"a": [2.0], "b": [NAN]}).winner(0, 0)
    assert alone is not None
    assert (alone.names, alone.second, math.isnan(alone.margin)) == (("a",), "", True)


def test_a_record_keeps_a_map_and_a_malformed_one_is_refused() -> None:
    row = json.loads(replace(RECORD, panels=[MAP.to_record()]).to_json())["panels"][0]
    assert is_map(row)
    assert WinnerMap.read(row).winner(0, 0) == MAP.winner(0, 0)
    for change, key in (
        *(({"values": {"a": [1.0]}}, "panel"), ({"tie_breaks": {" ": [1.0] * 6}}, "panel.tie_breaks")),
        *(({"x": []}, "panel.x"), ({"title": ""}, "panel.title")),
    ):
        with refused(InvalidRequest, key):
            WinnerMap.read({**MAP.to_record(), **change})


# -- CPU time that others take ----------------------------------------------------------------------------------------


def test_own_time_is_not_foreign_and_stolen_time_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = CpuTime(all=100.0, own=10.0, stolen=1.0, clock=0.0)
    assert foreign_cores(before, CpuTime(108.0, 18.0, 1.0, 4.0)) == 0.0, "two ranks of ours on two cores"
    assert foreign_cores(before, CpuTime(108.0, 14.0, 1.0, 4.0)) == 1.0
    assert foreign_cores(before, CpuTime(108.0, 14.0, 1.0, 4.0), ranks=3.0) == 0.25
    assert foreign_cores(before, CpuTime(104.0, 14.0, 3.0, 4.0)) == 0.5
    assert foreign_cores(None, before) == 0.0
    monkeypatch.setattr(load, "STAT", tmp_path / "stat")
    assert cpu_time() is None
    (tmp_path / "stat").write_text("cpu  100 200 300 4000 50 6 7 80 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
    ticks, seconds = os.sysconf("SC_CLK_TCK"), cpu_time()
    assert seconds is not None
    assert (seconds.all * ticks, seconds.stolen * ticks) == pytest.approx((613, 80))
