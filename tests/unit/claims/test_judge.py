"""Verdicts worked out by hand, to the edge of every tolerance.

A judge that is generous by a digit, prefers the wrong record or hides a failed run would make every page a lie.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.claims import claim_text, judge
from suite.claims.claim import AnswerRow, Cases, Check, Claim, Evidence, Judged, Verdict
from suite.core.record import Metric, Outcome, Record, Source
from suite.report.load import ReportStore, StoredRecord

SOURCES = {  # of a record whose metric does not state its evidence
    Evidence.MEASURED: Source.MEASURED,
    Evidence.DERIVED: Source.ANALYTIC,
    Evidence.EMULATED: Source.EMULATED,
    Evidence.SIMULATED: Source.SIMULATED,
    Evidence.PRINTED: Source.ANALYTIC,
}
OTHER = "another graph"  # what differs on a stand-in
TURNED = ("a mutation",)  # without one a verdict is held back
MEASURED, DERIVED, EMULATED, SIMULATED, PRINTED = Evidence
AXONN, GPIPE = PAIR = ("axonn 2x1", "gpipe 2x1")
SEEDS = ("axonn seed *", "gpipe seed *")


def row(evidence: Evidence = DERIVED, **changes: Any) -> AnswerRow:
    fields = {"figure": "demo", "function": "suite.papers.demo.value", "turned_by": TURNED} | changes
    return AnswerRow(evidence, **fields)


def answered(claim: Claim, evidence: Evidence = DERIVED, **changes: Any) -> Claim:
    """`claim` with one answer, by a function."""
    return replace(claim, answers=(row(evidence, **changes),))


def of_runs(claim: Claim, labels: Sequence[str], metric: str = "batch_time", **changes: Any) -> Claim:
    """`claim` answered by measured runs of experiment demo."""
    fields = {"evidence": MEASURED, "turned_by": TURNED, "experiment": "demo"} | changes
    return replace(claim, answers=(AnswerRow(labels=tuple(labels), metric=metric, **fields),))


BASE = Claim("c.x", "axonn", "Table I", "batch_time", "axonn", 50.0, "second", "number", "cluster", answers=(row(),))
ENDS = replace(BASE, value=(10.0, 40.0), check=Check.ENDS, kind="range", terms=("least", "largest"))
ORDER = replace(BASE, value="a < b < c", kind="ordering", check=Check.RISES, terms=("a", "b", "c"))
EQUAL = replace(ORDER, check=Check.EQUAL)
FORMULA = replace(
    BASE,
    value="4*phi + 16*bsize",
    kind="formula",
    check=Check.FORMULA,
    expression="4*phi + 16*bsize",
    points=({"phi": 10.0, "bsize": 1.0}, {"phi": 20.0, "bsize": 3.0}, {"phi": 5.0, "bsize": 0.5}),
)
TWO = replace(BASE, value="a < b", kind="ordering", check=Check.LEAST, terms=("axonn", "gpipe"), reach="cpu")
QUICKER = of_runs(TWO, PAIR)
BY_SEED = of_runs(TWO, SEEDS, "perplexity")
BETWEEN_RUNS = of_runs(
    replace(BASE, unit="percent", reach="gpu"), PAIR, "", value="100 * (1 - batch_time_1 / batch_time_0)"
)
ACCURACY = of_runs(replace(BASE, unit="perplexity"), SEEDS[:1], "perplexity")


def entry(values: Sequence[float], source: Source = Source.ANALYTIC, name: str = "c.x", **changes: Any) -> StoredRecord:
    """A record with a value of claim `name`; file, machine and started name its entry and its time."""
    file, machine = changes.pop("file", "records/k.json"), changes.pop("machine", "")
    unit, evidence = changes.pop("unit", "second"), changes.pop("evidence", "")
    provenance = {"started": changes.pop("started", "2025-01-01"), "command": "suite run experiment=demo"}
    provenance["turns"] = changes.pop("turns", "one call")
    fed_by, null = tuple(changes.pop("fed_by", ())), tuple(changes.pop("null", ()))
    metric = Metric(unit, "lower", tuple(values), evidence=evidence, fed_by=fed_by, null=null)
    record = Record("k", "demo", "axonn", AXONN, Outcome.OK, source, provenance=provenance)
    record = replace(record, metrics={name: metric})
    return StoredRecord(replace(record, **changes), file, machine)


def stored_answer(claim: Claim, values: Sequence[float], evidence: Evidence, **changes: Any) -> StoredRecord:
    """A record that states this evidence for its value of `claim`."""
    fields = {"name": claim.id, "unit": claim.unit, "label": f"{claim.id} {evidence}"} | changes
    return entry(values, SOURCES[evidence], evidence=evidence.value, **fields)


def judge_all(claims: Sequence[Claim], *entries: StoredRecord) -> list[Judged]:
    return judge.judge(claims, ReportStore(Path("nowhere"), entries))


def judge_alone(claim: Claim, *entries: StoredRecord) -> Judged:
    (judged,) = judge_all([claim], *entries)
    assert judged.claim is claim
    return judged


def judge_values(claim: Claim, values: Sequence[float], *others: Claim, **changes: Any) -> Judged:
    """The verdict on these values, which came about as the claim's only answer says, among other claims."""
    (answer,) = claim.answers
    return judge_all([claim, *others], stored_answer(claim, values, answer.evidence, **changes))[0]


def verdict(claim: Claim, values: Sequence[float], **changes: Any) -> Verdict:
    return judge_values(claim, values, **changes).verdict


