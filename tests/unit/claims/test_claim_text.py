"""Commands and times of claims, as claims.json and the archive for evaluators give them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from suite.artifact.build import expected
from suite.claims import claim_text, judge
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


def test_archive_says_how_long_an_answer_and_its_experiment_take(tmp_path: Path) -> None:
    timed, untimed = value(2.25), value(None)
    rows = [entry_of(judged(claim("c.x", BY_FUNCTION), **{"c.x": each}), tmp_path) for each in (timed, untimed)]
    rows.append(entry_of(judged(claim("c.x")), tmp_path))
    assert list(map(expected, rows)) == ["3 s; its experiment 1 min 30 s", "1 min 30 s", "unknown"]
