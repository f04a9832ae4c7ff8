"""Comparison of two sets of records: result, exit status and text."""

from __future__ import annotations

import functools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from suite.cli.compare import main
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.record import Metric, Outcome, Record, Source
from suite.regression import format, record_sets
from suite.regression.comparison import Comparison, compare
from suite.regression.decide import ChangeRule, ChangeVerdict
from suite.regression.metrics import Change
from tests.support.nights import LOSS, record, samples, store
from tests.support.refusals import refused


def repeats(factor: float = 1.0, count: int = 8, **changes: Any) -> list[Record]:
    """Records whose times differ by a thousandth."""
    return [record([factor * (0.1 + 0.0001 * n)] * 4, **changes) for n in range(count)]


def compare_records(a: list[Record], b: list[Record], rule: ChangeRule | None = None) -> Comparison:
    return compare(samples(a, "A"), samples(b, "B"), rule)


def only(comparison: Comparison, metric: str) -> Change:
    [change] = [change for change in comparison.changes if change.metric == metric]
    return change


def test_regression_has_size_interval_and_commits() -> None:
    comparison = compare_records(repeats(), repeats(1.1, provenance={"commit": {"hash": "b" * 40, "dirty": False}}))
    change = only(comparison, "batch_time")
    assert (change.verdict, comparison.exit) == (ChangeVerdict.WORSE, Exit.REGRESSION)
    assert change.effect is not None
    assert 1.05 < change.effect.low < change.ratio < change.effect.high < 1.15
    text = format.text(comparison)
    assert "+10.0 %" in text
    assert f"{'a' * 12}..{'b' * 12}" in text
    assert {c.verdict for c in comparison.changes if c.metric != "batch_time"} == {ChangeVerdict.SAME}

    faster = compare_records(repeats(1.1), repeats())
    assert (only(faster, "batch_time").verdict, faster.exit) == (ChangeVerdict.BETTER, Exit.OK)


def test_counted_and_simulated_metrics_have_no_noise() -> None:
    for value, expected in (
        (4096.0, ChangeVerdict.SAME),
        (4097.0, ChangeVerdict.WORSE),
        (4095.0, ChangeVerdict.BETTER),
    ):
        other = record(metrics={"peak_memory": Metric("B", "lower", (value,))})
        assert only(compare_records([record()], [other]), "peak_memory").verdict is expected
    bytes_of = [[record(metrics={"peak_memory": Metric("B", "lower", (4096.0 + n,))}) for n in range(8)] for _ in "ab"]
    assert only(compare_records(*bytes_of), "peak_memory").effect is not None  # it varies
    a, b = (record([value], source=Source.SIMULATED) for value in (1.0, 1.0001))
    change = only(compare_records([a], [b]), "batch_time")
    assert (change.verdict, change.effect) == (ChangeVerdict.WORSE, None)


ROUNDS = {"config": {"measure": {"rounds": 6, "batches": 2}}}


def six_rounds(factor: float) -> Record:
    return record([factor * (1 + 0.001 * n) for n in range(12)], **ROUNDS)


def test_single_records_are_inconclusive() -> None:
    """Rounds of one call share its drift, so their rank test is no evidence about the code."""
    for factor, count, expected in ((1.0, 1, (6, 6)), (0.5, 1, (6, 6)), (1.2, 8, (1, 8))):
        b = [six_rounds(factor)] * count
        comparison = compare_records([six_rounds(1.0)], b, ChangeRule(metrics=("batch_time",)))
        change = only(comparison, "batch_time")
        assert change.effect is not None
        assert (change.effect.repeats, change.verdict) == (expected, ChangeVerdict.INCONCLUSIVE)
        assert comparison.exit is Exit.NOT_COMPARABLE


def test_failed_first_repeat_hides_no_metric() -> None:
    broken = record(outcome=Outcome.FAILED, reason="why", metrics={}, series={})
    for sides in (([broken, *repeats()], repeats(1.2)), (repeats(), [broken, *repeats(1.2)])):
        comparison = compare_records(*sides)
        assert only(comparison, "batch_time").verdict is ChangeVerdict.WORSE
        assert only(comparison, "peak_memory").verdict is ChangeVerdict.SAME


NAN = math.nan
Fields = dict[str, Any]


def clock(*values: float) -> Fields:
    return {"metrics": {"time_tie": Metric("s", "lower", values)}}


SKIPPED: list[tuple[Fields, Fields, str, bool]] = [  # records, a part of the reason, whether the metric is lost
    (clock(0.1), {"metrics": {}}, "time_tie is only in A", True),
    ({"metrics": {}}, clock(0.1), "time_tie is only in B", False),
    (clock(0.1), clock(0.0), "time_tie is not compared", False),
    (clock(0.1, 0.2), clock(NAN, 0.2), "time_tie has 0 values in A and 1 in B", False),
    (clock(NAN), clock(0.1), "time_tie has no finite number in A", False),
    ({}, {"series": {}}, "loss is only in A", True),
    ({}, {"series": {"loss": LOSS[:2]}}, "loss has 3 batches in A, 2 in B", True),
    ({"series": {"loss": [3.0, NAN, 2.0]}}, {}, "loss is not compared", False),
]