def run(
    label: str, times: Sequence[float] = (), note: str = "", loss: Sequence[float] = (), **changes: Any
) -> StoredRecord:
    """A measured run of experiment demo."""
    metrics = {"batch_time": Metric("s", "lower", tuple(times), note)}
    series = {"loss": list(loss)} if loss else {}
    fields = {"label": label, "metrics": metrics, "series": series, "file": f"records/{label}.json"} | changes
    return entry((), fields.pop("source", Source.MEASURED), **fields)


def timed(times: Sequence[Sequence[float]], rounds: int = 4, labels: Sequence[str] = PAIR, **changes: Any) -> Any:
    """A run of each label, in so many rounds."""
    config = {"measure": {"rounds": rounds}}
    return [run(label, each, config=config, **changes) for label, each in zip(labels, times, strict=True)]


def seeds(*values: Sequence[float]) -> list[StoredRecord]:
    """Runs of several seeds of axonn, and of gpipe."""
    return [
        run(f"{system} seed {number}", metrics={"perplexity": Metric("", "lower", (value - 1, value, value + 1))})
        for system, each in zip(("axonn", "gpipe"), values, strict=False)
        for number, value in enumerate(each)
    ]


# Numbers, ranges, orders, equalities, formulas

SPEEDUP = replace(BASE, value=1.5, neutral=1.0, unit="ratio", kind="ratio")
SAVED = replace(BASE, value=(13.0, math.inf), neutral=0.0, check=Check.RANGE, kind="range")
NEUTRAL_POINTS = [  # claim, values by place: inside, on the published side, outside
    (SPEEDUP, [1.5], [1.05, 9.0], [1.0, 0.9]),
    (SAVED, [13.0], [0.1], [0.0, -5.0]),
    (replace(BASE, value=-20.0, neutral=0.0), [-21.0], [-1.0], [1.0]),
    (replace(SAVED, value=(-1.0, 3.0)), [2.0], [], [3.1]),  # a range around the neutral point has no side
    (replace(SPEEDUP, value=1.0), [1.0], [], [9.0, -9.0]),  # a number on the neutral point has none either
    (replace(SAVED, value=(0.0, 4.0)), [0.0], [5.0], [-0.1]),
]


def test_a_trend_is_the_published_side_of_the_neutral_point() -> None:
    """Only a stand-in gains by the direction; elsewhere it is a note on a value that differs."""
    for claim, *places in NEUTRAL_POINTS:
        for place, value in ((place, value) for place, values in enumerate(places) for value in values):
            note = f"on the published side of {claim.neutral:g}" if place == 1 else ""
            for stand_in, holds, fails in (
                ("", Verdict.REPRODUCED, Verdict.DIFFERS),
                (OTHER, Verdict.TREND_ONLY, Verdict.TREND_ONLY if place == 1 else Verdict.DIFFERS_ON_STAND_IN),
            ):
                judged = judge_values(answered(claim, stand_in=stand_in), [value])
                assert (judged.verdict, judged.note) == (fails if place else holds, note), (claim, value)
    near = answered(replace(SPEEDUP, value=1.05), MEASURED, stand_in=OTHER)  # the tolerance includes the other side
    assert (verdict(near, [1.02]), verdict(near, [0.98])) == (Verdict.TREND_ONLY, Verdict.DIFFERS_ON_STAND_IN)


def hedged(claim: Claim, cases: Cases, hedge: str = "may") -> Claim:
    return replace(claim, cases=cases, hedge=hedge)


def test_reasons_name_the_values_that_were_compared() -> None:
    some_ends = hedged(replace(ENDS, tolerance=0.0), Cases.SOME)
    some_order = hedged(ORDER, Cases.SOME)
    for claim, values, parts in (
        (BASE, [50.0, 51.5], ["our 50, 51.5 lie in 50 ± 4"]),
        (BASE, [50.0, 60.0, 61.0], ["our 60 is outside 50 ± 4"]),
        (BASE, [50.0] * 3 + [47.0] + [52.0] * 3, ["7 values, 47 to 52", "50 ± 4"]),
        (SAVED, [12.0], ["our 12 is outside [13, inf]"]),
        (replace(ENDS, tolerance=0.08), [9.5, 30.0], ["largest = 30 is outside 40 ± 3.2"]),
        (some_ends, [10.0, 40.0, 1.0, 2.0], ["10 to 40, 1 to 2 are 10 and 40", "1 of 2 cases", "may"]),
        (ORDER, [1, 2, 3, 1, 5, 4, 9, 8, 7], ["case 2 of 3: b = 5", "c = 4"]),
        (some_order, [3, 2, 1, 1, 3, 2], ["case 1 of 2: a = 3", "b = 2"]),
        (hedged(BASE, Cases.MOST), [50.0, 60.0, 51.0], ["2 of 3 cases", "may"]),
        (FORMULA, [56, 129, 28], ["is 128 at phi = 20, bsize = 3, ours 129"]),
    ):
        why = judge_values(claim, values).why
        assert all(part in why for part in parts), (why, parts)
    assert "may" not in judge_values(hedged(ORDER, Cases.ALL), [1, 2, 3, 4, 5, 6]).why


# The rules, in their order

