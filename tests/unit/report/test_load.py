"""Loading a reports folder: no file stops the page, and each skipped file has a reason."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.core.grid import Grid
from suite.core.op import Op
from suite.core.record import Record, Source, readers
from suite.core.trace import FORWARD, Trace
from suite.regression.committed import changed_settings
from suite.report import load
from suite.report.load import Aside, text_at
from tests.support.drawn import drawn
from tests.support.report_records import make, store, store_trace

ROOT = Path(__file__).parents[3]


def one_span() -> Trace:
    trace = Trace()
    trace.add(0, FORWARD, 0.0, 1.0, Op.parse("0F0"))
    return trace


def aside_of(folder: Path) -> dict[str, tuple[Aside, str]]:
    return {aside.name: (aside.kind, aside.reason) for aside in load.read_store(folder).aside}


def test_a_missing_folder_is_an_empty_store(tmp_path):
    assert load.read_store(tmp_path / "none") == load.ReportStore(tmp_path / "none")


def test_damaged_and_other_schema_are_told_apart(tmp_path):
    store(tmp_path, make("good"))
    records = tmp_path / "records"
    (records / "cut.json").write_text(make("cut").to_json()[:100])
    (records / "old.json").write_text(make("old", schema_version=99).to_json())
    (records / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (records / "deep.json").write_text("[" * 100_000)
    (records / "huge.json").write_text(make("huge", (1.0,)).to_json().replace("1.0", "1" + "0" * 400))
    (records / "folder.json").mkdir()
    (records / "memory.json").write_text(make("memory", memory={"measured": {"weights": "much"}}).to_json())
    (records / "trace.json").write_text(make("trace").to_json().replace('"trace": null', '"trace": 3'))
    (records / "twin.json").write_text(make("good").to_json())
    loaded = load.read_store(tmp_path)
    assert [record.label for record in loaded.records] == ["good"]
    kinds = {name: kind for name, (kind, _) in aside_of(tmp_path).items()}
    assert kinds.pop("records/old.json") is Aside.OTHER_SCHEMA
    assert set(kinds.values()) == {Aside.DAMAGED}
    names = ("bytes", "cut", "deep", "folder", "huge", "memory", "trace", "twin")
    assert sorted(kinds) == [f"records/{name}.json" for name in names]
    assert "99" in aside_of(tmp_path)["records/old.json"][1]


def test_records_of_other_machines_name_their_machine(tmp_path):
    folder = tmp_path / "measured" / "large"
    name = store_trace(folder, "a", one_span(), Grid())
    (folder / "demo.jsonl").write_text(
        make("a", trace=name).to_json(None) + "\n\n" + make("b").to_json(None) + "\n{cut\n"
    )
    store(tmp_path, make("a"))
    loaded = load.read_store(tmp_path)
    entries = loaded.entries
    assert [(entry.machine, entry.file) for entry in entries] == [
        ("", "records/a.json"),
        ("large", "measured/large/demo.jsonl#1"),
        ("large", "measured/large/demo.jsonl#3"),
    ]
    assert [aside.name for aside in loaded.aside] == ["measured/large/demo.jsonl#4"]
    assert entries[1].trace is not None
    assert entries[1].trace.file == "measured/large/traces/a.json.gz"


def packed(grid: object, spans: object) -> bytes:
    return gzip.compress(json.dumps({"grid": grid, "spans": spans}).encode(), mtime=0)


GOOD = {"data": 1, "inter": 1, "tensor": 1}
ROW = [0, "forward", 0.0, 1.0, "0F0", 0]


NO_TRACES = (
    b"no gzip",
    packed(GOOD, [ROW])[:-9],
    gzip.compress(b"{", mtime=0),
    gzip.compress(b"[]", mtime=0),
    packed(GOOD, []),
    packed(GOOD, [[1, "forward", 0.0, 1.0, "0F0", 0]]),
    packed(GOOD, [[0, "forward", 1.0, 0.0, "0F0", 0]]),
    packed(GOOD, [[0, "forward", 0.0, 1e999, "0F0", 0]]),
    packed(GOOD, [[0, "forward", 0.0, 1e10, "0F0", 0]]),
    packed(GOOD, [[0, "forward", 0.0, 1.0, "<b>", 0]]),
    packed(GOOD, [[0, "forward"]]),
    packed(GOOD, 7),
    packed({"data": 0}, [ROW]),
    packed({"data": "1"}, [ROW]),
    packed(None, [ROW]),
)


def test_a_trace_that_is_none_costs_the_trace_alone(tmp_path):
    (tmp_path / "traces").mkdir()
    for content in NO_TRACES:
        store(tmp_path, make("a", trace="traces/a.json.gz"))
        (tmp_path / "traces" / "a.json.gz").write_bytes(content)
        loaded = load.read_store(tmp_path)
        assert [entry.trace for entry in loaded.entries] == [None]
        assert [aside.kind for aside in loaded.aside] == [Aside.TRACE]
    for path in ("traces/none.json.gz", "", "a\0b", "x" * 5000):
        store(tmp_path, make("a", trace=path))
        assert [aside.kind for aside in load.read_store(tmp_path).aside] == [Aside.TRACE]


def test_a_trace_that_unpacks_to_too_much_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "MAX_UNPACKED", 10_000)
    store(tmp_path, make("a", trace="a.json.gz"))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b" " * 10_001))
    ((_, reason),) = aside_of(tmp_path).values()
    assert "10000" in reason


@pytest.mark.parametrize(
    "path", ["../outside/a.json.gz", "traces/../../outside/a.json.gz", "{absolute}", "link.json.gz"]
)
def test_a_trace_path_that_leaves_the_folder_is_refused(tmp_path, path):
    folder, outside = tmp_path / "reports", tmp_path / "outside"
    store_trace(outside, "x", one_span(), Grid())
    target = (outside / "traces" / "x.json.gz").rename(outside / "a.json.gz")
    folder.mkdir()
    (folder / "traces").mkdir()
    (folder / "link.json.gz").symlink_to(target)
    store(folder, make("a", trace=path.format(absolute=target)))
    loaded = load.read_store(folder)
    assert loaded.entries[0].trace is None
    assert "leaves the store" in loaded.aside[0].reason


def provenance(processor: str = "EPYC", dirty: bool = False) -> dict[str, Any]:
    return {"machine": {"processor": processor, "cores": 2}, "commit": {"hash": "0123456789ab", "dirty": dirty}}


@pytest.mark.parametrize("machine", ["", "epyc-2-cores"])
@pytest.mark.parametrize(
    ("fields", "outdated"),
    [
        ({}, False),
        ({"source": Source.EMULATED}, False),
        ({"source": Source.SIMULATED}, True),
        ({"source": Source.ANALYTIC}, True),
        ({"provenance": provenance(dirty=True)}, True),
        ({"provenance": provenance("Xeon")}, True),
        ({"config": {"seed": 1}}, True),
    ],
)
def test_outdated_record_is_set_aside_in_a_folder_of_committed_records(tmp_path, machine, fields, outdated):
    def changed(record: Record) -> str:
        return "another seed" if record.config.get("seed") else ""

    records = [make(name, provenance=provenance()) for name in "abc"]
    records[0] = replace(records[0], **fields)
    if machine:
        (tmp_path / "measured" / machine).mkdir(parents=True)
        lines = "\n".join(record.to_json(None) for record in records)
        (tmp_path / "measured" / machine / "demo.jsonl").write_text(lines)
    else:
        for record in records:
            store(tmp_path, record)
    loaded = load.read_store(tmp_path, changed)
    left_out = machine != "" and outdated
    assert [record.label for record in loaded.records] == list("abc"[left_out:])
    assert [aside.kind for aside in loaded.aside] == [Aside.OUTDATED] * left_out


def test_committed_records_are_whole_and_none_is_outdated() -> None:
    """No committed record is set aside, and each trace that one names is committed, too."""
    stored = load.read_store(ROOT / "reports")
    committed = [entry for entry in stored.entries if entry.machine]
    assert [aside for aside in stored.aside if aside.name.startswith("measured/")] == []
    named = {entry.trace.file for entry in committed if entry.trace}
    assert named == {path.relative_to(ROOT / "reports").as_posix() for path in ROOT.glob("reports/measured/*/traces/*")}
    for entry in committed:
        made = entry.record.provenance
        words = f"{made['machine']['processor']} {made['machine']['cores']} cores".lower()
        assert set(entry.machine.split("-")) <= set(re.findall(r"\w+", words)), entry.file
        assert text_at(made, "commit", "hash"), entry.file
        assert made["commit"]["dirty"] is False, entry.file


COMMITTED = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("reports/measured/*/*.jsonl"))]


@pytest.mark.parametrize("file", drawn(COMMITTED, n=3))
def test_committed_record_has_the_configuration_of_its_experiment(file: str) -> None:
    records = [read() for _, read in readers(ROOT / file)]
    assert {record.label: changed_settings(record) for record in records} == {record.label: "" for record in records}
