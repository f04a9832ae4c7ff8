"""Comparison of two sets of records: result, exit status and text."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from suite.cli.compare import main
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.record import Metric, Outcome, Record, Source
from suite.regression.compare import format, record_sets
from suite.regression.compare.changes import Comparison, compare
from suite.regression.compare.metrics import Change, ChangeRule
from suite.stats.inference import ChangeVerdict
from tests.support.nights import LOSS, record, samples, stored


def repeats(factor: float = 1.0, count: int = 8, **changes: Any) -> list[Record]:
    """Each a record of its own, a thousandth apart."""
    return [record([factor * (0.1 + 0.0001 * n)] * 4, **changes) for n in range(count)]


def beside(
    a: list[Record], b: list[Record], rule: ChangeRule | None = None, slow: Sequence[Sequence[float]] = ((), ())
) -> Comparison:
    return compare(samples(a, "A", slow[0]), samples(b, "B", slow[1]), rule)


def only(found: Comparison, metric: str) -> Change:
    [change] = [change for change in found.changes if change.metric == metric]
    return change


def test_a_slower_run_is_a_regression_with_its_size_interval_and_commits() -> None:
    found = beside(repeats(), repeats(1.1, provenance={"commit": {"hash": "b" * 40, "dirty": False}}))
    change = only(found, "batch_time")
    assert (change.verdict, found.exit) == (ChangeVerdict.WORSE, Exit.REGRESSION)
    assert change.effect is not None
    assert 1.05 < change.effect.low < change.ratio < change.effect.high < 1.15
    text = format.text(found)
    assert "slower" in text
    assert "+10.0 %" in text
    assert f"REGRESSION in {'a' * 12}..{'b' * 12}" in text
    assert {c.verdict for c in found.changes if c.metric != "batch_time"} == {ChangeVerdict.SAME}


def test_a_faster_run_is_none() -> None:
    found = beside(repeats(1.1), repeats())
    assert (only(found, "batch_time").verdict, found.exit) == (ChangeVerdict.BETTER, Exit.OK)


@pytest.mark.parametrize(
    ("b", "expected"), [(4096.0, ChangeVerdict.SAME), (4097.0, ChangeVerdict.WORSE), (4095.0, ChangeVerdict.BETTER)]
)
def test_what_is_counted_has_no_noise(b: float, expected: ChangeVerdict) -> None:
    """One byte more is a change, of one record alone."""
    other = record(metrics={"peak_memory": Metric("B", "lower", (b,))})
    assert only(beside([record()], [other]), "peak_memory").verdict is expected


def test_what_is_counted_but_differs_between_repeats_goes_by_chance() -> None:
    bytes_of = [[record(metrics={"peak_memory": Metric("B", "lower", (4096.0 + n,))}) for n in range(8)] for _ in "ab"]
    assert only(beside(*bytes_of), "peak_memory").effect is not None


def test_simulated_times_are_exact() -> None:
    a, b = (record([value], source=Source.SIMULATED) for value in (1.0, 1.0001))
    change = only(beside([a], [b]), "batch_time")
    assert (change.verdict, change.effect) == (ChangeVerdict.WORSE, None)


PLAN = {"config": {"measure": {"rounds": 6, "batches": 2}}}


def six_turns(factor: float) -> Record:
    return record([factor * (1 + 0.001 * n) for n in range(12)], **PLAN)


@pytest.mark.parametrize("factor", [1.0, 1.2, 0.5])
def test_what_drifts_between_two_calls_is_no_change_and_no_proof_of_none(factor: float) -> None:
    """Six turns of one call share its minute: 2 in 924 orders say nothing of the code."""
    found = beside([six_turns(1.0)], [six_turns(factor)], ChangeRule(metrics=("batch_time",)))
    change = only(found, "batch_time")
    assert change.effect is not None
    assert (change.effect.repeats, change.verdict) == ((6, 6), ChangeVerdict.UNDECIDED)
    assert found.exit is Exit.NOT_COMPARABLE
    apart = int(factor != 1)
    assert f"undecided: 1, {apart} of them more than 5 % apart: one record on a side" in format.text(found)


def test_turns_of_one_side_are_not_mixed_with_records_of_the_other() -> None:
    change = only(beside([six_turns(1.0)], [six_turns(1.2)] * 8), "batch_time")
    assert change.effect is not None
    assert (change.effect.repeats, change.verdict) == ((1, 8), ChangeVerdict.UNDECIDED)


def test_a_folder_of_reports_folders_holds_several_records(tmp_path: Path) -> None:
    for side, factor in (("a", 1.0), ("b", 1.2)):
        for number in range(8):
            stored(tmp_path / side / str(number), record([factor * (0.1 + 0.0001 * number)] * 4))
    assert len(record_sets.read(str(tmp_path / "a")).found) == 8
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == Exit.REGRESSION


def test_a_first_repeat_without_metrics_hides_none() -> None:
    broken = record(outcome=Outcome.FAILED, reason="why", metrics={}, series={})
    for sides in (([broken, *repeats()], repeats(1.2)), (repeats(), [broken, *repeats(1.2)])):
        found = beside(*sides)
        assert only(found, "batch_time").verdict is ChangeVerdict.WORSE
        assert only(found, "peak_memory").verdict is ChangeVerdict.SAME


NAN = math.nan
Given = dict[str, Any]


def clock(*values: float) -> Given:
    return {"metrics": {"time_tie": Metric("s", "lower", values)}}


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        (clock(0.1), {"metrics": {}}, "time_tie is only in A"),
        ({"metrics": {}}, clock(0.1), "time_tie is only in B"),
        (clock(0.1), clock(0.0), "time_tie is not compared: there is no ratio to a repeat whose middle is 0"),
        (clock(0.1, 0.2), clock(NAN, 0.2), "time_tie has 0 values in A and 1 in B that are no finite numbers"),
        (clock(NAN), clock(0.1), "time_tie has no finite number in A"),
        ({}, {"series": {}}, "loss is only in A"),
        ({}, {"series": {"loss": LOSS[:2]}}, "loss has 3 batches in A, 2 in B"),
        ({"series": {"loss": [3.0, NAN, 2.0]}}, {}, "loss is not compared: not all of A is finite"),
    ],
)
def test_what_is_not_compared_is_said(a: Given, b: Given, told: str) -> None:
    found = beside([record(**a)], [record(**b)])
    assert f"single · axonn 2x1 · {told}" in format.text(found)
    assert found.exit is not Exit.REGRESSION
    lost = {"time_tie is only in A", "loss is only in A", "loss has 3 batches in A, 2 in B"}
    assert bool(found.lost) is (told in lost)


def test_what_is_never_anything_is_not_told_of() -> None:
    found = beside([record(**clock(0.0, 0.0))], [record(**clock(0.0, 0.0))])
    assert "time_tie" not in format.text(found, everything=True)


def test_a_clock_that_is_zero_in_one_batch_is_judged() -> None:
    a = [record([0.0, 0.1, 0.1, 0.1]), *repeats()]
    assert only(beside(a, repeats(1.3)), "batch_time").verdict is ChangeVerdict.WORSE


def test_a_number_that_is_none_any_more_is_worse() -> None:
    found = beside([record(**clock(0.1, 0.2))], [record(**clock(NAN, NAN))])
    change = only(found, "time_tie")
    assert (change.verdict, found.exit) == (ChangeVerdict.WORSE, Exit.REGRESSION)
    assert "to no number" in format.text(found)
    assert "none of 2 values in B is a finite number" in format.sentence(change)
    assert json.loads(format.as_json(found))["changes"][0]["b"] is None


@pytest.mark.parametrize(
    ("good", "odd", "expected"),
    [(0, 1, ChangeVerdict.WORSE), (8, 1, ChangeVerdict.UNDECIDED), (8, 2, ChangeVerdict.WORSE)],
)
def test_a_loss_that_is_no_number_any_more_is_worse(good: int, odd: int, expected: ChangeVerdict) -> None:
    b = [record()] * good + [record(series={"loss": [3.0, NAN, NAN]})] * odd
    change = only(beside([record()], b), "loss")
    assert change.verdict is expected
    assert f"from batch 1 on no finite number, in {odd} of {good + odd} repeats of B" in change.why


def test_what_failed_left_no_metrics_and_that_is_told_once() -> None:
    found = beside([record()], [record(outcome=Outcome.FAILED, metrics={}, series={}, reason="why")])
    assert (found.lost, found.notes) == ((), ())


@pytest.mark.parametrize(
    ("b", "expected"),
    [
        (LOSS, ChangeVerdict.SAME),
        ([3.0, 2.5, 2.25 * (1 + 1e-7)], ChangeVerdict.SAME),
        ([3.0, 2.6, 2.35], ChangeVerdict.WORSE),
        ([3.0, 2.4, 2.15], ChangeVerdict.CHANGED),
    ],
)
def test_a_seed_trains_one_network(b: list[float], expected: ChangeVerdict) -> None:
    change = only(beside([record()], [record(series={"loss": b})]), "loss")
    assert change.verdict is expected
    assert "from batch 1 on" in change.why or expected is ChangeVerdict.SAME


def test_an_end_that_is_undecided_decides_nothing() -> None:
    cancelled = record(outcome=Outcome.CANCELLED, metrics={}, series={}, reason="why")
    assert beside([record()], [cancelled]).exit is Exit.NOT_COMPARABLE


@pytest.mark.parametrize(
    ("a", "b", "verdict", "status"),
    [
        (["ok"], ["failed"], ChangeVerdict.WORSE, Exit.REGRESSION),
        (["ok"] * 9, ["ok"] * 8 + ["failed"], ChangeVerdict.UNDECIDED, Exit.OK),
        (["ok"] * 9, ["ok"] * 7 + ["failed"] * 2, ChangeVerdict.WORSE, Exit.REGRESSION),
        (["ok"], ["cancelled"], ChangeVerdict.UNDECIDED, Exit.OK),
        (["failed"], ["ok"], ChangeVerdict.BETTER, Exit.OK),
        (["ok", "failed"], ["failed"], ChangeVerdict.WORSE, Exit.REGRESSION),
        (["ok", "failed"], ["cancelled"], ChangeVerdict.CHANGED, Exit.OK),
        (["failed"], ["timeout"], ChangeVerdict.CHANGED, Exit.OK),
    ],
)
def test_outcomes_change_by_name(a: list[str], b: list[str], verdict: ChangeVerdict, status: Exit) -> None:
    ours, theirs = ([record(outcome=Outcome(kind), reason="why") for kind in side] for side in (a, b))
    found = beside(ours, theirs)
    [ended] = found.ended
    assert (ended.verdict, found.exit) == (verdict, status)
    assert "single · axonn 2x1" in "\n".join(format.ended(found))


def test_nothing_comparable_has_a_status_of_its_own_and_names_the_key() -> None:
    found = beside([record()], [record(config={"seed": 7})])
    assert found.exit is Exit.NOT_COMPARABLE
    assert "not comparable: single · axonn 2x1: seed 0 -> 7" in format.text(found)


def test_metrics_may_be_chosen_and_unknown_ones_are_refused() -> None:
    found = beside(repeats(), repeats(1.1), ChangeRule(metrics=("peak_memory",)))
    assert [change.metric for change in found.changes] == ["peak_memory"]
    with pytest.raises(InvalidRequest, match=r"no run has a metric speed; rule: one of batch_time, loss"):
        beside(repeats(), repeats(), ChangeRule(metrics=("speed",)))


def test_a_slow_machine_is_told_from_slow_code_by_its_reference() -> None:
    """Everything takes up to 1.6 times as long, the reference too; both ways are shown."""
    slow = [1 + 0.1 * (n % 4) for n in range(8)]
    a = [record([0.1 * f] * 4) for f in slow]
    b = [record([0.1 * f * 1.3] * 4) for f in slow]
    found = beside(a, b, slow=(slow, [1.3 * f for f in slow]))
    change = only(found, "batch_time")
    assert change.scaled
    assert change.verdict is ChangeVerdict.SAME
    assert change.ratio == pytest.approx(1.0)
    assert change.other == pytest.approx(1.3)
    assert not only(beside(a, b, ChangeRule(scale=False), (slow, slow)), "batch_time").scaled


def test_a_reference_that_tells_nothing_is_not_used() -> None:
    found = beside(repeats(), repeats(), slow=([1, 3, 2, 5, 1, 4, 2, 3], [2, 1, 4, 1, 3, 2, 5, 1]))
    assert not only(found, "batch_time").scaled


def test_nothing_times_nothing_is_no_ratio() -> None:
    empty = [record(metrics={"time_tie": Metric("s", "lower", (0.0, value))}) for value in (0.0, 1.0, math.nan)]
    assert beside(empty, empty).of(ChangeVerdict.WORSE, ChangeVerdict.BETTER) == ()


# -- the command line -----------------------------------------------------------------------------------------------


def test_folders_files_and_nights_are_sets(tmp_path: Path) -> None:
    path = stored(tmp_path / "reports", record())
    for name in (tmp_path / "reports", tmp_path / "reports" / "records", path):
        assert len(record_sets.read(str(name)).found) == 1
    night = tmp_path / "nights" / "2026-11-22"
    for number in range(3):
        folder = night / "repeats" / f"{number:02d}" / "0"
        stored(folder, record())
        if number < 2:  # the third was ended before its time
            told = {"before": {"products/1": 1.0}, "after": {"products/1": 4.0}}
            (folder / record_sets.DONE).write_text(json.dumps(told))
    found = record_sets.read("2026-11-22", tmp_path / "nights")
    assert [sample.reference for sample in found.found] == [{"products/1": 2.0}] * 2
    with pytest.raises(InvalidRequest, match=r"legal: .*2026-11-22"):
        record_sets.read("2026-11-23", tmp_path / "nights")


def test_a_damaged_file_costs_itself(tmp_path: Path) -> None:
    stored(tmp_path, record())
    (tmp_path / "records" / "x.json").write_text("{")
    (tmp_path / "records" / "y.json").write_bytes(b"\xff")
    found = record_sets.read(str(tmp_path))
    assert (len(found.found), len(found.aside)) == (1, 2)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"experiment": "x"}, "config.experiment is str; rule: a mapping"),
        ({"launch": None}, "config.launch is NoneType"),
        ({"launch": ["x"]}, "config.launch is list"),
        ({"deep": functools.reduce(lambda inner, _: {"x": inner}, range(200), {})}, "config is nested deeper than 40"),
    ],
)
def test_a_config_of_another_shape_is_set_aside(
    config: Given, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, record())
    data = json.loads(record().to_json()) | {"config": config}
    (tmp_path / "records" / "x.json").write_text(json.dumps(data))
    assert main([str(tmp_path), str(tmp_path)]) == Exit.OK
    assert f"x.json is set aside: {told}" in capsys.readouterr().out


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, factor in (("a", 1.0), ("b", 1.2)):
        for number, one in enumerate(repeats(factor)):
            stored(tmp_path / name / str(number), one)
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