FITTED, RESTATED = "c.x", "Eq. (1)"
RULES = [
    # 2, before everything else
    (row(PRINTED), [], Verdict.CONSISTENT, Verdict.CONTRADICTED),
    (row(PRINTED, restates=RESTATED), [FITTED], Verdict.CONSISTENT, Verdict.CONTRADICTED),
    (row(PRINTED, stand_in=OTHER), [], Verdict.CONSISTENT, Verdict.CONTRADICTED),
    # 3, only where it holds
    (row(restates=RESTATED), [], Verdict.CONSISTENT, Verdict.DIFFERS),
    (row(MEASURED, restates=RESTATED), [], Verdict.CONSISTENT, Verdict.DIFFERS),
    (row(restates=RESTATED, stand_in=OTHER), [], Verdict.CONSISTENT, Verdict.DIFFERS_ON_STAND_IN),
    (row(SIMULATED, restates=RESTATED), [], Verdict.CONSISTENT, Verdict.NOT_MATCHED),
    (row(SIMULATED, restates=RESTATED), [FITTED], Verdict.CONSISTENT, Verdict.CALIBRATED_MISSED),
    # 4
    (row(SIMULATED), [FITTED], Verdict.CALIBRATED, Verdict.CALIBRATED_MISSED),
    (row(EMULATED), ["c.y", FITTED], Verdict.CALIBRATED, Verdict.CALIBRATED_MISSED),
    (row(), [FITTED], Verdict.CALIBRATED, Verdict.CALIBRATED_MISSED),
    (row(MEASURED, stand_in=OTHER), [FITTED], Verdict.CALIBRATED, Verdict.CALIBRATED_MISSED),
    # 5, also on a stand-in
    (row(SIMULATED), [], Verdict.MATCHED, Verdict.NOT_MATCHED),
    (row(EMULATED), [], Verdict.MATCHED, Verdict.NOT_MATCHED),
    (row(SIMULATED, stand_in=OTHER), [], Verdict.MATCHED, Verdict.NOT_MATCHED),
    # 6
    (row(MEASURED, stand_in=OTHER), [], Verdict.TREND_ONLY, Verdict.DIFFERS_ON_STAND_IN),
    (row(stand_in=OTHER), [], Verdict.TREND_ONLY, Verdict.DIFFERS_ON_STAND_IN),
    # 7, also an identity on a stand-in
    (row(stand_in=OTHER, identity=True), [], Verdict.REPRODUCED, Verdict.DIFFERS),
    (row(MEASURED), [], Verdict.REPRODUCED, Verdict.DIFFERS),
    (row(), [], Verdict.REPRODUCED, Verdict.DIFFERS),
    (row(), ["c", "c.xx", "c.y"], Verdict.REPRODUCED, Verdict.DIFFERS),
]
IN_FAVOUR = (Verdict.REPRODUCED, Verdict.TREND_ONLY, Verdict.MATCHED)


def test_the_first_rule_that_fits_decides() -> None:
    """Without a mutation that changes it, a verdict in favour is held back to consistent."""
    for answer, fed_by, holds, fails in RULES:
        claim = replace(BASE, answers=(answer,))
        held = judge_values(claim, [50.0], fed_by=fed_by)
        assert held.verdict is holds, answer
        assert held.note == (f"it restates: {RESTATED}" if answer.restates and answer.evidence is not PRINTED else "")
        assert judge_values(claim, [60.0], fed_by=fed_by).verdict is fails, answer
        nothing = judge_values(claim, [math.nan], fed_by=fed_by)  # 1, before all of them
        assert (nothing.verdict, nothing.ours) == (Verdict.NOT_RUN, ())
        unturned = replace(BASE, answers=(replace(answer, turned_by=()),))
        expected = Verdict.CONSISTENT if holds in IN_FAVOUR else holds
        assert verdict(unturned, [50.0], fed_by=fed_by) is expected, answer
        assert verdict(unturned, [90.0], fed_by=fed_by) is fails, answer


@pytest.mark.parametrize("evidence", [SIMULATED, EMULATED])
def test_a_constant_fitted_to_another_cell_feeds_the_model(evidence: Evidence) -> None:
    for here, there, fed in (
        ("Table I", "Table I", True),
        ("Section V-B (Table I)", "Table I, row AxoNN, column G_inter", True),
        ("Figures 6 and 7", "Figure 7 (right bar)", True),
        ("Figure 4(a) (text in Section V)", "Figure 4(b)", True),
        ("Table I", "Table II", False),
        ("Table 2", "Figure 2", False),
        ("Section V-B", "Section V-B", False),
    ):
        claim, other = answered(replace(BASE, where=here), evidence), replace(BASE, id="c.other", where=there)
        fed_by = ["c.other", "c.gone"]
        judged = judge_values(claim, [50.0], other, fed_by=fed_by)
        assert judged.verdict is (Verdict.FED if fed else Verdict.MATCHED), (here, there)
        assert ("fitted to c.other" in judged.why) is fed
        for expected, value, others, names in (
            (Verdict.NOT_MATCHED, 60.0, [other], fed_by),
            (Verdict.MATCHED, 50.0, [replace(other, paper="samo")], fed_by),
            (Verdict.MATCHED, 50.0, [], fed_by),
            (Verdict.CALIBRATED, 50.0, [other], ["c.x", "c.other"]),
        ):
            assert judge_values(claim, [value], *others, fed_by=names).verdict is expected, (here, there, names)


@pytest.mark.parametrize(
    ("figure", "evidence", "expected"),
    [
        ("demo", SIMULATED, Verdict.FED),
        ("another", SIMULATED, Verdict.MATCHED),
        ("demo", DERIVED, Verdict.MATCHED),  # its value is no point of the simulated figure
    ],
)
def test_a_sentence_on_a_simulated_figure_is_fed_by_it(figure: str, evidence: Evidence, expected: Verdict) -> None:
    """Neither claim names the figure whose value it reports."""
    claim = answered(replace(BASE, where="Section VII-B"), SIMULATED)
    other = replace(BASE, id="c.other", where="Abstract", answers=(row(evidence, figure=figure),))
    assert judge_values(claim, [50.0], other, fed_by=["c.other"]).verdict is expected