def test_skipped_metric_is_listed_with_reason() -> None:
    for a, b, message, lost in SKIPPED:
        comparison = compare_records([record(**a)], [record(**b)])
        assert f"single · axonn 2x1 · {message}" in format.text(comparison)
        assert comparison.exit is not Exit.REGRESSION
        assert bool(comparison.lost) is lost, message
    zero = compare_records([record(**clock(0.0, 0.0))], [record(**clock(0.0, 0.0))])
    assert "time_tie" not in format.text(zero, everything=True)
    failed = compare_records([record()], [record(outcome=Outcome.FAILED, metrics={}, series={}, reason="why")])
    assert (failed.lost, failed.notes) == ((), ())
    empty = [record(metrics={"time_tie": Metric("s", "lower", (0.0, value))}) for value in (0.0, 1.0, math.nan)]
    assert compare_records(empty, empty).select(ChangeVerdict.WORSE, ChangeVerdict.BETTER) == ()


def test_time_that_is_zero_in_one_batch_is_judged() -> None:
    a = [record([0.0, 0.1, 0.1, 0.1]), *repeats()]
    assert only(compare_records(a, repeats(1.3)), "batch_time").verdict is ChangeVerdict.WORSE


def test_metric_that_becomes_nan_is_worse() -> None:
    comparison = compare_records([record(**clock(0.1, 0.2))], [record(**clock(NAN, NAN))])
    change = only(comparison, "time_tie")
    assert (change.verdict, comparison.exit) == (ChangeVerdict.WORSE, Exit.REGRESSION)
    assert format.as_data(comparison)["changes"][0]["b"] is None


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([LOSS], ChangeVerdict.SAME),
        ([[3.0, 2.5, 2.25 * (1 + 1e-7)]], ChangeVerdict.SAME),
        ([[3.0, 2.6, 2.35]], ChangeVerdict.WORSE),
        ([[3.0, 2.4, 2.15]], ChangeVerdict.CHANGED),
        ([[3.0, NAN, NAN]], ChangeVerdict.WORSE),
        ([LOSS] * 8 + [[3.0, NAN, NAN]], ChangeVerdict.INCONCLUSIVE),
        ([LOSS] * 8 + [[3.0, NAN, NAN]] * 2, ChangeVerdict.WORSE),
    ],
)
def test_losses_of_one_seed_are_compared_by_batch(losses: list[list[float]], expected: ChangeVerdict) -> None:
    change = only(compare_records([record()], [record(series={"loss": loss}) for loss in losses]), "loss")
    assert change.verdict is expected
    assert "from batch 1 on" in change.why or expected is ChangeVerdict.SAME


def test_cancelled_run_and_other_config_are_not_comparable() -> None:
    cancelled = record(outcome=Outcome.CANCELLED, metrics={}, series={}, reason="why")
    for other in (cancelled, record(config={"seed": 7})):
        assert compare_records([record()], [other]).exit is Exit.NOT_COMPARABLE


@pytest.mark.parametrize(
    ("a", "b", "verdict", "status"),
    [
        (["ok"], ["failed"], ChangeVerdict.WORSE, Exit.REGRESSION),
        (["ok"] * 9, ["ok"] * 8 + ["failed"], ChangeVerdict.INCONCLUSIVE, Exit.OK),
        (["ok"] * 9, ["ok"] * 7 + ["failed"] * 2, ChangeVerdict.WORSE, Exit.REGRESSION),
        (["ok"], ["cancelled"], ChangeVerdict.INCONCLUSIVE, Exit.OK),
        (["failed"], ["ok"], ChangeVerdict.BETTER, Exit.OK),
        (["ok", "failed"], ["failed"], ChangeVerdict.WORSE, Exit.REGRESSION),
        (["ok", "failed"], ["cancelled"], ChangeVerdict.CHANGED, Exit.OK),
        (["failed"], ["timeout"], ChangeVerdict.CHANGED, Exit.OK),
    ],
)
def test_outcomes_are_compared(a: list[str], b: list[str], verdict: ChangeVerdict, status: Exit) -> None:
    ours, theirs = ([record(outcome=Outcome(kind), reason="why") for kind in side] for side in (a, b))
    comparison = compare_records(ours, theirs)
    [outcome] = comparison.outcomes
    assert (outcome.verdict, comparison.exit) == (verdict, status)
    assert "single · axonn 2x1" in "\n".join(format.outcome_lines(comparison))


def test_metrics_can_be_selected() -> None:
    comparison = compare_records(repeats(), repeats(1.1), ChangeRule(metrics=("peak_memory",)))
    assert [change.metric for change in comparison.changes] == ["peak_memory"]
    with refused(InvalidRequest, subject="no run has a metric speed", rule="one of batch_time, loss"):
        compare_records(repeats(), repeats(), ChangeRule(metrics=("speed",)))


