"""Derived numbers against hand computations from samples and spans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from suite.cli.run import execute
from suite.core.grid import Grid
from suite.core.op import Op
from suite.core.record import Metric, Outcome, Record, Source
from suite.core.trace import BACKWARD, EXCHANGE, FORWARD, WAIT, Span, Trace
from suite.report import derive, expectations, load, records
from suite.report.expectations import Expectation, Judgement
from suite.report.tables import record_tables
from suite.runner.progress import Progress
from tests.support.report_records import in_store, make, store, store_trace


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


def row_of(store: load.ReportStore, label: str) -> dict[str, object]:
    return records.frame(store).set_index("label").loc[label].to_dict()


def test_batch_time_and_what_follows_from_it():
    """The median is 0.5 s: 1024 tokens are 2048 tokens/s, 2 Gflop of 40 Gflop/s are 10 %."""
    row = row_of(in_store(make("pytorch 1x1", (0.4, 0.9, 0.5, float("nan")))), "pytorch 1x1")
    assert [row[f"batch_time_{name}"] for name in ("median", "min", "max", "n")] == [0.5, 0.4, 0.9, 3]
    names = ("tokens_per_second", "percent_of_peak", "flops_per_batch_recompute")
    assert [row[name] for name in names] == pytest.approx([2048, 10, 2.6e9])


def test_no_samples_are_nan_and_not_zero():
    row = row_of(in_store(make("a", ())), "a")
    rates = ("tokens_per_second", "percent_of_peak", "efficiency", "bubble_share")
    for name in ("batch_time_median", *rates, "memory_measured_peak"):
        assert math.isnan(row[name])


def test_efficiency_and_bubble_share(tmp_path):
    # forward 1 + 1, backward 2 + 2: 6 s without messages, 7 s with; the bubble is (2 - 1) * (1 + 2) s of those 7
    name = store_trace(tmp_path, "a", two_stages(), Grid(inter=2))
    store(tmp_path, make("a", trace=name))
    row = row_of(load.read_store(tmp_path), "a")
    assert (row["efficiency"], row["bubble_share"]) == pytest.approx((6 / 7, 3 / 7))


def test_an_exchange_of_rows_is_no_op_of_a_pipeline(tmp_path):
    spans = Trace([Span(0, EXCHANGE, 0.0, 2.0, bytes=8), Span(0, "product", 2.0, 3.0)])
    store(tmp_path, make("a", trace=store_trace(tmp_path, "a", spans, Grid(data=1))))
    assert math.isnan(row_of(load.read_store(tmp_path), "a")["efficiency"])


def test_memory_is_that_of_the_rank_that_holds_most():
    record = make("a", memory={"measured": {"weights": [10, 20], "scratch": [15, 1]}, "predicted": {"weights": [7]}})
    assert derive.memory_peak(record, "measured") == 25
    assert derive.memory_by_kind(record, "measured") == {"weights": 10, "scratch": 15}
    assert derive.memory_peak(record, "predicted") == 7


def test_loss_difference():
    for ours, theirs, difference in (
        ([1.0, 2.2, 3.0], [1.0, 2.0, 4.0], 0.25),
        ([1.0, 2.0], [1.0, 2.0, 9.0], 0.0),  # only batches that both ran
        ([1.0, math.nan], [1.0, 2.0], math.inf),
        ([0.5], [0.0], math.inf),
        ([0.0], [0.0], 0.0),
        ([], [1.0], math.nan),
    ):
        assert derive.loss_difference(ours, theirs) == pytest.approx(difference, nan_ok=True)


def test_the_difference_in_the_frame_is_to_the_named_reference():
    losses = {"pytorch 1x1": [4.0, 2.0], "axonn 2x1": [4.0, 2.5], "gpipe 2x1": [1.0, 1.0]}
    store = in_store(*(make(label, loss=loss) for label, loss in losses.items()))
    assert [row_of(store, label)["loss_difference"] for label in ("axonn 2x1", "pytorch 1x1")] == [0.25, 0]


def judged(row: Any, *runs: Record) -> Expectation:
    """The expectation judged on these runs."""
    [group] = derive.groups(in_store(*runs))
    return expectations.judge(group, row)


def test_labels_sort_by_number_and_the_reference_leads():
    [group] = derive.groups(in_store(*map(make, ("axonn 10x1", "axonn 2x1", "pytorch 1x1"))))
    assert [entry.record.label for entry in group.entries] == ["pytorch 1x1", "axonn 2x1", "axonn 10x1"]


def test_a_newer_record_supersedes_an_older_one():
    newer = make("a", (2.0,), key="x", provenance={"started": "2025-03-02T00:00:00+00:00"})
    store = in_store(newer, make("a", (1.0,), key="y"))
    [group] = derive.groups(store)
    assert [entry.record.key for entry in (*group.entries, *group.earlier)] == ["x", "y"]
    frame = records.frame(store).set_index("key")
    assert frame.current.to_dict() == {"x": True, "y": False}


RATIO = {"what": "", "kind": "ratio", "system": "axonn 2x1", "versus": "pytorch 1x1", "at_most": 0.56}
LOSS = {"what": "losses", "kind": "loss", "at_most": 1e-5}
PREDICTED = {"what": "", "kind": "prediction", "at_most": 0.05}
SHARE = {"what": "", "kind": "share", "system": "axonn 2x1", "of": ["compress_time", "expand_time"], "at_most": 0.1}
MET, NOT_MET, UNDECIDED, NOT_COMPARABLE = Judgement
SPREAD = (1.84, 2.07, 2.2, 2.9, 3.64)  # seconds of five rounds on a busy machine
CROWDED = "oversubscribed: 4 ranks on 2 cores"


def test_ratios_are_met_up_to_their_limit_and_no_further():
    """A limit inside the interval of rounds that differ by a factor of two decides nothing; exact times need none."""
    slow, busy = make("pytorch 1x1", (1.0,) * 4), make("pytorch 1x1", tuple(x / 0.562 for x in reversed(SPREAD)))
    exact = {"source": Source.SIMULATED}, {"source": Source.ANALYTIC}
    for limit, reference, ours, expected in (
        (0.8, slow, make("axonn 2x1", (0.8,) * 4), MET),
        (0.8, slow, make("axonn 2x1", (0.81,) * 4), NOT_MET),
        (0.56, busy, make("axonn 2x1", SPREAD), UNDECIDED),
        (1.2, busy, make("axonn 2x1", SPREAD), MET),
        (0.25, busy, make("axonn 2x1", SPREAD), NOT_MET),
        *(
            (0.56, make("pytorch 1x1", (1.0,), **source), make("axonn 2x1", (0.562,), **source), NOT_MET)
            for source in exact
        ),
    ):
        finding = judged(RATIO | {"at_most": limit}, reference, ours)
        assert finding.judgement is expected, (limit, expected)
        assert math.isnan(finding.low) is (ours.source is not Source.MEASURED)
    undecided = judged(RATIO, busy, make("axonn 2x1", SPREAD))
    assert undecided.ours == pytest.approx(0.562)
    assert undecided.low < 0.56 < undecided.high
    assert judged(RATIO, make("pytorch 1x1", (1.0, 2.0, 9.0)), make("axonn 2x1", (3.0, 1.0, 1.0))).ours == 0.5


def test_a_command_prints_a_line_for_each_expectation(monkeypatch, capsys):
    rows = [RATIO | {"what": "time", "at_most": 0.8}, LOSS, RATIO | {"system": "gone 2x1"}]
    records = [make("pytorch 1x1", (1.0,) * 4, loss=[2.0]), make("axonn 2x1", (0.5,) * 4, loss=[2.0])]
    records = [replace(each, config=each.config | {"experiment": {"expect": rows}}) for each in records]
    monkeypatch.setattr("suite.runner.interleave.measure", lambda runs, progress: records)
    assert execute([], Progress(1)) == records
    answer, first, *others = capsys.readouterr().err.splitlines()[2:]
    interval = "99 % interval 0.50 to 0.50"
    assert answer.startswith(f"  axonn 2x1 takes 0.50 of the batch time of pytorch 1x1: quicker ({interval}).")
    assert answer.endswith("Of the 3 expectations of this experiment, 1 is met.")
    assert first.split(": ") == ["  met          time", "0.5, at most 0.8"]
    assert [line.split()[:2] for line in others] == [["not", "comparable"], ["not", "comparable"]]
    assert others[-1].endswith(": gone 2x1: no record")


def test_few_rounds_decide_nothing_however_many_batches():
    """Batches of one round share its minute: three rounds of four batches are three repeats."""
    runs = [make(label, (seconds,) * 12) for label, seconds in (("pytorch 1x1", 1.0), ("axonn 2x1", 0.1))]
    finding = judged(RATIO, *(replace(run, config=run.config | {"measure": {"rounds": 3}}) for run in runs))
    assert (finding.judgement, finding.ours) == (UNDECIDED, 0.1)
    assert "3 rounds" in finding.why
    assert math.isnan(finding.low)


def test_runs_that_cannot_be_compared_have_a_reason():
    slow = make("pytorch 1x1", (1.0,) * 4, loss=[2.0], provenance={"turns": "a"})
    quick = make("axonn 2x1", (0.1,) * 4, loss=[2.0], provenance={"turns": "a"})
    crowded = {"batch_time": Metric("s", "lower", (0.1,), CROWDED)}
    for changes, why in (
        ({"outcome": Outcome.TIMEOUT}, "outcome timeout"),
        ({"metrics": crowded}, CROWDED),
        ({"metrics": {}}, "no batch times"),
        ({"label": "another"}, "no record"),
        ({"provenance": {"turns": "b"}}, "not interleaved"),
    ):
        finding = judged(RATIO, slow, replace(quick, **changes))
        assert (finding.judgement, why in finding.why) == (NOT_COMPARABLE, True), why
        assert math.isnan(finding.ours)
    assert judged(RATIO, slow, quick).judgement is MET
    apart = replace(quick, provenance={"turns": "b"})
    assert judged(LOSS, slow, apart).judgement is MET  # losses need no interleaved rounds


def test_an_expectation_that_is_none_is_not_comparable():
    itself = {"what": "", "kind": "ratio", "system": "pytorch 1x1", "versus": "pytorch 1x1", "at_most": 1}
    run = make("pytorch 1x1", loss=[1.0])
    assert judged(itself, run).judgement is MET
    for row in (None, [], *({**itself, "at_most": value} for value in (None, True, "1", 10**400)), {"kind": "speed"}):
        assert judged(row, run).judgement is NOT_COMPARABLE, row


def test_loss_expectation_without_system_is_the_worst_of_all():
    """Met only if every run of the experiment keeps it; a failed run leaves the verdict open."""
    runs = [make("pytorch 1x1", loss=[4.0, 2.0]), make("axonn 2x1", loss=[4.0, 2.0625])]
    assert judged(LOSS | {"at_most": 0.03125}, *runs).judgement is MET
    assert judged(LOSS | {"at_most": 0.03124}, *runs).judgement is NOT_MET
    named = LOSS | {"system": "axonn 2x1", "versus": "pytorch 1x1", "at_most": 0.03125}
    assert (judged(named, *runs).judgement, judged(named, *runs).ours) == (MET, 0.03125)
    assert judged(named | {"at_most": 0.03124}, *runs).judgement is NOT_MET
    runs.append(make("gpipe 2x1", loss=[4.0, 2.1]))
    finding = judged(LOSS, *runs)
    assert (finding.judgement, finding.ours) == (NOT_MET, pytest.approx(0.05))
    assert (finding.system, finding.versus) == ("every system", "pytorch 1x1")
    assert judged(LOSS, *runs, make("naive 2x1", loss=[4.0], outcome=Outcome.FAILED)).judgement is NOT_COMPARABLE


def predicted(label: str, times: tuple[float, ...], expected: float | None = 1.0, **changes: Any) -> Record:
    """A measured run of 100 counted bytes, with its simulation: `expected` seconds and 100 * `expected` bytes."""
    metrics = {"batch_time": Metric("s", "lower", times), "payload_bytes": Metric("B", "", (100.0,))}
    if expected is not None:
        metrics["simulated_time"] = Metric("s", "", (expected,))
        metrics["simulated_bytes"] = Metric("B", "", (100 * expected,))
    return make(label, times, metrics=metrics, **changes)


def test_prediction_without_system_is_the_worst_of_all():
    """Too slow or too quick counts alike. A noisy run is undecided, unless another misses."""
    near = predicted("gpipe 2x1", (1.04, 1.039, 1.041, 1.04, 1.04))
    noisy = predicted("axonn 2x1", (1.0, 1.03, 1.045, 1.2, 0.9))
    for runs, expected, ours in (
        ((near, predicted("axonn 2x1", (0.96,) * 4)), MET, 0.04),
        ((near, predicted("axonn 2x1", (0.94,) * 4)), NOT_MET, 0.06),
        ((near, noisy), UNDECIDED, 0.04),
        ((predicted("gpipe 2x1", (1.06,) * 5), noisy), NOT_MET, 0.06),
    ):
        finding = judged(PREDICTED, *runs)
        assert (finding.judgement, finding.ours) == (expected, pytest.approx(ours))
    finding = judged(PREDICTED, near, predicted("axonn 2x1", (0.94,) * 4))
    assert finding.system == "axonn 2x1"
    assert judged(PREDICTED | {"system": "gpipe 2x1"}, near, noisy).judgement is MET
    exact = PREDICTED | {"of": "payload_bytes", "at_most": 0.0}
    assert judged(exact, predicted("gpipe 2x1", (7.0,))).judgement is MET
    assert judged(exact, predicted("gpipe 2x1", (7.0,), 1.01)).judgement is NOT_MET


def test_a_prediction_that_cannot_be_judged_has_a_reason():
    for changes, row, why in (
        ({"expected": None}, {}, "no batch_time beside simulated_time"),
        ({"expected": None}, {"of": "payload_bytes"}, "no payload_bytes beside simulated_bytes"),
        ({"outcome": Outcome.TIMEOUT}, {}, "outcome timeout"),
        ({"times": ()}, {}, "no batch_time"),
        ({}, {"system": "axonn 4x1"}, "axonn 4x1: no record"),
        ({}, {"of": "loss"}, "batch_time, payload_bytes"),
    ):
        ours = predicted("axonn 2x1", **{"times": (1.0,), **changes})
        finding = judged(PREDICTED | row, predicted("gpipe 2x1", (1.0,)), ours)
        assert (finding.judgement, why in finding.why) == (NOT_COMPARABLE, True), why


def test_a_run_shows_its_prediction_beside_its_time():
    store = in_store(predicted("gpipe 2x1", (1.02,)), make("pytorch 1x1"))
    times = [row_of(store, label)["simulated_time"] for label in ("gpipe 2x1", "pytorch 1x1")]
    assert times == pytest.approx([1.0, math.nan], nan_ok=True)
    details = [cells[2].detail for cells in record_tables.systems(records.frame(store), "", {}).rows]
    assert ["1 s (+2.0 %)" in detail for detail in details] == [False, True]


def test_a_ratio_to_several_systems_is_one_to_the_quickest():
    """All of them must exist: without one, the fastest is unknown."""
    row = RATIO | {"versus": ["a 2x1", "b 2x1", "c 2x1"], "at_most": 0.7}
    ours, *others = (
        make("axonn 2x1", (1.0,) * 5),
        make("a 2x1", (4.0,) * 5),
        make("b 2x1", (2.0, 2.0, 1.9, 2.0, 2.1)),
        make("c 2x1", (3.0,) * 5),
    )
    finding = judged(row, ours, *others)
    assert (finding.ours, finding.versus.split(",")[0]) == (0.5, "b 2x1")
    for changes, expected in (
        ({}, MET),
        ({"at_most": 0.45}, NOT_MET),
        ({"at_most": 0.49}, UNDECIDED),
        ({"versus": []}, NOT_COMPARABLE),
        ({"versus": ["a 2x1", 3]}, NOT_COMPARABLE),
        ({"kind": "loss"}, NOT_COMPARABLE),
        ({"versus": ["a 2x1", "d 2x1"]}, NOT_COMPARABLE),
    ):
        assert judged(row | changes, ours, *others).judgement is expected, changes
    finding = judged(row, ours, others[0], make("b 2x1", (2.0,), outcome=Outcome.TIMEOUT), others[2])
    assert (finding.judgement, finding.why) == (NOT_COMPARABLE, "b 2x1: outcome timeout")


def test_quickest_is_quicker_than_every_other_by_its_rounds():
    """Medians of 1.0, 1.1 and 2.0 s: badges need rounds that overlap little, of one command and of one source."""
    clear, near, far = (make(f"{name} 2x1", (time,) * 5) for name, time in (("a", 1.0), ("b", 1.1), ("c", 2.0)))
    noisy = make("b 2x1", (0.5, 3.0, 1.1, 1.1, 0.5))
    simulated = [replace(one, source=Source.SIMULATED) for one in (near, far)]
    for runs, expected in (
        ([clear, near, far], clear),
        ([clear, noisy, far], None),
        ([noisy, far], None),
        ([clear], None),
        ([clear, make("b 2x1", (1.0,) * 5)], None),
        ([make("a 2x1", (1.0,) * 3), far], None),
        ([clear, replace(near, provenance={**near.provenance, "turns": "1"})], None),
        ([clear, simulated[0]], None),
        (simulated, simulated[0]),
        ([clear, make("b 2x1", (0.5,) * 5, outcome=Outcome.FAILED), far], clear),
    ):
        found = expectations.quickest(in_store(*runs).entries)
        assert (found and found.record) == expected, [one.label for one in runs]


@pytest.mark.parametrize(("foreign", "shown"), [(0.2, False), (1.3, True), (None, False)])
def test_runs_beside_other_programs_are_marked(foreign: float | None, shown: bool):
    record = make("a 2x1")
    record.provenance["load"] = {"cores": 2} | ({} if foreign is None else {"foreign": foreign})
    [row] = record_tables.systems(records.frame(in_store(record)), "", {}).rows
    assert ("other programs used 1.3 of 2 cores" in row[2].detail) is shown


def compressing(compress: Sequence[float], expand: Sequence[float], **changes: Any) -> Record:
    """A run whose batches take 1 s, in the median, and these seconds of compressing and expanding."""
    phases = {"batch_time": (0.99, 1.0, 1.01, 1.0, 1.0), "compress_time": compress, "expand_time": expand}
    metrics = {name: Metric("s", "lower", tuple(times)) for name, times in phases.items() if times}
    return replace(make("axonn 2x1", (0.0,) * 5), metrics=metrics | changes.pop("more", {}), **changes)


def test_share_adds_all_times_of_the_median_batch():
    held = {name: Metric("B", "lower", (size,)) for name, size in (("ours", 3.0), ("theirs", 4.0))}
    run = compressing((0.06, 0.06, 0.06, 0.06, 0.061), (0.04,) * 5, more=held)
    of_bytes = {"of": ["ours"], "over": ["theirs"]}
    of_times = {"of": ["compress_time"], "over": ["expand_time", "compress_time"], "at_most": 0.7}
    for changes, expected, ours in (
        ({}, UNDECIDED, 0.1),  # exactly at the limit, with some noise
        ({"at_most": 0.11}, MET, 0.1),
        ({"at_most": 0.09}, NOT_MET, 0.1),
        ({"of": ["expand_time"]}, MET, 0.04),
        (of_bytes | {"at_most": 0.75}, MET, 0.75),
        (of_bytes | {"at_most": 0.74}, NOT_MET, 0.75),
        (of_times, MET, 0.6),
    ):
        finding = judged(SHARE | changes, run)
        assert (finding.judgement, finding.ours) == (expected, pytest.approx(ours)), changes
    assert judged(SHARE | of_times, run).versus == "expand_time + compress_time"


def test_a_share_that_cannot_be_judged_has_a_reason():
    for changes, row, why in (
        ({"expand": ()}, {}, "expand_time"),
        ({"expand": (math.nan,)}, {}, "no times"),
        ({"more": {"batch_time": Metric("s", "lower", ())}}, {}, "no times"),
        ({"more": {"batch_time": Metric("s", "lower", (1.0,), CROWDED)}}, {}, CROWDED),
        ({}, {"of": ["flops"]}, "no seconds of flops"),
        ({"more": {"peak": Metric("B", "", (1.0,))}}, {"of": ["peak"]}, "no seconds of peak"),
        ({}, {"over": ["flops"]}, "no seconds of flops"),
        ({}, {"over": []}, "expect.over=[]"),
        ({}, {"of": []}, "expect.of=[]"),
        ({"outcome": Outcome.OOM}, {}, "outcome oom"),
        ({}, {"system": "axonn 4x1"}, "axonn 4x1: no record"),
    ):
        finding = judged(SHARE | row, compressing(**{"compress": (0.01,), "expand": (0.01,), **changes}))
        assert (finding.judgement, why in finding.why) == (NOT_COMPARABLE, True), why


def test_an_answer_says_who_is_quicker_and_whether_losses_agree():
    for times, losses, words in (
        (
            (0.5,) * 4,
            [2.0, 1.0],
            ("takes 0.50 of the batch time of pytorch 1x1: quicker (", "are equal"),
        ),
        ((2.0,) * 4, [2.0 + 2e-6, 1.0], ("pytorch 1x1: slower (", "agree to 6 digits")),
        ((0.9, 1.1, 0.9, 1.1), [2.2, 1.0], ("not certain",)),
        ((0.5,), [2.0], ("1 round decides nothing",)),
    ):
        plan = {"expect": [RATIO | {"at_most": 1.0}, LOSS], "reference": "pytorch 1x1"}
        records = [make("pytorch 1x1", (1.0,) * 4, loss=[2.0, 1.0]), make("axonn 2x1", times, loss=losses)]
        records = [replace(each, config=each.config | {"experiment": plan}) for each in records]
        [group] = derive.groups(in_store(*records))
        said = expectations.answer(group, expectations.findings(group))
        assert all(word in said for word in words), said
        assert ("agree" in said or "are equal" in said) is (losses[0] < 2.1)