NULL_RANGE = replace(BASE, value=(40.0, 60.0), check=Check.RANGE, terms=("12b", "24b"))
NULLS = [  # claim, values, those of the null model, verdict
    (BASE, [49.0], [], Verdict.MATCHED),
    (BASE, [49.0], [51.1], Verdict.MATCHED),
    (BASE, [49.0], [48.9], Verdict.MATCHED),
    (BASE, [49.0], [51.0], Verdict.NO_BETTER),  # as near on the other side
    (BASE, [49.0], [50.5], Verdict.NO_BETTER),
    (BASE, [50.0], [50.0], Verdict.NO_BETTER),
    (BASE, [60.0], [90.0], Verdict.NOT_MATCHED),  # nearer than the null model, and still outside
    (BASE, [60.0], [50.0], Verdict.NOT_MATCHED),
    (BASE, [49.0, 52.0], [50.0, 53.0], Verdict.MATCHED),  # the value farthest from the claim counts
    (BASE, [49.0, 52.0], [48.1, 50.0], Verdict.NO_BETTER),
    (BASE, [49.0], [math.nan], Verdict.MATCHED),
    (NULL_RANGE, [41.0, 59.0], [39.0, 50.0], Verdict.MATCHED),  # one of the null model's values lies outside
    (NULL_RANGE, [41.0, 59.0], [40.0, 60.0], Verdict.NO_BETTER),
    (NULL_RANGE, [41.0, 59.0], [], Verdict.MATCHED),
    (NULL_RANGE, [39.0, 59.0], [10.0, 90.0], Verdict.NOT_MATCHED),
    (ENDS, [10.5, 40.0], [10.7, 41.0], Verdict.MATCHED),  # ours is off by 0.5, the null model by 1
    (ENDS, [10.5, 40.0], [10.0, 10.0], Verdict.MATCHED),  # the second is far from its end
    (ENDS, [10.5, 40.0], [10.0, 40.5], Verdict.NO_BETTER),
    (ENDS, [10.5, 40.0], [10.0, 40.0], Verdict.NO_BETTER),
    (ORDER, [1, 2, 3], [1, 2, 3], Verdict.MATCHED),  # an order has no null model
]


@pytest.mark.parametrize("evidence", [SIMULATED, EMULATED])
def test_a_model_has_to_be_nearer_than_the_null_model(evidence: Evidence) -> None:
    for claim, values, null, expected in NULLS:
        judged = judge_values(answered(claim, evidence), values, null=null)
        assert judged.verdict is expected, (values, null)
        assert ("null model" in judged.why) is (expected is Verdict.NO_BETTER)
    other = replace(BASE, id="c.other")
    for null, expected in (([52.0], Verdict.FED), ([], Verdict.FED), ([50.0], Verdict.NOT_MATCHED)):
        judged = judge_values(answered(BASE, evidence), [49.0], other, fed_by=["c.other"], null=null)
        assert judged.verdict is expected
        assert "fitted to c.other" in judged.why


# Evidence

STANDS_FOR = {  # possible evidence of a value that states none
    Source.MEASURED: {MEASURED},
    Source.EMULATED: {EMULATED},
    Source.SIMULATED: {SIMULATED, DERIVED, MEASURED},
    Source.ANALYTIC: {DERIVED},
}


def test_a_value_answers_only_for_its_own_evidence() -> None:
    for source, possible in STANDS_FOR.items():
        for evidence in Evidence:
            claim = answered(BASE, evidence)
            silent = judge_alone(claim, entry([50.0], source))
            assert (silent.verdict is not Verdict.NOT_RUN) is (evidence in possible)
            for stated in Evidence:
                judged = judge_alone(claim, entry([50.0], source, evidence=stated.value))
                expected = (evidence, ((50.0,),)) if stated is evidence else (None, ())
                assert (judged.evidence, judged.ours) == expected, (source, evidence, stated)
                assert (judged.verdict is Verdict.NOT_RUN) is (stated is not evidence)


def test_value_without_evidence_is_calibrated_like_its_record() -> None:
    for names, within, outside in (
        (["c.x"], Verdict.CALIBRATED, Verdict.CALIBRATED_MISSED),
        (("c.y", "c.x"), Verdict.CALIBRATED, Verdict.CALIBRATED_MISSED),
        *((damaged, Verdict.REPRODUCED, Verdict.DIFFERS) for damaged in (["c"], ["c.xx"], "c.xx", {"c.x": 1}, None, 3)),
    ):
        for value, expected in ((50.0, within), (1.0, outside)):
            judged = judge_alone(BASE, entry([value], provenance={"calibrated_on": names}))
            assert judged.verdict is expected, names
    stated = entry([50.0], evidence="derived", provenance={"calibrated_on": ["c.x"]})
    assert judge_alone(BASE, stated).verdict is Verdict.REPRODUCED


# Several answers


def test_an_answer_without_a_value_leaves_the_headline_to_others() -> None:
    claim = replace(BASE, answers=(row(MEASURED), row(SIMULATED)))
    simulated = stored_answer(claim, [60.0], SIMULATED)
    broken = stored_answer(claim, [math.nan], MEASURED)
    failed = stored_answer(claim, [50.0], MEASURED, outcome=Outcome.FAILED)
    for entries in ((simulated,), (simulated, broken), (failed, simulated)):
        judged = judge_alone(claim, *entries)
        assert (judged.verdict, judged.evidence) == (Verdict.NOT_MATCHED, SIMULATED)
        assert [(other.verdict, other.ours) for other in judged.others] == [(Verdict.NOT_RUN, ())]
    nothing = judge_alone(claim)
    assert (nothing.verdict, nothing.evidence, len(nothing.others)) == (Verdict.NOT_RUN, None, 1)


