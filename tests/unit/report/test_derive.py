"""Derived numbers against hand computations from samples and spans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.core.grid import Grid
from suite.core.op import Op
from suite.core.record import Metric, Outcome, Source
from suite.core.trace import BACKWARD, EXCHANGE, FORWARD, WAIT, Span, Trace
from suite.report import derive, expectations, load, records
from suite.report.expectations import Judgement
from suite.report.tables import record_tables


def two_stages() -> Trace:
    """One microbatch over two stages; messages take half a second each."""
    trace = Trace()
    trace.add(0, FORWARD, 100.0, 101.0, Op.parse("0F0"))
    trace.add(0, WAIT, 101.0, 105.0, Op.parse("0B0"))
    trace.add(0, BACKWARD, 105.0, 107.0, Op.parse("0B0"))
    trace.add(1, WAIT, 100.0, 101.5, Op.parse("1F0"))
    trace.add(1, FORWARD, 101.5, 102.5, Op.parse("1F0"))
    trace.add(1, BACKWARD, 102.5, 104.5, Op.parse("1B0"))
    return trace


def row_of(folder: Path, label: str) -> dict[str, object]:
    frame = records.frame(load.read_store(folder))
    return frame.set_index("label").loc[label].to_dict()


def test_batch_time_and_what_follows_from_it(tmp_path, make, store):
    # median 0.5 s: 1024 tokens are 2048 tokens/s, 2 Gflop of 40 Gflop/s are 10 %
    store(tmp_path, make("pytorch 1x1", (0.4, 0.9, 0.5, float("nan"))))
    row = row_of(tmp_path, "pytorch 1x1")
    assert [row[f"batch_time_{name}"] for name in ("median", "min", "max", "n")] == [0.5, 0.4, 0.9, 3]
    assert row["tokens_per_second"] == 2048
    assert row["percent_of_peak"] == pytest.approx(10)
    assert row["flops_per_batch_recompute"] == 2.6e9


def test_the_median_of_an_even_number_lies_between(make):
    assert derive.samples(make("a", (4.0, 1.0, 3.0, 2.0)), "batch_time").median == 2.5


def test_no_samples_are_nan_and_not_zero(make):
    row = derive.derive(load.StoredRecord(make("a", ()), "a.json"), None)
    for name in ("batch_time_median", "tokens_per_second", "percent_of_peak", "efficiency", "bubble_share"):
        assert math.isnan(getattr(row, name))
    assert math.isnan(row.memory_measured_peak)


def test_efficiency_and_bubble_share(tmp_path, make, store, store_trace):
    # forward 1 + 1, backward 2 + 2: 6 s without messages, 7 s with; the bubble is (2 - 1) * (1 + 2) s of those 7
    name = store_trace(tmp_path, "a", two_stages(), Grid(inter=2))
    store(tmp_path, make("a", trace=name))
    row = row_of(tmp_path, "a")
    assert row["efficiency"] == pytest.approx(6 / 7)
    assert row["bubble_share"] == pytest.approx(3 / 7)


def test_an_exchange_of_rows_is_no_op_of_a_pipeline(tmp_path, make, store, store_trace):
    spans = Trace([Span(0, EXCHANGE, 0.0, 2.0, bytes=8), Span(0, "product", 2.0, 3.0)])
    store(tmp_path, make("a", trace=store_trace(tmp_path, "a", spans, Grid(data=1))))
    assert math.isnan(row_of(tmp_path, "a")["efficiency"])


def test_memory_is_that_of_the_rank_that_holds_most(make):
    record = make("a", memory={"measured": {"weights": [10, 20], "scratch": [15, 1]}, "predicted": {"weights": [7]}})
    assert derive.memory_peak(record, "measured") == 25
    assert derive.memory_by_kind(record, "measured") == {"weights": 10, "scratch": 15}
    assert derive.memory_peak(record, "predicted") == 7


@pytest.mark.parametrize(
    ("ours", "theirs", "difference"),
    [
        ([1.0, 2.2, 3.0], [1.0, 2.0, 4.0], 0.25),
        ([1.0, 2.0], [1.0, 2.0, 9.0], 0.0),  # only batches that both ran
        ([1.0, float("nan")], [1.0, 2.0], math.inf),
        ([0.5], [0.0], math.inf),
        ([0.0], [0.0], 0.0),
    ],
)
def test_loss_difference(ours, theirs, difference):
    assert derive.loss_difference(ours, theirs) == pytest.approx(difference)


def test_no_common_batch_has_no_difference():
    assert math.isnan(derive.loss_difference([], [1.0]))


def test_the_difference_in_the_frame_is_to_the_named_reference(tmp_path, make, store):
    store(tmp_path, make("pytorch 1x1", loss=[4.0, 2.0]))
    store(tmp_path, make("axonn 2x1", loss=[4.0, 2.5]))
    store(tmp_path, make("gpipe 2x1", loss=[1.0, 1.0]))
    assert row_of(tmp_path, "axonn 2x1")["loss_difference"] == 0.25
    assert row_of(tmp_path, "pytorch 1x1")["loss_difference"] == 0


def group_of(tmp_path: Path) -> derive.ExperimentGroup:
    return derive.groups(load.read_store(tmp_path))[0]


def test_labels_sort_by_number_and_the_reference_leads(tmp_path, make, store):
    for label in ("axonn 10x1", "axonn 2x1", "pytorch 1x1"):
        store(tmp_path, make(label))
    labels = [entry.record.label for entry in group_of(tmp_path).entries]
    assert labels == ["pytorch 1x1", "axonn 2x1", "axonn 10x1"]


def test_a_newer_record_supersedes_an_older_one(tmp_path, make, store):
    newer = make("a", (2.0,), key="x", provenance={"started": "2025-03-02T00:00:00+00:00"})
    store(tmp_path, newer)
    store(tmp_path, make("a", (1.0,), key="y"))
    group = group_of(tmp_path)
    assert [entry.record.key for entry in group.entries] == ["x"]
    assert [entry.record.key for entry in group.earlier] == ["y"]
    frame = records.frame(load.read_store(tmp_path)).set_index("key")
    assert frame.current.to_dict() == {"x": True, "y": False}


def verdicts(tmp_path: Path) -> list[tuple[str, Judgement]]:
    return [(finding.kind, finding.judgement) for finding in expectations.findings(group_of(tmp_path))]


def test_expectations_are_met_up_to_their_target_and_no_further(tmp_path, make, store):
    store(tmp_path, make("pytorch 1x1", (1.0,) * 4, loss=[2.0]))
    store(tmp_path, make("axonn 2x1", (0.8,) * 4, loss=[2.0 + 1e-5]))
    assert verdicts(tmp_path)[:2] == [("ratio", Judgement.MET), ("loss", Judgement.MET)]
    store(tmp_path, make("axonn 2x1", (0.81,) * 4, loss=[2.0 + 4e-5]))
    assert verdicts(tmp_path)[:2] == [("ratio", Judgement.NOT_MET), ("loss", Judgement.NOT_MET)]


SPREAD = (1.84, 2.07, 2.2, 2.9, 3.64)  # seconds of five rounds on a busy machine


def test_limit_inside_the_interval_is_undecided(tmp_path, make, store):
    """0.562 for at most 0.56, from rounds that differ by a factor of two, decides nothing."""
    row = {"kind": "ratio", "system": "axonn 2x1", "versus": "pytorch 1x1", "at_most": 0.56}
    store(tmp_path, make("pytorch 1x1", tuple(x / 0.562 for x in reversed(SPREAD))))
    store(tmp_path, make("axonn 2x1", SPREAD))
    finding = expectations.judge(group_of(tmp_path), row)
    assert finding.ours == pytest.approx(0.562)
    assert finding.judgement is Judgement.UNDECIDED
    assert finding.low < 0.56 < finding.high
    assert "spans 0.56" in finding.why
    wide = {**row, "at_most": 1.2}
    assert expectations.judge(group_of(tmp_path), wide).judgement is Judgement.MET
    assert expectations.judge(group_of(tmp_path), {**row, "at_most": 0.25}).judgement is Judgement.NOT_MET


def test_few_rounds_decide_nothing_however_many_batches(tmp_path, make, store):
    """Batches of one round share its minute: three rounds of four batches are three repeats."""
    row = {"kind": "ratio", "system": "axonn 2x1", "versus": "pytorch 1x1", "at_most": 0.56}
    for label, seconds in (("pytorch 1x1", 1.0), ("axonn 2x1", 0.1)):
        base = make(label, (seconds,) * 12)
        store(tmp_path, replace(base, config=base.config | {"measure": {"rounds": 3}}))
    finding = expectations.judge(group_of(tmp_path), row)
    assert (finding.judgement, finding.ours) == (Judgement.UNDECIDED, 0.1)
    assert "3 rounds decide nothing" in finding.why
    assert math.isnan(finding.low)


@pytest.mark.parametrize("source", [Source.SIMULATED, Source.ANALYTIC])
def test_exact_times_are_met_or_not(tmp_path, make, store, source):
    row = {"kind": "ratio", "system": "axonn 2x1", "versus": "pytorch 1x1", "at_most": 0.56}
    store(tmp_path, make("pytorch 1x1", (1.0,), source=source))
    store(tmp_path, make("axonn 2x1", (0.562,), source=source))
    finding = expectations.judge(group_of(tmp_path), row)
    assert finding.judgement is Judgement.NOT_MET
    assert math.isnan(finding.low)


def test_ours_is_the_ratio_of_medians(tmp_path, make, store):
    store(tmp_path, make("pytorch 1x1", (1.0, 2.0, 9.0)))
    store(tmp_path, make("axonn 2x1", (3.0, 1.0, 1.0)))
    assert expectations.findings(group_of(tmp_path))[0].ours == 0.5


def test_runs_that_were_not_interleaved_have_no_ratio(tmp_path, make, store):
    store(tmp_path, make("pytorch 1x1", (1.0,) * 4, loss=[2.0], provenance={"turns": "a"}))
    store(tmp_path, make("axonn 2x1", (0.5,) * 4, loss=[2.0], provenance={"turns": "b"}))
    first = expectations.findings(group_of(tmp_path))[0]
    assert first.judgement is Judgement.NOT_COMPARABLE
    assert "were not interleaved" in first.why
    assert verdicts(tmp_path)[1] == ("loss", Judgement.MET)  # losses need no turns
    store(tmp_path, make("axonn 2x1", (0.5,) * 4, loss=[2.0], provenance={"turns": "a"}))
    assert verdicts(tmp_path)[0] == ("ratio", Judgement.MET)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"outcome": Outcome.TIMEOUT}, "outcome timeout"),
        (
            {"metrics": {"batch_time": Metric("s", "lower", (0.1,), "oversubscribed: 4 ranks on 2 cores")}},
            "oversubscribed: 4 ranks on 2 cores",
        ),
        ({"metrics": {}}, "no batch times"),
        ({"label": "another"}, "no record"),
    ],
)
def test_what_cannot_be_compared_says_why(tmp_path, make, store, changes, why):
    store(tmp_path, make("pytorch 1x1", (1.0,)))
    store(tmp_path, replace(make("axonn 2x1", (0.1,)), **changes))
    finding = expectations.findings(group_of(tmp_path))[0]
    assert finding.judgement is Judgement.NOT_COMPARABLE
    assert why in finding.why
    assert math.isnan(finding.ours)


ITSELF = {"kind": "ratio", "system": "pytorch 1x1", "versus": "pytorch 1x1", "at_most": 1}


@pytest.mark.parametrize(
    "row",
    [None, [], *({**ITSELF, "at_most": value} for value in (None, True, "1", 10**400)), {**ITSELF, "kind": "speed"}],
)
def test_an_expectation_that_is_none_is_not_comparable(tmp_path, make, store, row):
    store(tmp_path, make("pytorch 1x1", loss=[1.0]))
    group = group_of(tmp_path)
    assert expectations.judge(group, ITSELF).judgement is Judgement.MET
    assert expectations.judge(group, row).judgement is Judgement.NOT_COMPARABLE


def test_loss_expectation_without_system_is_the_worst_of_all(tmp_path, make, store):
    """Met only if every run of the experiment keeps it; a failed run leaves the verdict open."""
    row = {"what": "losses", "kind": "loss", "at_most": 1e-5}
    store(tmp_path, make("pytorch 1x1", loss=[4.0, 2.0]))
    store(tmp_path, make("axonn 2x1", loss=[4.0, 2.0]))
    assert expectations.judge(group_of(tmp_path), row).judgement is Judgement.MET
    store(tmp_path, make("gpipe 2x1", loss=[4.0, 2.1]))
    finding = expectations.judge(group_of(tmp_path), row)
    assert finding.judgement is Judgement.NOT_MET
    assert finding.ours == pytest.approx(0.05)
    assert (finding.system, finding.versus) == ("every system", "pytorch 1x1")
    store(tmp_path, make("naive 2x1", loss=[4.0], outcome=Outcome.FAILED))
    assert expectations.judge(group_of(tmp_path), row).judgement is Judgement.NOT_COMPARABLE


PREDICTED = {"what": "", "kind": "prediction", "at_most": 0.05}


def predicted(make: Any, label: str, times: tuple[float, ...], expected: float | None, **changes: Any) -> Any:
    """A measured run of 100 counted bytes, with its simulation: `expected` seconds and 100 * `expected` bytes."""
    metrics = {"batch_time": Metric("s", "lower", times), "payload_bytes": Metric("B", "", (100.0,))}
    if expected is not None:
        metrics |= {
            "simulated_time": Metric("s", "", (expected,)),
            "simulated_bytes": Metric("B", "", (100 * expected,)),
        }
    return make(label, times, metrics=metrics, **changes)


def test_prediction_without_system_is_the_worst_of_all(tmp_path, make, store):
    store(tmp_path, predicted(make, "gpipe 2x1", (1.04, 1.039, 1.041, 1.04, 1.04), 1.0))
    store(tmp_path, predicted(make, "axonn 2x1", (0.96,) * 4, 1.0))
    finding = expectations.judge(group_of(tmp_path), PREDICTED)
    assert finding.judgement is Judgement.MET
    assert finding.ours == pytest.approx(0.04)  # of the medians, too slow or too quick
    store(tmp_path, predicted(make, "axonn 2x1", (0.94,) * 4, 1.0))
    finding = expectations.judge(group_of(tmp_path), PREDICTED)
    assert (finding.judgement, finding.ours) == (Judgement.NOT_MET, pytest.approx(0.06))
    assert (finding.system, finding.versus) == ("axonn 2x1", "its simulation, worst of 2")
    finding = expectations.judge(group_of(tmp_path), {**PREDICTED, "system": "gpipe 2x1"})
    assert (finding.judgement, finding.versus) == (Judgement.MET, "its simulation")


def test_a_noisy_prediction_is_undecided(tmp_path, make, store):
    """One run of two is steady and within 5 percent, the other may be within or not."""
    store(tmp_path, predicted(make, "gpipe 2x1", (1.04,) * 5, 1.0))
    store(tmp_path, predicted(make, "axonn 2x1", (1.0, 1.03, 1.045, 1.2, 0.9), 1.0))
    finding = expectations.judge(group_of(tmp_path), PREDICTED)
    assert (finding.judgement, finding.ours) == (Judgement.UNDECIDED, pytest.approx(0.04))
    store(tmp_path, predicted(make, "gpipe 2x1", (1.06,) * 5, 1.0))
    assert expectations.judge(group_of(tmp_path), PREDICTED).judgement is Judgement.NOT_MET, "whatever the other is"


def test_a_prediction_may_be_of_bytes_and_then_exact(tmp_path, make, store):
    row = {**PREDICTED, "of": "payload_bytes", "at_most": 0.0}
    store(tmp_path, predicted(make, "gpipe 2x1", (7.0,), 1.0))
    finding = expectations.judge(group_of(tmp_path), row)
    assert (finding.judgement, finding.ours) == (Judgement.MET, 0.0)
    store(tmp_path, predicted(make, "gpipe 2x1", (7.0,), 1.01))
    assert expectations.judge(group_of(tmp_path), row).judgement is Judgement.NOT_MET


@pytest.mark.parametrize(
    ("changes", "row", "why"),
    [
        ({"expected": None}, {}, "axonn 2x1: no batch_time beside simulated_time"),
        ({"expected": None}, {"of": "payload_bytes"}, "axonn 2x1: no payload_bytes beside simulated_bytes"),
        ({"outcome": Outcome.TIMEOUT}, {}, "axonn 2x1: outcome timeout"),
        ({"times": ()}, {}, "axonn 2x1: no batch_time beside simulated_time"),
        ({}, {"system": "axonn 4x1"}, "axonn 4x1: no record"),
        ({}, {"of": "loss"}, "expect.of=loss; rule: one of batch_time, payload_bytes; legal: of=batch_time"),
    ],
)
def test_a_prediction_that_cannot_be_judged_says_why(tmp_path, make, store, changes, row, why):
    store(tmp_path, predicted(make, "gpipe 2x1", (1.0,), 1.0))
    store(tmp_path, predicted(make, "axonn 2x1", **{"times": (1.0,), "expected": 1.0, **changes}))
    finding = expectations.judge(group_of(tmp_path), {**PREDICTED, **row})
    assert (finding.judgement, finding.why) == (Judgement.NOT_COMPARABLE, why)


def test_a_run_shows_its_prediction_beside_its_time(tmp_path, make, store):
    store(tmp_path, predicted(make, "gpipe 2x1", (1.02,), 1.0))
    store(tmp_path, make("pytorch 1x1"))
    assert row_of(tmp_path, "gpipe 2x1")["simulated_time"] == 1.0
    assert math.isnan(row_of(tmp_path, "pytorch 1x1")["simulated_time"])
    rows = [derive.derive(entry, None) for entry in group_of(tmp_path).entries]
    details = [cells[2].detail for cells in record_tables.systems(rows, "", {}).rows]
    assert [row.label for row in rows] == ["pytorch 1x1", "gpipe 2x1"]
    assert "simulated" not in details[0]
    assert details[1].endswith("simulated 1 s (+2.0 %)")


def test_a_ratio_to_several_systems_is_one_to_the_quickest(tmp_path, make, store):
    """All of them must exist: without one, the fastest is unknown."""
    row = {"what": "", "kind": "ratio", "system": "axonn 2x1", "versus": ["a 2x1", "b 2x1", "c 2x1"], "at_most": 0.7}
    for label, times in (
        ("axonn 2x1", (1.0,) * 5),
        ("a 2x1", (4.0,) * 5),
        ("b 2x1", (2.0, 2.0, 1.9, 2.0, 2.1)),
        ("c 2x1", (3.0,) * 5),
    ):
        store(tmp_path, make(label, times))
    finding = expectations.judge(group_of(tmp_path), row)
    assert (finding.ours, finding.versus) == (0.5, "b 2x1, the quickest of 3")
    assert finding.judgement is Judgement.MET
    assert expectations.judge(group_of(tmp_path), {**row, "at_most": 0.45}).judgement is Judgement.NOT_MET
    assert expectations.judge(group_of(tmp_path), {**row, "at_most": 0.49}).judgement is Judgement.UNDECIDED
    for broken in ({"versus": []}, {"versus": ["a 2x1", 3]}, {"kind": "loss"}, {"versus": ["a 2x1", "d 2x1"]}):
        assert expectations.judge(group_of(tmp_path), {**row, **broken}).judgement is Judgement.NOT_COMPARABLE
    store(tmp_path, make("b 2x1", (2.0,), outcome=Outcome.TIMEOUT))
    finding = expectations.judge(group_of(tmp_path), row)
    assert finding.judgement is Judgement.NOT_COMPARABLE
    assert finding.why == "b 2x1: outcome timeout"


SHARE = {"what": "", "kind": "share", "system": "axonn 2x1", "of": ["compress_time", "expand_time"], "at_most": 0.1}


CROWDED = "oversubscribed: 4 ranks on 2 cores"


def compressing(make: Any, compress: Sequence[float], expand: Sequence[float], **changes: Any) -> Any:
    """A run whose batches take 1 s, in the median, and these seconds of compressing and expanding."""
    phases = {"batch_time": (0.99, 1.0, 1.01, 1.0, 1.0), "compress_time": compress, "expand_time": expand}
    metrics = {name: Metric("s", "lower", tuple(times)) for name, times in phases.items() if times}
    record = make("axonn 2x1", (0.0,) * 5)
    return replace(record, metrics=metrics | changes.pop("more", {}), **changes)


def test_share_over_other_metrics_of_the_run(tmp_path, make, store):
    held = {name: Metric("B", "lower", (size,)) for name, size in (("ours", 3.0), ("theirs", 4.0))}
    store(tmp_path, compressing(make, (0.06, 0.06, 0.06, 0.06, 0.061), (0.04,) * 5, more=held))
    finding = expectations.judge(group_of(tmp_path), {**SHARE, "of": ["ours"], "over": ["theirs"], "at_most": 0.75})
    assert (finding.ours, finding.versus, finding.judgement) == (0.75, "theirs", Judgement.MET)
    finding = expectations.judge(group_of(tmp_path), {**SHARE, "of": ["ours"], "over": ["theirs"], "at_most": 0.74})
    assert finding.judgement is Judgement.NOT_MET
    times = {**SHARE, "of": ["compress_time"], "over": ["expand_time", "compress_time"], "at_most": 0.7}
    finding = expectations.judge(group_of(tmp_path), times)
    assert (finding.ours, finding.versus) == (pytest.approx(0.6), "expand_time + compress_time")
    assert finding.judgement is Judgement.MET
    assert finding.low < finding.high


def test_share_adds_all_times_of_the_median_batch(tmp_path, make, store):
    store(tmp_path, compressing(make, (0.06, 0.06, 0.06, 0.06, 0.061), (0.04,) * 5))
    finding = expectations.judge(group_of(tmp_path), SHARE)
    assert (finding.ours, finding.versus) == (pytest.approx(0.1), "its batch time")
    assert finding.judgement is Judgement.UNDECIDED, "exactly at the limit, with some noise"
    assert expectations.judge(group_of(tmp_path), {**SHARE, "at_most": 0.11}).judgement is Judgement.MET
    assert expectations.judge(group_of(tmp_path), {**SHARE, "at_most": 0.09}).judgement is Judgement.NOT_MET
    assert expectations.judge(group_of(tmp_path), {**SHARE, "of": ["expand_time"]}).ours == 0.04


@pytest.mark.parametrize(
    ("changes", "row", "why"),
    [
        ({"expand": ()}, {}, "axonn 2x1: no seconds of expand_time"),
        ({"expand": (math.nan,)}, {}, "axonn 2x1: no times"),
        ({"more": {"batch_time": Metric("s", "lower", ())}}, {}, "axonn 2x1: no times"),
        ({"more": {"batch_time": Metric("s", "lower", (1.0,), CROWDED)}}, {}, f"axonn 2x1: {CROWDED}"),
        ({}, {"of": ["flops"]}, "axonn 2x1: no seconds of flops"),
        ({"more": {"peak": Metric("B", "", (1.0,))}}, {"of": ["peak"]}, "axonn 2x1: no seconds of peak"),
        ({}, {"over": ["flops"]}, "axonn 2x1: no seconds of flops"),
        ({}, {"over": []}, "expect.over=[]; rule: at least one metric; legal: over=[update_time]"),
        ({}, {"of": []}, "expect.of=[]; rule: at least one metric; legal: of=[update_time]"),
        ({"outcome": Outcome.OOM}, {}, "axonn 2x1: outcome oom"),
        ({}, {"system": "axonn 4x1"}, "axonn 4x1: no record"),
    ],
)
def test_a_share_that_cannot_be_judged_says_why(tmp_path, make, store, changes, row, why):
    store(tmp_path, compressing(make, **{"compress": (0.01,), "expand": (0.01,), **changes}))
    finding = expectations.judge(group_of(tmp_path), {**SHARE, **row})
    assert (finding.judgement, finding.why) == (Judgement.NOT_COMPARABLE, why)
