"""Round trip of a record through JSON, and refusal of damaged files.

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

from suite.core.errors import DamagedRecord, OtherSchema
from suite.core.record import MAX_BYTES, SCHEMA_VERSION, Metric, Outcome, Record, Source

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


def test_a_record_reads_what_it_wrote() -> None:
    assert Record.from_json(RECORD.to_json()) == RECORD


def test_seconds_of_an_answer_survive_and_make_no_other_value() -> None:
    """A record of before has none; how long a function took says nothing about what it gave."""
    timed = replace(RECORD, metrics={"m": Metric("s", "", (1.0,), seconds=0.25)})
    data = json.loads(timed.to_json())
    assert Record.from_json(json.dumps(data)).metrics["m"].seconds == 0.25
    del data["metrics"]["m"]["seconds"]
    before = Record.from_json(json.dumps(data))
    assert before.metrics["m"].seconds is None
    assert before == timed
    data["metrics"]["m"]["seconds"] = "soon"
    with pytest.raises(DamagedRecord):
        Record.from_json(json.dumps(data))


@given(st.sampled_from(Outcome), st.sampled_from(Source), st.text(), st.lists(st.floats(allow_nan=False, width=64)))
def test_any_outcome_source_and_sample_survives(
    outcome: Outcome, source: Source, text: str, values: list[float]
) -> None:
    finite = tuple(value for value in values if math.isfinite(value))
    record = Record(text, text, text, text, outcome, source, metrics={"m": Metric("s", "", finite, text)})
    assert Record.from_json(record.to_json()) == record


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_null_and_reads_as_nan(value: float) -> None:
    record = Record("k", "e", "s", "l", Outcome.DIVERGED, Source.MEASURED, series={"loss": [1.0, value]})
    text = record.to_json()
    assert json.loads(text)["series"]["loss"] == [1.0, None]
    first, second = Record.from_json(text).series["loss"]
    assert first == 1.0
    assert math.isnan(second)


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(RECORD.to_json()), **fields})


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 0, "1", None])
def test_another_schema_is_told_apart(version: object) -> None:
    with pytest.raises(OtherSchema, match=f"this suite reads {SCHEMA_VERSION}"):
        Record.from_json(changed(schema_version=version))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        RECORD.to_json()[:-20],
        "[]",
        "3",
        "null",
        "{}",
        f'{{"schema_version": {SCHEMA_VERSION}}}',
        changed(outcome="fine"),
        changed(source="guessed"),
        changed(metrics=[1]),
        changed(metrics={"m": {"unit": "s"}}),
        changed(metrics={"m": {"unit": "s", "better": "", "values": ["fast"]}}),
        changed(metrics={"m": {"unit": 5, "better": "", "values": [1.0]}}),
        changed(metrics={"m": {"unit": "s", "better": "", "values": [1.0], "note": ["text"]}}),
        changed(series={"loss": 3}),
        changed(config="grid"),
        changed(provenance=None),
        changed(key=7),
        changed(label=None),
        changed(surprise=1),
    ],
)
def test_damage_is_named_as_damage(text: str) -> None:
    with pytest.raises(DamagedRecord) as caught:
        Record.from_json(text)
    assert not isinstance(caught.value, OtherSchema)


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