# Controls

CONTROL = replace(BASE, id="c.control", answers=(row(),))
CHECKED = replace(BASE, control="c.control")
GOOD = stored_answer(CONTROL, [50.0], DERIVED)


def with_control(claim: Claim, control: Claim, *entries: StoredRecord) -> Verdict:
    """The verdict on `claim`, the same before and after its control in the claim file."""
    first, last = judge_all([claim, control], *entries)[0], judge_all([control, claim], *entries)[1]
    assert first == last
    return first.verdict


def test_an_exact_value_that_differs_contradicts_under_a_control() -> None:
    share = replace(answered(CHECKED, MEASURED, identity=True), unit="percent")
    repeated = replace(ACCURACY, control="c.control")
    for claim, entries, expected in (
        (CHECKED, [stored_answer(CHECKED, [60.0], DERIVED)], Verdict.CONTRADICTED),
        (CHECKED, [stored_answer(CHECKED, [50.0], DERIVED)], Verdict.REPRODUCED),
        (share, [stored_answer(share, [60.0], MEASURED)], Verdict.CONTRADICTED),
        (repeated, seeds([60.0, 60.1, 59.9]), Verdict.CONTRADICTED),
        (repeated, seeds([60.0, 60.1]), Verdict.DIFFERS),
        (repeated, seeds([50.0, 50.1]), Verdict.REPRODUCED),
        *(
            (claim, [stored_answer(claim, [60.0], claim.answers[0].evidence)], expected)
            for claim, expected in (
                (replace(CHECKED, control=""), Verdict.DIFFERS),
                (replace(CHECKED, control="c.y"), Verdict.DIFFERS),
                (replace(CHECKED, control="c.x"), Verdict.DIFFERS),
                (answered(CHECKED, MEASURED), Verdict.DIFFERS),  # one measurement
                (answered(replace(CHECKED, unit="byte"), MEASURED), Verdict.DIFFERS),  # the row does not say: exact
                (answered(CHECKED, stand_in=OTHER), Verdict.DIFFERS_ON_STAND_IN),
                (answered(CHECKED, SIMULATED), Verdict.NOT_MATCHED),
            )
        ),
    ):
        assert with_control(claim, CONTROL, *entries, GOOD) is expected, (claim, expected)
    assert [judge_alone(repeated, *seeds(values)).repeats for values in ([60.0, 60.1, 59.9], [60.0, 60.1])] == [3, 2]


def test_a_control_that_is_not_reproduced_contradicts_nothing() -> None:
    bad = stored_answer(CHECKED, [60.0], DERIVED)
    for answer, value in (
        (row(), 60.0),
        (row(), math.nan),
        (row(restates="a setting"), 50.0),
        (row(stand_in=OTHER), 50.0),
        (row(SIMULATED), 50.0),
        (row(PRINTED), 50.0),
    ):
        control = replace(CONTROL, answers=(answer,))
        stored = stored_answer(control, [value], answer.evidence)
        assert with_control(CHECKED, control, bad, stored) is Verdict.DIFFERS, answer
        assert with_control(CHECKED, control, bad) is Verdict.DIFFERS, answer
    assert judge_alone(CHECKED, bad).verdict is Verdict.DIFFERS


# Choice among records


def test_the_best_source_answers_then_the_newest() -> None:
    order = [
        entry([1.0], Source.MEASURED, started="2025-01-02", file="1", evidence="derived"),
        entry([2.0], Source.MEASURED, started="2025-01-01", file="2", evidence="derived", label="b"),
        entry([4.0], Source.EMULATED, started="2025-07-01", file="4", evidence="derived"),
        entry([5.0], Source.SIMULATED, started="2025-08-01", file="5", evidence="derived"),
        entry([7.0], Source.ANALYTIC, started="2025-10-01", file="7"),
    ]
    while order:
        best = order[0]
        for entries in (order, order[::-1]):
            judged = judge_alone(BASE, *entries)
            assert (judged.record, judged.ours) == (best.file, (best.record.metrics["c.x"].values,))
            assert (judged.experiment, judged.command) == ("demo", "suite run experiment=demo")
        order.pop(0)


def test_value_of_a_function_in_a_committed_record_never_answers() -> None:
    """The function may have changed since; a run is measured again in place of being computed."""
    for source in (Source.MEASURED, Source.SIMULATED):
        committed = entry([50.0], source, started="2026", machine="h200")
        assert judge_alone(BASE, committed).verdict is Verdict.NOT_RUN
        here = entry([40.0], Source.SIMULATED, started="2025", file="here")
        assert judge_alone(BASE, committed, here).record == "here"


def test_a_run_that_did_not_end_well_never_answers() -> None:
    for outcome in set(Outcome) - {Outcome.OK}:
        bad = entry([50.0], Source.SIMULATED, started="2026", outcome=outcome)
        judged = judge_alone(BASE, bad)
        assert (judged.verdict, judged.ours, judged.record) == (Verdict.NOT_RUN, (), "")
        assert outcome.value in judged.why
        assert judge_alone(BASE, bad, entry([10.0])).verdict is Verdict.DIFFERS


