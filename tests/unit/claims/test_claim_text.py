"""Commands and times of claims, as claims.json and the archive for evaluators give them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from suite.artifact.claims import rows
from suite.claims import claim_text, judge, load
from suite.claims.claim import AnswerRow, Claim, Evidence, Judged
from suite.core.record import Metric, Outcome, Record, Source
from suite.report.load import ReportStore, StoredRecord

RUN = "suite run experiment=demo system=axonn"
EXPERIMENT = {"experiment": {"name": "demo", "expected_seconds": 90}}
BY_FUNCTION = AnswerRow(Evidence.DERIVED, figure="demo", function="suite.papers.demo.value")
BY_RUNS = AnswerRow(Evidence.MEASURED, experiment="demo", labels=("axonn 2x1",), metric="batch_time")


def claim(name: str, *answers: AnswerRow) -> Claim:
    return Claim(name, "axonn", "Table I", "batch_time", "axonn", 50.0, "second", "number", "cpu", answers=answers)


def judged(judged_claim: Claim, **metrics: Metric) -> Judged:
    """The claim with a run of experiment `demo` that leaves these metrics; without any, nothing was run."""
    provenance = {"command": RUN}
    source = Source.MEASURED if "batch_time" in metrics else Source.ANALYTIC
    record = Record("k", "demo", "axonn", "axonn 2x1", Outcome.OK, source, config=EXPERIMENT, provenance=provenance)
    entry = StoredRecord(Record.from_json(record.to_json()), "records/k.json")
    entry.record.metrics.update(metrics)
    (judgement,) = judge.judge([judged_claim], ReportStore(Path("nowhere"), (entry,) if metrics else ()))
    return judgement


def value(seconds: Any) -> Metric:
    return Metric("second", "", (50.0,), evidence="derived", seconds=seconds)


def entry_of(judgement: Judged, folder: Path) -> dict[str, Any]:
    (entry,) = json.loads(claim_text.write_json(folder, [judgement]).read_text(encoding="utf-8"))
    assert isinstance(entry, dict)
    return entry


def test_claim_has_its_command_and_times(tmp_path: Path) -> None:
    """Of a function its own time, where it is a number, and that of the experiment; of runs the experiment's alone."""
    for seconds, own in ((2.25, 2.25), (None, None), (math.nan, None), (math.inf, None), ("soon", None), (True, None)):
        entry = entry_of(judged(claim("c.x", BY_FUNCTION), **{"c.x": value(seconds)}), tmp_path)
        assert (entry["answer_seconds"], entry["experiment_seconds"]) == (own, 90.0)
        assert entry["command"] == "suite claims answer c.x"
    entry = entry_of(judged(claim("c.x", BY_RUNS), batch_time=Metric("s", "lower", (50.0,))), tmp_path)
    assert (entry["command"], entry["answer_seconds"], entry["experiment_seconds"]) == (RUN, None, 90.0)
    without_record = [
        claim_text.command(judged(claim("c.x", *answers))) for answers in ((BY_FUNCTION,), (BY_RUNS,), ())
    ]
    assert without_record == ["suite claims answer c.x", "suite run experiment=demo", ""]


def test_archive_and_json_give_the_same_commands(tmp_path: Path) -> None:
    """Of every published claim, with no record."""
    store = ReportStore(tmp_path, ())
    judgements = judge.judge(load.claims(), store)
    written = json.loads(claim_text.write_json(tmp_path, judgements).read_text(encoding="utf-8"))
    expected = [entry["command"] or "none: no run here answers it" for entry in written]
    assert [row.command for row in rows(judgements, store)] == expected
    assert len({command.split()[1] for command in expected if command.startswith("suite")}) > 2


def test_archive_says_how_long_an_answer_and_its_experiment_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.artifact.claims.expected_seconds", lambda: {"demo": 90.0})
    record = Record("k", "demo", "axonn", "axonn 2x1", Outcome.OK, Source.ANALYTIC)
    store = ReportStore(Path("nowhere"), (StoredRecord(record, "records/k.json"),))
    timed = judged(claim("c.x", BY_FUNCTION), **{"c.x": value(2.25)})
    untimed = judged(claim("c.x", BY_FUNCTION), **{"c.x": value(None)})
    never = judged(claim("c.x"))
    assert [row.expected for row in rows([timed, untimed, never], store)] == [
        "3 s; its experiment 1 min 30 s",
        "1 min 30 s",
        "unknown",
    ]