# Record sets and the command line


def test_folders_files_and_nightly_runs_are_sets(tmp_path: Path) -> None:
    path = store(tmp_path / "reports", record())
    for name in (tmp_path / "reports", tmp_path / "reports" / "records", path):
        assert len(record_sets.read(str(name)).samples) == 1
    night = tmp_path / "nights" / "2026-11-22"
    for number in range(3):
        folder = night / "repeats" / f"{number:02d}" / "0"
        store(folder, record())
        if number < 2:  # the third is incomplete
            (folder / record_sets.DONE).touch()
    record_set = record_sets.read("2026-11-22", tmp_path / "nights")
    assert len(record_set.samples) == 2
    with refused(InvalidRequest, legal="2026-11-22"):
        record_sets.read("2026-11-23", tmp_path / "nights")


def test_damaged_file_and_malformed_config_are_skipped(tmp_path: Path) -> None:
    store(tmp_path, record())
    (tmp_path / "records" / "x.json").write_text("{")
    (tmp_path / "records" / "y.json").write_bytes(b"\xff")
    deep = functools.reduce(lambda inner, _: {"x": inner}, range(200), {})
    for number, config in enumerate(({"experiment": "x"}, {"launch": None}, {"launch": ["x"]}, {"deep": deep})):
        data = json.loads(record().to_json()) | {"config": config}
        (tmp_path / "records" / f"z{number}.json").write_text(json.dumps(data))
    record_set = record_sets.read(str(tmp_path))
    assert (len(record_set.samples), len(record_set.skipped)) == (1, 6)
    assert main([str(tmp_path), str(tmp_path)]) == Exit.OK


def test_command_line_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, factor in (("a", 1.0), ("b", 1.2)):
        for number, one in enumerate(repeats(factor)):
            store(tmp_path / name / str(number), one)
    a, b, none = str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "none")
    assert main([a, b, "--json", str(tmp_path / "c.json")]) == Exit.REGRESSION
    data = json.loads((tmp_path / "c.json").read_text())
    assert data["exit"] == Exit.REGRESSION
    assert main([a, b, "--metric", "peak_memory"]) == Exit.OK
    assert main([a, b, "--threshold", "0.5"]) == Exit.OK
    assert main([a, b, "--all"]) == Exit.REGRESSION
    assert "no change" in capsys.readouterr().out
    (tmp_path / "none").mkdir()
    for arguments in ([a, none], [a, str(tmp_path / "nowhere")], [a, b, "--level", "2"]):
        assert main(arguments) == Exit.NOTHING
        assert capsys.readouterr().err.startswith("refused: ")


def test_page_puts_another_machine_next_to_this_one(tmp_path: Path) -> None:
    """Runs of two machines have no verdict, but their medians and the best run of each stand on the page."""
    other = {"machine": {"processor": "<Xeon>", "cores": 8}}
    times = (0.2, 0.1), (0.03, 0.04)  # of both runs, by side
    for side, folder, more in ((0, "a", {}), (1, "b", other)):
        for label, seconds in zip(("axonn", "gpipe"), times[side], strict=True):
            store(tmp_path / folder, record([seconds] * 4, label=label, config={"seed": label}, provenance=more))
    page = tmp_path / "page.html"
    sets = [str(tmp_path / folder) for folder in "ab"]
    assert main([*sets, "--page", str(page)]) == Exit.NOT_COMPARABLE
    text = page.read_text()
    assert "best batch_time has gpipe in A (100 ms), but axonn in B (30 ms)" in text
    assert "-85.0 %" in text
    assert text.count("not comparable") == 2
    assert "&lt;Xeon&gt;" in text
    assert main([sets[0], sets[0], "--metric", "peak_memory", "--page", str(page)]) == Exit.OK
    text = page.read_text()
    assert "not comparable" not in text
    assert "batch_time" not in text


def test_page_marks_headline_claims_whose_answers_differ(tmp_path: Path) -> None:
    claim = "samo.sec1.memory_after"
    for folder, *values in (("a", 20.28), ("b", 40.0), ("none",)):
        metrics = {claim: Metric("gigabyte", "", tuple(values))} if values else {}
        one = record(metrics=metrics | {"bytes": Metric("B", "lower", (1.0,))}, source=Source.ANALYTIC)
        store(tmp_path / folder, one)

    def row(a: str, b: str) -> list[str]:
        sets = [str(tmp_path / side) for side in (a, b)]
        main([*sets, "--page", str(tmp_path / "page.html")])
        return re.findall("<tr>.*80.16 GB.*", (tmp_path / "page.html").read_text())

    [text] = row("a", "b")
    parts = ("20.3 GB<small>derived", "hardly fail", "40 GB<small>derived", "does not hold here", "answers differ")
    assert [part for part in parts if part not in text] == []
    assert "the answers differ" not in row("a", "a")[0]
    assert row("none", "none") == []