def test_values_that_cannot_be_used_answer_nothing() -> None:
    """The newest record answers even if it is broken: an older number must not hide it."""
    old, new = entry([50.0], started="2025-01-01"), entry([math.nan], started="2025-01-02")
    for claim, entries, part in (
        (BASE, [old, new], "1 of our 1 values"),
        (BASE, [entry([50.0], unit="minute")], "'minute'"),
        (ORDER, [entry([])], "0 values; rule: 3"),
        (ORDER, [entry([1.0, 2.0])], "2 values"),
        (ORDER, [entry([1.0] * 4)], "4 values"),
        (ORDER, [entry([1, 2, math.inf])], "1 of our 3 values"),
        (replace(BASE, answers=()), [entry([50.0])], "cluster"),
        *((replace(BASE, reach=reach), [entry([1.0], name="c.y")], "") for reach in judge.NEEDS),
        *((replace(BASE, reach=reach, answers=()), [], "") for reach in judge.NEEDS),
    ):
        judged = judge_alone(claim, *entries)
        assert (judged.verdict, judged.ours, judged.others) == (Verdict.NOT_RUN, (), ())
        assert part in judged.why


# Runs side by side


def test_medians_of_one_machine_source_and_experiment_answer() -> None:
    quick, slow = run(AXONN, [3.0, 1.0, 2.0, math.nan]), run(GPIPE, [2.5, 9.0, 2.1])
    here, there = run(AXONN, [2.0]), run(GPIPE, [3.0], machine="h200")
    both = [there, run(AXONN, [4.0], machine="h200")]
    first, newer = run(AXONN, [2.0], started="1"), run(AXONN, [7.0], started="2")
    for runs, ours, part in (
        ([quick, slow], ((2.0, 2.5),), ""),
        ([quick], (), "experiment demo has no complete set of axonn 2x1, gpipe 2x1"),
        ([slow], (), AXONN),
        ([], (), GPIPE),
        ([quick, run(GPIPE, [3.0], outcome=Outcome.FAILED)], (), "gpipe 2x1 failed"),
        ([quick, run(GPIPE, [3.0], experiment="other")], (), ""),
        ([quick, run(GPIPE, [])], (), ""),
        ([quick, run(GPIPE, [3.0], "oversubscribed: 4 ranks on 2 cores")], (), "gpipe 2x1: oversubscribed"),
        ([here, there], (), ""),
        ([here, run(GPIPE, [3.0], source=Source.SIMULATED)], (), ""),
        ([run(label, [3.0], source=Source.SIMULATED) for label in PAIR], (), ""),
        ([here, *both], ((4.0, 3.0),), ""),
        ([here, *both, run(GPIPE, [5.0])], ((2.0, 5.0),), ""),
        ([first, run(GPIPE, [3.0], started="1"), newer], ((7.0, 3.0),), ""),
        ([slow, first, run(AXONN, [7.0], started="2", outcome=Outcome.OOM)], (), "axonn 2x1 oom"),
        ([run(AXONN, [2.0], turns="a"), run(GPIPE, [3.0], turns="b")], (), "not interleaved"),
        ([run(AXONN, [2.0], turns="a"), run(GPIPE, [3.0], turns="a")], ((2.0, 3.0),), ""),
        ([here, run(GPIPE, metrics={"batch_time": Metric("ms", "lower", (3.0,))})], (), "'ms' and 's'"),
    ):
        for entries in (runs, runs[::-1]):
            judged = judge_alone(QUICKER, *entries)
            assert (judged.ours, judged.experiment) == (ours, "demo"), runs
            assert (judged.verdict is Verdict.NOT_RUN) is (not ours)
            assert part in judged.why
    assert judge_alone(QUICKER, quick, slow).record == f"records/{AXONN}.json"


# Repeats

EARLY, LATE = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]  # of 70 ways to deal 4 + 4 ranks, 2 are as far apart
MIXED = [1.5, 2.5, 6.5, 7.5]
MANY = [1.0 + number / 10 for number in range(21)]
NO_FALL = replace(QUICKER, check=Check.NEVER_FALLS)
MODELLED = of_runs(TWO, PAIR, evidence=SIMULATED)


@pytest.mark.parametrize(
    ("claim", "runs", "expected"),
    [
        (QUICKER, timed((EARLY, LATE)), Verdict.REPRODUCED),
        (QUICKER, timed((EARLY, MIXED)), Verdict.UNDECIDED),
        (QUICKER, timed((LATE, MIXED)), Verdict.UNDECIDED),
        (QUICKER, timed((EARLY, EARLY)), Verdict.UNDECIDED),
        (QUICKER, timed((LATE, EARLY)), Verdict.DIFFERS),
        (of_runs(TWO, PAIR, stand_in=OTHER), timed((EARLY, LATE)), Verdict.TREND_ONLY),
        (of_runs(TWO, PAIR, stand_in=OTHER), timed((EARLY, MIXED)), Verdict.UNDECIDED),
        (of_runs(TWO, PAIR, stand_in=OTHER), timed((LATE, EARLY)), Verdict.DIFFERS_ON_STAND_IN),
        (replace(QUICKER, check=Check.GREATEST), timed((LATE, EARLY)), Verdict.REPRODUCED),
        (replace(QUICKER, check=Check.GREATEST), timed((MIXED, EARLY)), Verdict.UNDECIDED),
        (replace(QUICKER, check=Check.GREATEST), timed((EARLY, LATE)), Verdict.DIFFERS),
        # of 20 ways to deal 3 + 3 ranks, 2 are as far apart: one in ten
        (QUICKER, timed(([1.0, 2.0, 3.0], [7.0, 8.0, 9.0]), 3), Verdict.UNDECIDED),
        (QUICKER, [run(AXONN, [1.0]), run(GPIPE, [2.0])], Verdict.UNDECIDED),
        (QUICKER, timed((MANY, [each + 9 for each in MANY]), 21), Verdict.REPRODUCED),
        # samples of one round are one repeat
        (QUICKER, timed((EARLY + EARLY, LATE + LATE), 8), Verdict.REPRODUCED),
        (QUICKER, timed((EARLY + EARLY, LATE + LATE), 4), Verdict.REPRODUCED),
        (QUICKER, timed((EARLY + EARLY, LATE + LATE), 2), Verdict.UNDECIDED),
        # a fall inside the noise
        (NO_FALL, timed(([1.0, 2.0, 3.2, 4.1], EARLY)), Verdict.UNDECIDED),
        (NO_FALL, timed((LATE, EARLY)), Verdict.DIFFERS),
        # a model needs no repeats
        (MODELLED, timed((EARLY, MIXED), source=Source.SIMULATED), Verdict.MATCHED),
        # means over seeds
        (BY_SEED, seeds(EARLY, LATE), Verdict.REPRODUCED),
        (BY_SEED, seeds(EARLY[:3], LATE[:3]), Verdict.UNDECIDED),
        (BY_SEED, seeds(EARLY, MIXED), Verdict.UNDECIDED),
        (BY_SEED, seeds(LATE, EARLY), Verdict.DIFFERS),
        (BY_SEED, seeds(EARLY, LATE[:3]), Verdict.NOT_RUN),
        (BY_SEED, seeds(EARLY), Verdict.NOT_RUN),
        # ranks below, in the mean above; ranks apart in the other direction outweigh the means
        (BY_SEED, seeds([1, 2, 3, 4, 5, 6, 7, 1000], range(11, 19)), Verdict.UNDECIDED),
        (BY_SEED, seeds(range(11, 19), [1, 2, 3, 4, 5, 6, 7, 1000]), Verdict.DIFFERS),
    ],
)
def test_a_measured_order_needs_repeats_that_are_apart(
    claim: Claim, runs: Sequence[StoredRecord], expected: Verdict
) -> None:
    assert judge_alone(claim, *runs).verdict is expected


def test_only_the_pairs_that_the_check_compares_must_be_apart() -> None:
    labels = ("a", "b", "c")
    claim = of_runs(replace(TWO, terms=labels), labels)
    between, apart = [each + 0.1 for each in LATE], [each + 10 for each in LATE]
    for check, third, expected in (
        (Check.LEAST, between, Verdict.REPRODUCED),
        (Check.RISES, between, Verdict.UNDECIDED),
        (Check.NEVER_FALLS, between, Verdict.REPRODUCED),
        (Check.FALLS, between, Verdict.DIFFERS),
        (Check.RISES, apart, Verdict.REPRODUCED),
        (Check.NEVER_FALLS, EARLY, Verdict.DIFFERS),
    ):
        judged = judge_alone(replace(claim, check=check), *timed((EARLY, LATE, third), labels=labels))
        assert judged.verdict is expected, check


def test_counts_need_no_repeats_and_parts_of_a_batch_time_do() -> None:
    for metric, unit, ours, theirs, expected in (
        ("payload_bytes", "byte", (3.0, 3.0), (4.0, 4.0), Verdict.REPRODUCED),
        ("payload_bytes", "byte", (4.0, 4.0), (3.0, 3.0), Verdict.DIFFERS),
        ("update_time", "s", EARLY, LATE, Verdict.REPRODUCED),
        ("update_time", "s", EARLY, MIXED, Verdict.UNDECIDED),
    ):
        runs = [
            run(label, metrics={metric: Metric(unit, "lower", tuple(each))}, config={"measure": {"rounds": 4}})
            for label, each in zip(PAIR, (ours, theirs), strict=True)
        ]
        assert judge_alone(of_runs(TWO, PAIR, metric), *runs).verdict is expected, (metric, theirs)


def test_broken_sample_does_not_take_its_round_with_it() -> None:
    one = judge_alone(QUICKER, *timed(([1.0, 2.0, 3.0, math.nan, 3.5, 3.6], [5.0, 6.0, 7.0]), 3))
    assert one.repeats == 3


EQUAL_SEEDS = replace(BY_SEED, check=Check.EQUAL, kind="equality", tolerance=0.05)
END_SEEDS = replace(BY_SEED, check=Check.ENDS, kind="range", value=(10.0, 40.0), tolerance=0.05)
TEN = [10.1, 10.0, 9.9]


@pytest.mark.parametrize(
    ("claim", "values", "expected"),
    [
        (ACCURACY, [[49.0, 50.0, 51.0]], Verdict.REPRODUCED),  # 95 percent: 47.5 to 52.5
        (ACCURACY, [[45.0, 50.0, 55.0]], Verdict.UNDECIDED),  # 37.6 to 62.4, where 46 to 54 is allowed
        (ACCURACY, [[54.5, 54.6, 54.7]], Verdict.DIFFERS),
        (ACCURACY, [[45.3, 45.4, 45.5]], Verdict.DIFFERS),
        (ACCURACY, [[53.0, 54.5, 56.0]], Verdict.UNDECIDED),  # the mean is outside, its interval is not
        (EQUAL_SEEDS, [TEN, TEN], Verdict.REPRODUCED),
        (EQUAL_SEEDS, [TEN, [10.9, 10.4, 10.0]], Verdict.UNDECIDED),
        (EQUAL_SEEDS, [TEN, [12.0, 12.1, 12.2]], Verdict.DIFFERS),
        (END_SEEDS, [TEN, [40.0, 40.1, 39.9]], Verdict.REPRODUCED),
        (END_SEEDS, [TEN, [38.0, 40.0, 42.0]], Verdict.UNDECIDED),  # 35 to 45, where 38 to 42 is allowed
        (END_SEEDS, [TEN, [20.0, 20.1, 19.9]], Verdict.DIFFERS),  # inside the range, and not its end
    ],
)
def test_a_measured_number_needs_an_interval_inside_the_tolerance(
    claim: Claim, values: Sequence[Sequence[float]], expected: Verdict
) -> None:
    judged = judge_alone(claim, *seeds(*values))
    assert (judged.verdict, judged.repeats) == (expected, 3)


# Series


def test_the_batches_of_a_series_are_the_cases() -> None:
    claim = replace(TWO, check=Check.EQUAL, kind="equality", terms=("pytorch", "axonn"), tolerance=1e-5, because="x")
    identity = of_runs(claim, ("pytorch 1x1", "axonn 2x2"), "", series="loss", stand_in=OTHER, identity=True)
    stand_in = of_runs(claim, ("pytorch 1x1", "axonn 2x2"), "", series="loss", stand_in=OTHER)
    theirs = [6.0, 5.0, 4.0]
    for each, loss, expected in (
        (identity, [6.0, 5.00004, 4.0], Verdict.REPRODUCED),
        (stand_in, theirs, Verdict.TREND_ONLY),
        (identity, [6.0, 5.0, 4.00005], Verdict.DIFFERS),
        (identity, [6.0, 5.0], Verdict.NOT_RUN),
        (identity, [], Verdict.NOT_RUN),
        (identity, [6.0, math.nan, 4.0], Verdict.NOT_RUN),
    ):
        judged = judge_alone(each, run("pytorch 1x1", loss=theirs), run("axonn 2x2", loss=loss))
        assert judged.verdict is expected, loss
        assert judged.ours == (() if expected is Verdict.NOT_RUN else tuple(zip(theirs, loss, strict=True)))
        assert expected is not Verdict.DIFFERS or "case 3 of 3: axonn = 4.00005" in judged.why


def test_values_of_several_seeds_are_averaged() -> None:
    assert judge_alone(BY_SEED, *seeds(EARLY, LATE)).ours == ((2.5, 6.5),)
    claim = of_runs(replace(TWO, check=Check.EQUAL, tolerance=0.01), SEEDS, "", series="loss")
    runs = [
        run(f"{name} seed {seed}", loss=[1.0 + seed * (name == "gpipe")])
        for name in ("axonn", "gpipe")
        for seed in (0, 1)
    ]
    assert judge_alone(claim, *runs).ours == ((1.0, 1.5),)


# claims.csv


def test_claims_csv_holds_every_claim(tmp_path: Path) -> None:
    claims = [
        replace(BASE, id="c.number", quantity='say "fast", now', where="Table I\nand II"),
        answered(replace(SAVED, id="c.range", paper="samo"), SIMULATED),
        answered(replace(ORDER, id="c.order"), MEASURED, stand_in=OTHER),
        replace(FORMULA, id="c.formula"),
        replace(BASE, id="c.none", value=54.78, system="", answers=()),
    ]
    entries = [
        entry([50.1234567, 49.0], name="c.number", label="number"),
        entry([11.0], name="c.range", label="range", source=Source.SIMULATED),
        entry([1e-7, 2, 3, 4, 5, 6e11], name="c.order", label="order", source=Source.MEASURED),
        entry([56, 128, 29], name="c.formula", label="formula"),
    ]
    path = claim_text.write_claims(tmp_path / "new", judge_all(claims, *entries))
    assert path == tmp_path / "new" / "claims.csv"
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    points = "point 1=56 point 2=128 point 3=29"
    columns = {
        "id": ["c.number", "c.range", "c.order", "c.formula", "c.none"],
        "paper": ["axonn", "samo", "axonn", "axonn", "axonn"],
        "system": ["axonn", "axonn", "axonn", "axonn", ""],
        "our_value": ["50.1235 | 49", "11", "a=1e-07 b=2 c=3 | a=4 b=5 c=6e+11", points, ""],
        "paper_value": ["50", "[13, inf]", "a < b < c", "4*phi + 16*bsize", "54.78"],
        "verdict": ["reproduced", "not matched by the model", "trend only", "differs", "not run"],
        "evidence": ["derived", "simulated", "measured", "derived", ""],
        "scope": ["as published", "as published", "stand-in", "as published", "as published"],
        "note": ["", "on the published side of 0", "", "", ""],
    }
    for name, expected in columns.items():
        assert [row[name] for row in rows] == expected
    assert (rows[0]["quantity"], rows[0]["where"], rows[0]["unit"]) == ('say "fast", now', "Table I\nand II", "second")
    assert all(row["why"] for row in rows)


def test_a_value_over_runs_is_their_expression() -> None:
    judged = judge_alone(BETWEEN_RUNS, *timed([(3.0, 4.0, 5.0), (2.0, 2.0)], turns="apart"))
    assert (judged.ours, judged.evidence) == (((50.0,),), Evidence.MEASURED)
    lacking = judge_alone(BETWEEN_RUNS, *timed([(3.0,), ()]))
    assert (lacking.verdict, lacking.why) == (Verdict.NOT_RUN, "the runs have no batch_time_1")
    assert judge_alone(BETWEEN_RUNS, *timed([(3.0,)], labels=PAIR[:1])).verdict is Verdict.NOT_RUN
