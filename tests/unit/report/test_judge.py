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

from suite.core.claim import AnswerRow, Cases, Check, Claim, Evidence, Judged, Scope, Verdict
from suite.core.record import Metric, Outcome, Record, Source
from suite.report import claim_text, judge
from suite.report.load import ReportStore, StoredRecord, read_store

SOURCES = {  # of a record whose metric does not say how its value came about
    Evidence.MEASURED: Source.MEASURED,
    Evidence.DERIVED: Source.ANALYTIC,
    Evidence.EMULATED: Source.EMULATED,
    Evidence.SIMULATED: Source.SIMULATED,
    Evidence.PRINTED: Source.ANALYTIC,
}
OTHER = "another graph"  # what differs on a stand-in
TURNED = ("a mutation",)  # without one a verdict is held back


def row(evidence: Evidence = Evidence.DERIVED, **changes: Any) -> AnswerRow:
    fields = {"figure": "demo", "function": "suite.papers.demo.value", "turned_by": TURNED} | changes
    return AnswerRow(evidence, **fields)


def answered(claim: Claim, evidence: Evidence = Evidence.DERIVED, **changes: Any) -> Claim:
    """`claim` with one answer, by a function."""
    return replace(claim, answers=(row(evidence, **changes),))


BASE = Claim("c.x", "axonn", "Table I", "batch_time", "axonn", 50.0, "second", "number", "cluster", answers=(row(),))
ORDER = replace(BASE, value="a < b < c", kind="ordering", check=Check.RISES, terms=("a", "b", "c"))
FORMULA = replace(
    BASE,
    value="4*phi + 16*bsize",
    kind="formula",
    check=Check.FORMULA,
    expression="4*phi + 16*bsize",
    points=({"phi": 10.0, "bsize": 1.0}, {"phi": 20.0, "bsize": 3.0}, {"phi": 5.0, "bsize": 0.5}),
)
QUICKER = replace(
    BASE,
    value="a < b",
    kind="ordering",
    check=Check.LEAST,
    terms=("axonn", "gpipe"),
    reach="cpu",
    answers=(
        AnswerRow(
            Evidence.MEASURED,
            turned_by=TURNED,
            experiment="demo",
            labels=("axonn 2x1", "gpipe 2x1"),
            metric="batch_time",
        ),
    ),
)


def entry(values: Sequence[float], source: Source = Source.ANALYTIC, name: str = "c.x", **changes: Any) -> StoredRecord:
    """A record with a value of claim `name`; file, machine and started name its entry and its time."""
    file, machine = changes.pop("file", "records/k.json"), changes.pop("machine", "")
    unit, evidence = changes.pop("unit", "second"), changes.pop("evidence", "")
    provenance = {"started": changes.pop("started", "2025-01-01"), "command": "suite run experiment=demo"}
    provenance["turns"] = changes.pop("turns", "one call")
    fed_by, null = tuple(changes.pop("fed_by", ())), tuple(changes.pop("null", ()))
    metric = Metric(unit, "lower", tuple(values), evidence=evidence, fed_by=fed_by, null=null)
    record = Record("k", "demo", "axonn", "axonn 2x1", Outcome.OK, source, provenance=provenance)
    record = replace(record, metrics={name: metric})
    return StoredRecord(replace(record, **changes), file, machine)


def stored_answer(claim: Claim, values: Sequence[float], evidence: Evidence, **changes: Any) -> StoredRecord:
    """A record that says of its value of `claim` that it is of this evidence."""
    fields = {"name": claim.id, "unit": claim.unit, "label": f"{claim.id} {evidence}"} | changes
    return entry(values, SOURCES[evidence], evidence=evidence.value, **fields)


def judge_alone(claim: Claim, *entries: StoredRecord) -> Judged:
    (judged,) = judge.judge([claim], ReportStore(Path("nowhere"), entries))
    assert judged.claim is claim
    return judged


def verdict(claim: Claim, values: Sequence[float], **changes: Any) -> Verdict:
    """The verdict on these values, which came about as the claim's only answer says."""
    (answer,) = claim.answers
    return judge_alone(claim, stored_answer(claim, values, answer.evidence, **changes)).verdict


def run(
    label: str, times: Sequence[float] = (), note: str = "", loss: Sequence[float] = (), **changes: Any
) -> StoredRecord:
    """A measured run of experiment demo."""
    metrics = {"batch_time": Metric("s", "lower", tuple(times), note)}
    series = {"loss": list(loss)} if loss else {}
    fields = {"label": label, "metrics": metrics, "series": series, "file": f"records/{label}.json"} | changes
    return entry((), fields.pop("source", Source.MEASURED), **fields)


# Numbers and ranges


@pytest.mark.parametrize(
    ("claim", "inside", "outside"),
    [
        (BASE, [46.0, 50.0, 54.0], [45.99, 54.01]),  # 8 percent of 50 is 4
        (replace(BASE, value=3.0), [2.0, 4.0], [1.99, 4.01]),  # a unit of the last digit is more
        (replace(BASE, value=0.62), [0.5705, 0.6695], [0.5703, 0.6697]),
        (replace(BASE, tolerance=0.02, because="x"), [49.0, 51.0], [48.99, 51.01]),
        (replace(BASE, tolerance=0.0, because="a count"), [50.0], [49.0, 51.0, 50.0 + 1e-9]),
        (replace(BASE, value=(49.4, 54.78), check=Check.RANGE), [49.4, 50.0, 54.78], [49.39, 54.79]),
        (replace(BASE, value=(13.0, math.inf), check=Check.RANGE), [13.0, 1e300], [12.99]),
    ],
    ids=lambda value: str(value.value) if isinstance(value, Claim) else "",
)
def test_the_edges_of_a_number(claim: Claim, inside: list[float], outside: list[float]) -> None:
    stand_in = answered(claim, Evidence.MEASURED, stand_in=OTHER)
    modelled = answered(claim, Evidence.SIMULATED)
    for value in inside:
        assert verdict(claim, [value]) is Verdict.REPRODUCED
        assert verdict(stand_in, [value]) is Verdict.TREND_ONLY
        assert verdict(modelled, [value]) is Verdict.MATCHED
    for value in outside:
        assert verdict(claim, [value]) is Verdict.DIFFERS
        assert verdict(stand_in, [value]) is Verdict.DIFFERS_ON_STAND_IN
        assert verdict(modelled, [value]) is Verdict.NOT_MATCHED


SPEEDUP = replace(BASE, value=1.5, neutral=1.0, unit="ratio", kind="ratio")
SAVED = replace(BASE, value=(13.0, math.inf), neutral=0.0, check=Check.RANGE, kind="range")
AT_NEUTRAL = replace(SPEEDUP, value=1.0)
LOST = replace(BASE, value=-20.0, neutral=0.0)
AROUND = replace(BASE, value=(-1.0, 3.0), neutral=0.0, check=Check.RANGE, kind="range")
FROM_NEUTRAL = replace(BASE, value=(0.0, 4.0), neutral=0.0, check=Check.RANGE, kind="range")


@pytest.mark.parametrize(
    ("claim", "value", "side"),
    [
        (SPEEDUP, 1.5, "inside"),
        (SPEEDUP, 1.05, "on the published side of 1"),
        (SPEEDUP, 9.0, "on the published side of 1"),
        (SPEEDUP, 1.0, "outside"),
        (SPEEDUP, 0.9, "outside"),
        (SAVED, 13.0, "inside"),
        (SAVED, 0.1, "on the published side of 0"),
        (SAVED, 0.0, "outside"),
        (SAVED, -5.0, "outside"),
        (LOST, -21.0, "inside"),
        (LOST, -1.0, "on the published side of 0"),
        (LOST, 1.0, "outside"),
        # a range around the neutral point has no side
        (AROUND, 2.0, "inside"),
        (AROUND, 3.1, "outside"),
        # a number on the neutral point has none either
        (AT_NEUTRAL, 1.0, "inside"),
        (AT_NEUTRAL, 9.0, "outside"),
        (AT_NEUTRAL, -9.0, "outside"),
        (FROM_NEUTRAL, 0.0, "inside"),
        (FROM_NEUTRAL, 5.0, "on the published side of 0"),
        (FROM_NEUTRAL, -0.1, "outside"),
    ],
)
def test_a_trend_is_the_published_side_of_the_neutral_point(claim: Claim, value: float, side: str) -> None:
    """Only a stand-in gains by the direction; elsewhere it is a note on a value that differs."""
    inside, note = side == "inside", side if side.startswith("on") else ""
    expected = {
        Evidence.MEASURED: Verdict.REPRODUCED if inside else Verdict.DIFFERS,
        Evidence.DERIVED: Verdict.REPRODUCED if inside else Verdict.DIFFERS,
        Evidence.SIMULATED: Verdict.MATCHED if inside else Verdict.NOT_MATCHED,
        Evidence.EMULATED: Verdict.MATCHED if inside else Verdict.NOT_MATCHED,
    }
    for evidence, best in expected.items():
        judged = judge_alone(answered(claim, evidence), stored_answer(claim, [value], evidence))
        assert (judged.verdict, judged.note) == (best, note)
    stand_in = Verdict.DIFFERS_ON_STAND_IN if side == "outside" else Verdict.TREND_ONLY
    for evidence in (Evidence.MEASURED, Evidence.DERIVED):
        judged = judge_alone(answered(claim, evidence, stand_in=OTHER), stored_answer(claim, [value], evidence))
        assert (judged.verdict, judged.note) == (stand_in, note)


def test_one_case_outside_is_enough() -> None:
    assert verdict(BASE, [50.0, 51.0, 49.0]) is Verdict.REPRODUCED
    assert verdict(BASE, [50.0, 51.0, 60.0]) is Verdict.DIFFERS
    stand_in = answered(SPEEDUP, stand_in=OTHER)
    assert verdict(stand_in, [1.5, 1.1]) is Verdict.TREND_ONLY
    assert verdict(stand_in, [1.5, 1.1, 0.9]) is Verdict.DIFFERS_ON_STAND_IN


def test_the_reason_says_what_was_compared() -> None:
    assert judge_alone(BASE, entry([50.0, 51.5])).why == "our 50, 51.5 lie in 50 ± 4"
    assert judge_alone(BASE, entry([50.0, 60.0, 61.0])).why == "our 60 is outside 50 ± 4"
    assert judge_alone(BASE, entry([50.0] * 3 + [47.0] + [52.0] * 3)).why == "our 7 values, 47 to 52, lie in 50 ± 4"
    count = replace(BASE, tolerance=0.0, because="a count")
    assert (judge_alone(count, entry([50.0])).why, judge_alone(count, entry([51.0])).why) == (
        "our 50 is 50",
        "our 51 is not 50",
    )
    assert judge_alone(SAVED, entry([12.0])).why == "our 12 is outside [13, inf]"
    assert judge_alone(SAVED, entry([12.0])).note == "on the published side of 0"


ENDS = replace(BASE, value=(10.0, 40.0), check=Check.ENDS, kind="range", terms=("least", "largest"))


@pytest.mark.parametrize(
    ("tolerance", "inside", "outside"),
    [
        (None, [(9.0, 36.81), (11.0, 43.19), (10.0, 40.0)], [(8.99, 40), (11.01, 40), (10, 36.79), (10, 43.21)]),
        (0.08, [(9.21, 36.81), (10.79, 43.19)], [(9.19, 40), (10.81, 40), (10, 36.79), (10, 43.21)]),
        (0.0, [(10.0, 40.0)], [(10 + 1e-9, 40), (10, 40 - 1e-9)]),
    ],
)
def test_both_ends_of_a_range_are_asked_for(
    tolerance: float | None, inside: list[tuple[float, float]], outside: list[tuple[float, float]]
) -> None:
    """8 percent, or a unit of the last digit where that is more: values in the middle of the range are no ends."""
    claim = replace(ENDS, tolerance=tolerance, because="x")
    stand_in, modelled = answered(claim, Evidence.MEASURED, stand_in=OTHER), answered(claim, Evidence.SIMULATED)
    for values in inside:
        assert verdict(claim, values) is Verdict.REPRODUCED
        assert verdict(stand_in, values) is Verdict.TREND_ONLY
        assert verdict(modelled, values) is Verdict.MATCHED
    for values in [*outside, (20.0, 30.0), (40.0, 10.0)]:
        assert verdict(claim, values) is Verdict.DIFFERS
        assert verdict(stand_in, values) is Verdict.DIFFERS_ON_STAND_IN
        assert verdict(modelled, values) is Verdict.NOT_MATCHED
        assert verdict(claim, [10.0, 40.0, *values]) is Verdict.DIFFERS


def test_the_reason_names_the_end_that_is_missed() -> None:
    claim, count = replace(ENDS, tolerance=0.08, because="x"), replace(ENDS, tolerance=0.0, because="a count")
    assert judge_alone(claim, entry([9.5, 41.0])).why == "the ends of our 9.5 to 41 lie in 10 ± 0.8 and 40 ± 3.2"
    assert judge_alone(claim, entry([9.5, 30.0])).why == "largest = 30 is outside 40 ± 3.2"
    assert judge_alone(count, entry([10.0, 40.0])).why == "the ends of our 10 to 40 are 10 and 40"
    assert judge_alone(count, entry([11.0, 40.0])).why == "least = 11 is not 10"
    some = replace(count, cases=Cases.SOME, hedge="can")
    why = "the ends of our 10 to 40, 1 to 2 are 10 and 40 in 1 of 2 cases (the paper says can)"
    assert judge_alone(some, entry([10.0, 40.0, 1.0, 2.0])).why == why


# Orders, equalities, formulas


@pytest.mark.parametrize(
    ("check", "holds", "fails"),
    [
        (Check.RISES, [[1, 2, 3]], [[1, 3, 2], [1, 2, 2], [1, 1, 2], [3, 2, 1]]),
        (Check.FALLS, [[3, 2, 1]], [[3, 1, 2], [2, 2, 1], [1, 2, 3]]),
        (Check.NEVER_FALLS, [[1, 2, 3], [1, 1, 1], [1, 1, 2]], [[1, 2, 1.9], [2, 1, 3]]),
        (Check.LEAST, [[1, 2, 3], [1, 3, 2], [1, 2, 2]], [[1, 1, 2], [2, 1, 3], [2, 3, 1]]),
        (Check.GREATEST, [[3, 2, 1], [3, 1, 2], [3, 1, 1]], [[3, 3, 1], [2, 3, 1], [2, 1, 3]]),
        (Check.EQUAL, [[2, 2, 2]], [[2, 2, 2.000000001], [2, 1, 2]]),
    ],
)
@pytest.mark.parametrize(
    ("answer", "good", "bad"),
    [
        (row(), Verdict.REPRODUCED, Verdict.DIFFERS),
        (row(Evidence.MEASURED, stand_in=OTHER), Verdict.TREND_ONLY, Verdict.DIFFERS_ON_STAND_IN),
        (row(Evidence.MEASURED, stand_in=OTHER, identity=True), Verdict.REPRODUCED, Verdict.DIFFERS),
        (row(Evidence.SIMULATED), Verdict.MATCHED, Verdict.NOT_MATCHED),
    ],
    ids=["derived", "stand-in", "identity", "simulated"],
)
def test_relations(
    check: Check, holds: list[list[float]], fails: list[list[float]], answer: AnswerRow, good: Verdict, bad: Verdict
) -> None:
    claim = replace(ORDER, check=check, answers=(answer,))
    for case in holds:
        assert verdict(claim, case) is good
    for case in fails:
        assert verdict(claim, case) is bad
        assert verdict(claim, [*holds[0], *case]) is bad


def test_reason_names_the_first_failing_case() -> None:
    why = judge_alone(ORDER, entry([1, 2, 3, 1, 5, 4, 9, 8, 7])).why
    assert why == "case 2 of 3: b = 5 is not less than c = 4"
    assert judge_alone(replace(ORDER, check=Check.LEAST), entry([2, 3, 1])).why == "a = 2 is not less than c = 1"
    assert judge_alone(replace(ORDER, check=Check.EQUAL), entry([2, 2, 3])).why == "c = 3 is not equal to a = 2"
    assert judge_alone(ORDER, entry([1, 2, 3])).why == "rises over a, b, c"


def test_an_equality_takes_its_tolerance_from_the_first_term() -> None:
    claim = replace(ORDER, check=Check.EQUAL, tolerance=0.08, because="similar")
    assert verdict(claim, [100, 108, 92]) is Verdict.REPRODUCED
    assert verdict(claim, [100, 108.01, 92]) is Verdict.DIFFERS
    assert verdict(claim, [100, 108, 91.99]) is Verdict.DIFFERS
    assert verdict(claim, [-100, -108, -92]) is Verdict.REPRODUCED
    assert verdict(claim, [0, 0, 1e-12]) is Verdict.DIFFERS


def test_a_formula_holds_at_every_point() -> None:
    # 4*10 + 16, 4*20 + 48, 4*5 + 8
    assert verdict(FORMULA, [56, 128, 28]) is Verdict.REPRODUCED
    assert verdict(FORMULA, [56 * (1 + 5e-13), 128, 28]) is Verdict.REPRODUCED
    assert verdict(FORMULA, [56 * (1 + 2e-12), 128, 28]) is Verdict.DIFFERS
    assert verdict(FORMULA, [56, 128, 28, 56, 128, 29]) is Verdict.DIFFERS
    why = judge_alone(FORMULA, entry([56, 129, 28])).why
    assert why == "4*phi + 16*bsize is 128 at phi = 20, bsize = 3, ours 129"
    wide = replace(FORMULA, tolerance=0.01, because="measured")
    assert verdict(wide, [56.5, 127, 28.2]) is Verdict.REPRODUCED
    assert verdict(wide, [56.5, 127, 28.3]) is Verdict.DIFFERS


def test_formula_with_value_zero_needs_exactly_zero() -> None:
    claim = replace(FORMULA, expression="phi - 10")
    assert verdict(claim, [0, 10, -5]) is Verdict.REPRODUCED
    assert verdict(claim, [1e-15, 10, -5]) is Verdict.DIFFERS


# Claims that hold in some of their cases


@pytest.mark.parametrize(
    ("cases", "enough", "too_few"),
    [(Cases.ALL, [2, 3, 4], [1, 2, 3]), (Cases.MOST, [2, 2, 3], [1, 1, 2]), (Cases.SOME, [1, 1, 1], [0, 0, 0])],
)
@pytest.mark.parametrize(
    ("claim", "holds", "fails"),
    [
        (BASE, (50.0,), (60.0,)),
        (ENDS, (10.0, 40.0), (10.0, 50.0)),
        (ORDER, (1.0, 2.0, 3.0), (3.0, 2.0, 1.0)),
        (FORMULA, (56, 128, 28), (56, 128, 29)),
    ],
    ids=["number", "ends", "order", "formula"],
)
def test_a_claim_holds_in_as_many_cases_as_it_says(
    claim: Claim,
    holds: tuple[float, ...],
    fails: tuple[float, ...],
    cases: Cases,
    enough: list[int],
    too_few: list[int],
) -> None:
    """Half of the cases are not most of them."""
    hedged = replace(claim, cases=cases, hedge="may")
    for total, good, bad in zip((2, 3, 4), enough, too_few, strict=True):
        for count, expected in ((good, Verdict.REPRODUCED), (bad, Verdict.DIFFERS)):
            good_cases, bad_cases = holds * count, fails * (total - count)
            assert verdict(hedged, good_cases + bad_cases) is expected
            assert verdict(hedged, bad_cases + good_cases) is expected


def test_each_value_of_a_range_is_a_case() -> None:
    claim = replace(BASE, value=(1.0, 50.0), check=Check.RANGE, kind="range", terms=("12b", "24b", "50b"))
    most, some = (replace(claim, cases=cases, hedge="typical") for cases in (Cases.MOST, Cases.SOME))
    assert verdict(claim, [5.0, 50.0, 51.0]) is Verdict.DIFFERS
    assert verdict(most, [5.0, 50.0, 51.0]) is Verdict.REPRODUCED
    assert verdict(most, [5.0, 51.0, 52.0]) is Verdict.DIFFERS
    assert verdict(some, [5.0, 51.0, 52.0]) is Verdict.REPRODUCED
    assert verdict(some, [51.0, 52.0, 53.0]) is Verdict.DIFFERS


def test_the_reason_shows_the_hedge_and_the_share() -> None:
    most = replace(BASE, cases=Cases.MOST, hedge="normally")
    assert judge_alone(most, entry([50.0, 60.0, 51.0])).why.endswith("in 2 of 3 cases (the paper says normally)")
    assert "normally" not in judge_alone(most, entry([60.0, 61.0, 50.0])).why
    some = replace(ORDER, cases=Cases.SOME, hedge="can")
    assert judge_alone(some, entry([3, 2, 1, 1, 2, 3])).why == "rises over a, b, c in 1 of 2 cases (the paper says can)"
    assert judge_alone(some, entry([3, 2, 1, 1, 3, 2])).why == "case 1 of 2: a = 3 is not less than b = 2"
    assert judge_alone(replace(some, hedge=""), entry([3, 2, 1, 1, 2, 3])).why == "rises over a, b, c in 1 of 2 cases"
    about = replace(ORDER, hedge="about")
    assert judge_alone(about, entry([1, 2, 3, 4, 5, 6])).why == "rises over a, b, c in 2 of 2 cases"


# The rules, in their order


FITTED, RESTATED = "c.x", "Eq. (1)"


@pytest.mark.parametrize(
    ("answer", "fed_by", "holds", "fails"),
    [
        # 2, before everything else
        (row(Evidence.PRINTED), [], Verdict.CONSISTENT, Verdict.CONTRADICTED),
        (row(Evidence.PRINTED, restates=RESTATED), [FITTED], Verdict.CONSISTENT, Verdict.CONTRADICTED),
        (row(Evidence.PRINTED, stand_in=OTHER), [], Verdict.CONSISTENT, Verdict.CONTRADICTED),
        # 3, only where it holds
        (row(restates=RESTATED), [], Verdict.CONSISTENT, Verdict.DIFFERS),
        (row(Evidence.MEASURED, restates=RESTATED), [], Verdict.CONSISTENT, Verdict.DIFFERS),
        (row(restates=RESTATED, stand_in=OTHER), [], Verdict.CONSISTENT, Verdict.DIFFERS_ON_STAND_IN),
        (row(Evidence.SIMULATED, restates=RESTATED), [], Verdict.CONSISTENT, Verdict.NOT_MATCHED),
        (row(Evidence.SIMULATED, restates=RESTATED), [FITTED], Verdict.CONSISTENT, Verdict.CALIBRATED_MISSED),
        # 4
        (row(Evidence.SIMULATED), [FITTED], Verdict.CALIBRATED, Verdict.CALIBRATED_MISSED),
        (row(Evidence.EMULATED), ["c.y", FITTED], Verdict.CALIBRATED, Verdict.CALIBRATED_MISSED),
        (row(), [FITTED], Verdict.CALIBRATED, Verdict.CALIBRATED_MISSED),
        (row(Evidence.MEASURED, stand_in=OTHER), [FITTED], Verdict.CALIBRATED, Verdict.CALIBRATED_MISSED),
        # 5, also on a stand-in
        (row(Evidence.SIMULATED), [], Verdict.MATCHED, Verdict.NOT_MATCHED),
        (row(Evidence.EMULATED), [], Verdict.MATCHED, Verdict.NOT_MATCHED),
        (row(Evidence.SIMULATED, stand_in=OTHER), [], Verdict.MATCHED, Verdict.NOT_MATCHED),
        # 6
        (row(Evidence.MEASURED, stand_in=OTHER), [], Verdict.TREND_ONLY, Verdict.DIFFERS_ON_STAND_IN),
        (row(stand_in=OTHER), [], Verdict.TREND_ONLY, Verdict.DIFFERS_ON_STAND_IN),
        # 7, also an identity on a stand-in
        (row(stand_in=OTHER, identity=True), [], Verdict.REPRODUCED, Verdict.DIFFERS),
        (row(Evidence.MEASURED), [], Verdict.REPRODUCED, Verdict.DIFFERS),
        (row(), [], Verdict.REPRODUCED, Verdict.DIFFERS),
        (row(), ["c", "c.xx", "c.y"], Verdict.REPRODUCED, Verdict.DIFFERS),
    ],
)
def test_the_first_rule_that_fits_decides(answer: AnswerRow, fed_by: list[str], holds: Verdict, fails: Verdict) -> None:
    claim = replace(BASE, answers=(answer,))
    assert verdict(claim, [50.0], fed_by=fed_by) is holds
    assert verdict(claim, [60.0], fed_by=fed_by) is fails
    nothing = judge_alone(
        claim, stored_answer(claim, [math.nan], answer.evidence, fed_by=fed_by)
    )  # 1, before all of them
    assert (nothing.verdict, nothing.ours) == (Verdict.NOT_RUN, ())


def test_the_reason_says_what_was_restated_and_what_was_fitted() -> None:
    restated = answered(BASE, restates="the setting gpus")
    assert judge_alone(restated, entry([50.0])).note == "it restates: the setting gpus"
    assert judge_alone(restated, entry([60.0])).note == ""
    fitted = stored_answer(BASE, [60.0], Evidence.DERIVED, fed_by=["c.x"])
    assert judge_alone(BASE, fitted).why == "the model was fitted to this value; our 60 is outside 50 ± 4"


@pytest.mark.parametrize(
    ("here", "there", "fed"),
    [
        ("Table I", "Table I", True),
        ("Section V-B (Table I)", "Table I, row AxoNN, column G_inter", True),
        ("Figures 6 and 7", "Figure 7 (right bar)", True),
        ("Figure 4(a) (text in Section V)", "Figure 4(b)", True),
        ("Table I", "Table II", False),
        ("Table 2", "Figure 2", False),
        ("Section V-B", "Section V-B", False),
    ],
)
@pytest.mark.parametrize("evidence", [Evidence.SIMULATED, Evidence.EMULATED])
def test_a_constant_fitted_to_another_cell_feeds_the_model(
    here: str, there: str, fed: bool, evidence: Evidence
) -> None:
    claim, other = answered(replace(BASE, where=here), evidence), replace(BASE, id="c.other", where=there)

    def judged(value: float, *claims: Claim, fed_by: Sequence[str] = ("c.other", "c.gone")) -> Judged:
        one = stored_answer(claim, [value], evidence, fed_by=fed_by)
        return judge.judge([claim, *claims], ReportStore(Path("nowhere"), (one,)))[0]

    assert judged(50.0, other).verdict is (Verdict.FED if fed else Verdict.MATCHED)
    assert ("fitted to c.other" in judged(50.0, other).why) is fed
    assert judged(60.0, other).verdict is Verdict.NOT_MATCHED
    assert judged(50.0, replace(other, paper="samo")).verdict is Verdict.MATCHED
    assert judged(50.0).verdict is Verdict.MATCHED
    assert judged(50.0, other, fed_by=["c.x", "c.other"]).verdict is Verdict.CALIBRATED


@pytest.mark.parametrize(
    ("figure", "evidence", "expected"),
    [
        ("demo", Evidence.SIMULATED, Verdict.FED),
        ("another", Evidence.SIMULATED, Verdict.MATCHED),
        ("demo", Evidence.DERIVED, Verdict.MATCHED),  # its value is no point of the simulated figure
    ],
)
def test_a_sentence_on_a_simulated_figure_is_fed_by_it(figure: str, evidence: Evidence, expected: Verdict) -> None:
    """Neither claim names the figure whose value it reports."""
    claim = answered(replace(BASE, where="Section VII-B"), Evidence.SIMULATED)
    other = replace(BASE, id="c.other", where="Abstract", answers=(replace(row(evidence), figure=figure),))
    one = stored_answer(claim, [50.0], Evidence.SIMULATED, fed_by=["c.other"])
    assert judge.judge([claim, other], ReportStore(Path("nowhere"), (one,)))[0].verdict is expected


def test_only_a_model_is_fed() -> None:
    other = replace(BASE, id="c.other")
    for answer, expected in (
        (row(), Verdict.REPRODUCED),
        (row(Evidence.MEASURED, stand_in=OTHER), Verdict.TREND_ONLY),
        (row(Evidence.PRINTED), Verdict.CONSISTENT),
        (row(Evidence.SIMULATED, restates=RESTATED), Verdict.CONSISTENT),
    ):
        claim = replace(BASE, answers=(answer,))
        store = ReportStore(Path("nowhere"), (stored_answer(claim, [50.0], answer.evidence, fed_by=["c.other"]),))
        assert judge.judge([claim, other], store)[0].verdict is expected


@pytest.mark.parametrize(
    ("values", "null", "expected"),
    [
        ([49.0], [], Verdict.MATCHED),
        ([49.0], [51.1], Verdict.MATCHED),
        ([49.0], [48.9], Verdict.MATCHED),
        ([49.0], [51.0], Verdict.NO_BETTER),  # as near on the other side
        ([49.0], [50.5], Verdict.NO_BETTER),
        ([50.0], [50.0], Verdict.NO_BETTER),
        ([60.0], [90.0], Verdict.NOT_MATCHED),  # nearer than the null model, and still outside
        ([60.0], [50.0], Verdict.NOT_MATCHED),
        ([49.0, 52.0], [50.0, 53.0], Verdict.MATCHED),  # the value farthest from the claim counts
        ([49.0, 52.0], [48.1, 50.0], Verdict.NO_BETTER),
        ([49.0], [math.nan], Verdict.MATCHED),
    ],
)
@pytest.mark.parametrize("evidence", [Evidence.SIMULATED, Evidence.EMULATED])
def test_a_model_has_to_be_nearer_than_the_null_model(
    values: list[float], null: list[float], expected: Verdict, evidence: Evidence
) -> None:
    claim = answered(BASE, evidence)
    judged = judge_alone(claim, stored_answer(claim, values, evidence, null=null))
    assert judged.verdict is expected
    assert ("the null model gives " in judged.why) is (expected is Verdict.NO_BETTER)


def test_fed_model_no_better_than_null_is_not_matched() -> None:
    claim, other = answered(BASE, Evidence.SIMULATED), replace(BASE, id="c.other")
    for null, expected in (([52.0], Verdict.FED), ([], Verdict.FED), ([50.0], Verdict.NOT_MATCHED)):
        one = stored_answer(claim, [49.0], Evidence.SIMULATED, fed_by=["c.other"], null=null)
        (judged, _) = judge.judge([claim, other], ReportStore(Path("nowhere"), (one,)))
        assert judged.verdict is expected
        assert "fitted to c.other" in judged.why
        assert ("null model" in judged.why) is (expected is Verdict.NOT_MATCHED)


@pytest.mark.parametrize(
    ("values", "null", "expected"),
    [
        ([41.0, 59.0], [39.0, 50.0], Verdict.MATCHED),  # one of the null model's values lies outside
        ([41.0, 59.0], [40.0, 60.0], Verdict.NO_BETTER),
        ([41.0, 59.0], [], Verdict.MATCHED),
        ([39.0, 59.0], [10.0, 90.0], Verdict.NOT_MATCHED),
    ],
)
def test_a_range_is_matched_where_the_null_model_lies_outside(
    values: list[float], null: list[float], expected: Verdict
) -> None:
    ranged = replace(BASE, value=(40.0, 60.0), check=Check.RANGE, terms=("12b", "24b"))
    assert verdict(answered(ranged, Evidence.SIMULATED), values, null=null) is expected


@pytest.mark.parametrize(
    ("null", "expected"),
    [
        ([10.7, 41.0], Verdict.MATCHED),  # ours is off by 0.5, the null model by 1
        ([10.0, 10.0], Verdict.MATCHED),  # both lie in the range, and the second far from its end
        ([10.0, 40.5], Verdict.NO_BETTER),
        ([10.0, 40.0], Verdict.NO_BETTER),
        ([], Verdict.MATCHED),
    ],
)
def test_ends_are_compared_with_those_of_the_null_model(null: list[float], expected: Verdict) -> None:
    assert verdict(answered(ENDS, Evidence.SIMULATED), [10.5, 40.0], null=null) is expected


def test_only_a_modelled_number_has_a_null_model() -> None:
    assert verdict(answered(ORDER, Evidence.SIMULATED), [1, 2, 3], null=[1, 2, 3]) is Verdict.MATCHED
    for answer, fed_by, expected in (
        (row(), [], Verdict.REPRODUCED),
        (row(Evidence.MEASURED, stand_in=OTHER), [], Verdict.TREND_ONLY),
        (row(Evidence.PRINTED), [], Verdict.CONSISTENT),
        (row(Evidence.SIMULATED, restates=RESTATED), [], Verdict.CONSISTENT),
        (row(Evidence.SIMULATED), [FITTED], Verdict.CALIBRATED),
    ):
        assert verdict(replace(BASE, answers=(answer,)), [50.0], fed_by=fed_by, null=[50.0]) is expected


def test_printed_numbers_agree_to_the_last_digit() -> None:
    """Eight percent applies to measured values, not to a paper's own arithmetic."""
    for value, inside, outside in ((50.0, 50.9, 51.1), (0.62, 0.6295, 0.6305), (-20.0, -20.9, -21.1)):
        printed = answered(replace(BASE, value=value), Evidence.PRINTED)
        assert verdict(printed, [inside]) is Verdict.CONSISTENT
        assert verdict(printed, [outside]) is Verdict.CONTRADICTED
        assert verdict(answered(printed), [outside]) is Verdict.REPRODUCED
    stated = answered(replace(BASE, tolerance=0.05, because="about"), Evidence.PRINTED)
    assert (verdict(stated, [52.5]), verdict(stated, [52.6])) == (Verdict.CONSISTENT, Verdict.CONTRADICTED)
    wide = answered(replace(BASE, value=(40.0, 60.0), check=Check.RANGE), Evidence.PRINTED)
    assert (verdict(wide, [60.0]), verdict(wide, [60.1])) == (Verdict.CONSISTENT, Verdict.CONTRADICTED)


# Evidence


STANDS_FOR = {  # what a value may be that does not say how it came about
    Source.MEASURED: {Evidence.MEASURED},
    Source.EMULATED: {Evidence.EMULATED},
    Source.SIMULATED: {Evidence.SIMULATED, Evidence.DERIVED, Evidence.MEASURED},
    Source.ANALYTIC: {Evidence.DERIVED, Evidence.PRINTED},
}


@pytest.mark.parametrize("source", Source)
@pytest.mark.parametrize("evidence", Evidence)
def test_a_value_answers_only_for_its_own_evidence(source: Source, evidence: Evidence) -> None:
    claim = answered(BASE, evidence)
    silent = judge_alone(claim, entry([50.0], source))
    assert (silent.verdict is not Verdict.NOT_RUN) is (evidence in STANDS_FOR[source])
    for stated in Evidence:
        judged = judge_alone(claim, entry([50.0], source, evidence=stated.value))
        if stated is evidence:
            assert (judged.evidence, judged.ours) == (evidence, ((50.0,),))
        else:
            assert (judged.verdict, judged.evidence, judged.ours) == (Verdict.NOT_RUN, None, ())
            assert judged.why == "no record holds it: it needs a simulated or measured run of its cluster"


def test_only_an_identity_leaves_the_stand_in_behind() -> None:
    scopes = (
        (row(), Scope.AS_PUBLISHED),
        (row(stand_in=OTHER), Scope.STAND_IN),
        (row(stand_in=OTHER, identity=True), Scope.AS_PUBLISHED),
        (row(identity=True), Scope.AS_PUBLISHED),
    )
    for answer, scope in scopes:
        for entries in ((entry([50.0]),), ()):
            judged = judge_alone(replace(BASE, answers=(answer,)), *entries)
            assert (judged.scope, judged.stand_in) == (scope, answer.stand_in)


def test_a_judged_claim_says_where_its_value_comes_from() -> None:
    judged = judge_alone(BASE, entry([50.0], file="measured/h200/a.json", machine="h200"))
    assert (judged.record, judged.experiment) == ("measured/h200/a.json", "demo")
    assert judged.command == "suite run experiment=demo"
    assert judged.ours == ((50.0,),)


def test_value_without_evidence_is_calibrated_like_its_record() -> None:
    for names in (["c.x"], ("c.y", "c.x")):
        for value, expected in ((50.0, Verdict.CALIBRATED), (1.0, Verdict.CALIBRATED_MISSED)):
            assert judge_alone(BASE, entry([value], provenance={"calibrated_on": names})).verdict is expected
    for damaged in (["c"], ["c.xx"], "c.xx", {"c.x": 1}, None, 3, [["c.x"]]):
        assert judge_alone(BASE, entry([50.0], provenance={"calibrated_on": damaged})).verdict is Verdict.REPRODUCED
    assert judge_alone(BASE, entry([math.nan], provenance={"calibrated_on": ["c.x"]})).verdict is Verdict.NOT_RUN
    stated = entry([50.0], evidence="derived", provenance={"calibrated_on": ["c.x"]})
    assert judge_alone(BASE, stated).verdict is Verdict.REPRODUCED


# Several answers


STRONGEST_FIRST = (Evidence.MEASURED, Evidence.DERIVED, Evidence.EMULATED, Evidence.SIMULATED, Evidence.PRINTED)


def test_the_strongest_evidence_takes_the_headline() -> None:
    claim = replace(BASE, answers=tuple(row(evidence) for evidence in reversed(STRONGEST_FIRST)))
    for number, strongest in enumerate(STRONGEST_FIRST):
        at_most = STRONGEST_FIRST[number:]
        entries = [stored_answer(claim, [50.0 if one is strongest else 60.0], one, file=one.value) for one in at_most]
        for order in (entries, entries[::-1]):
            judged = judge_alone(claim, *order)
            assert (judged.evidence, judged.record, judged.ours) == (strongest, strongest.value, ((50.0,),))
            other_evidence = [other.evidence for other in judged.others]
            assert other_evidence == [*at_most[1:], *[None] * number]


def test_each_answer_has_its_own_verdict() -> None:
    answers = (row(Evidence.SIMULATED), row(Evidence.MEASURED, stand_in=OTHER), row(Evidence.PRINTED), row())
    claim = replace(BASE, answers=answers)
    values = {Evidence.SIMULATED: 60.0, Evidence.MEASURED: 50.0, Evidence.PRINTED: 60.0, Evidence.DERIVED: 49.0}
    judged = judge_alone(claim, *(stored_answer(claim, [value], evidence) for evidence, value in values.items()))
    assert (judged.verdict, judged.scope, judged.stand_in) == (Verdict.TREND_ONLY, Scope.STAND_IN, OTHER)
    assert [(other.verdict, other.scope, other.stand_in, other.ours) for other in judged.others] == [
        (Verdict.REPRODUCED, Scope.AS_PUBLISHED, "", ((49.0,),)),
        (Verdict.NOT_MATCHED, Scope.AS_PUBLISHED, "", ((60.0,),)),
        (Verdict.CONTRADICTED, Scope.AS_PUBLISHED, "", ((60.0,),)),
    ]
    assert all(other.claim is claim and other.why and not other.others for other in judged.others)


def test_an_answer_without_a_value_leaves_the_headline_to_others() -> None:
    claim = replace(BASE, answers=(row(Evidence.MEASURED), row(Evidence.SIMULATED)))
    simulated = stored_answer(claim, [60.0], Evidence.SIMULATED)
    broken = stored_answer(claim, [math.nan], Evidence.MEASURED)
    failed = stored_answer(claim, [50.0], Evidence.MEASURED, outcome=Outcome.FAILED)
    for entries in ((simulated,), (simulated, broken), (failed, simulated)):
        judged = judge_alone(claim, *entries)
        assert (judged.verdict, judged.evidence) == (Verdict.NOT_MATCHED, Evidence.SIMULATED)
        (other,) = judged.others
        assert (other.verdict, other.ours) == (Verdict.NOT_RUN, ())
        assert other.why
    nothing = judge_alone(claim)
    assert (nothing.verdict, nothing.evidence, len(nothing.others)) == (Verdict.NOT_RUN, None, 1)


# Controls


ACCURACY = replace(
    BASE,
    unit="perplexity",
    answers=(
        AnswerRow(
            Evidence.MEASURED, turned_by=TURNED, experiment="demo", labels=("axonn seed *",), metric="perplexity"
        ),
    ),
)
CONTROL = replace(BASE, id="c.control", answers=(row(),))
CHECKED = replace(BASE, control="c.control")


def with_control(claim: Claim, control: Claim, *entries: StoredRecord) -> Judged:
    """The verdict on `claim`, the same before and after its control in the claim file."""
    store = ReportStore(Path("nowhere"), entries)
    first, _ = judge.judge([claim, control], store)
    _, last = judge.judge([control, claim], store)
    assert first == last
    return first


def test_an_exact_value_that_differs_contradicts_under_a_control() -> None:
    bad, good = stored_answer(CHECKED, [60.0], Evidence.DERIVED), stored_answer(CONTROL, [50.0], Evidence.DERIVED)
    judged = with_control(CHECKED, CONTROL, bad, good)
    assert (judged.verdict, judged.ours) == (Verdict.CONTRADICTED, ((60.0,),))
    assert judged.why == "our 60 is outside 50 ± 4; the control c.control holds"
    holds = with_control(CHECKED, CONTROL, stored_answer(CHECKED, [50.0], Evidence.DERIVED), good)
    assert (holds.verdict, holds.why) == (Verdict.REPRODUCED, "our 50 lies in 50 ± 4")


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (row(), 60.0),
        (row(), math.nan),
        (row(restates="a setting"), 50.0),
        (row(stand_in=OTHER), 50.0),
        (row(Evidence.SIMULATED), 50.0),
        (row(Evidence.PRINTED), 50.0),
    ],
)
def test_a_control_that_is_not_reproduced_contradicts_nothing(answer: AnswerRow, value: float) -> None:
    control = replace(CONTROL, answers=(answer,))
    bad = stored_answer(CHECKED, [60.0], Evidence.DERIVED)
    judged = with_control(CHECKED, control, bad, stored_answer(control, [value], answer.evidence))
    assert judged.verdict is Verdict.DIFFERS
    assert with_control(CHECKED, control, bad).verdict is Verdict.DIFFERS
    assert judge_alone(CHECKED, bad).verdict is Verdict.DIFFERS


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (replace(CHECKED, control=""), Verdict.DIFFERS),
        (replace(CHECKED, control="c.y"), Verdict.DIFFERS),
        (replace(CHECKED, control="c.x"), Verdict.DIFFERS),
        (answered(CHECKED, Evidence.MEASURED), Verdict.DIFFERS),
        (answered(CHECKED, stand_in=OTHER), Verdict.DIFFERS_ON_STAND_IN),
        (answered(CHECKED, Evidence.SIMULATED), Verdict.NOT_MATCHED),
    ],
)
def test_only_an_exact_value_as_published_is_contradicted(claim: Claim, expected: Verdict) -> None:
    bad = stored_answer(claim, [60.0], claim.answers[0].evidence)
    assert with_control(claim, CONTROL, bad, stored_answer(CONTROL, [50.0], Evidence.DERIVED)).verdict is expected


def test_measured_counts_are_exact_and_times_are_not() -> None:
    good = stored_answer(CONTROL, [50.0], Evidence.DERIVED)
    counted = replace(answered(CHECKED, Evidence.MEASURED), unit="byte")
    bad = stored_answer(counted, [60.0], Evidence.MEASURED, unit="byte")
    assert with_control(counted, CONTROL, bad, good).verdict is Verdict.CONTRADICTED
    timed = answered(CHECKED, Evidence.MEASURED)
    assert (
        with_control(timed, CONTROL, stored_answer(timed, [60.0], Evidence.MEASURED), good).verdict is Verdict.DIFFERS
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [([60.0, 60.1, 59.9], Verdict.CONTRADICTED), ([60.0, 60.1], Verdict.DIFFERS), ([50.0, 50.1], Verdict.REPRODUCED)],
)
def test_three_repeats_that_differ_contradict_under_a_control(values: Sequence[float], expected: Verdict) -> None:
    claim = replace(ACCURACY, control="c.control")
    store = ReportStore(Path("nowhere"), (*seeds("axonn", values), stored_answer(CONTROL, [50.0], Evidence.DERIVED)))
    judged, _ = judge.judge([claim, CONTROL], store)
    assert (judged.verdict, judged.repeats) == (expected, len(values))


# Choice among records


def test_the_best_source_answers_then_this_machine_then_the_newest() -> None:
    order = [
        entry([1.0], Source.MEASURED, started="2025-01-02", file="1", evidence="derived"),
        entry([2.0], Source.MEASURED, started="2025-01-01", file="2", evidence="derived", label="b"),
        entry([3.0], Source.MEASURED, started="2025-06-01", machine="h200", file="3", evidence="derived"),
        entry([4.0], Source.EMULATED, started="2025-07-01", file="4", evidence="derived"),
        entry([5.0], Source.SIMULATED, started="2025-08-01", file="5", evidence="derived"),
        entry([6.0], Source.SIMULATED, started="2025-09-01", machine="h200", file="6"),
        entry([7.0], Source.ANALYTIC, started="2025-10-01", file="7"),
    ]
    while order:
        best = order[0]
        for entries in (order, order[::-1]):
            judged = judge_alone(BASE, *entries)
            assert (judged.record, judged.ours) == (best.file, (best.record.metrics["c.x"].values,))
        order.pop(0)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_a_run_that_did_not_end_well_never_answers(outcome: Outcome) -> None:
    bad = entry([50.0], Source.SIMULATED, started="2026", outcome=outcome)
    judged = judge_alone(BASE, bad)
    assert (judged.verdict, judged.ours, judged.record) == (Verdict.NOT_RUN, (), "")
    assert outcome.value in judged.why
    assert judge_alone(BASE, bad, entry([10.0])).verdict is Verdict.DIFFERS


def test_the_newest_record_answers_even_if_it_is_broken() -> None:
    """An older number must not hide that the code gives none any more."""
    old, new = entry([50.0], started="2025-01-01"), entry([math.nan], started="2025-01-02")
    judged = judge_alone(BASE, old, new)
    assert (judged.verdict, judged.ours) == (Verdict.NOT_RUN, ())
    assert judged.why == "not finite: 1 of our 1 values"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([], "0 values; rule: 3 per case"),
        ([1.0, 2.0], "2 values"),
        ([1.0] * 4, "4 values"),
        ([1, 2, math.inf], "finite"),
    ],
)
def test_a_wrong_number_of_values_answers_nothing(values: list[float], why: str) -> None:
    judged = judge_alone(ORDER, entry(values))
    assert (judged.verdict, judged.ours) == (Verdict.NOT_RUN, ())
    assert why in judged.why


@pytest.mark.parametrize("reach", ["analytic", "cpu", "gpu", "cluster", "data"])
def test_no_record_says_what_is_needed(reach: str) -> None:
    claim = replace(BASE, reach=reach)
    for variant, why in ((claim, "no record holds it"), (replace(claim, answers=()), "nothing here answers it")):
        judged = judge_alone(variant, entry([1.0], name="c.y"))
        assert judged.verdict is Verdict.NOT_RUN
        assert judged.why.startswith(f"{why}: it needs a")
        assert (judged.evidence, judged.record, judged.ours) == (None, "", ())


def test_a_claim_without_answers_takes_no_value() -> None:
    judged = judge_alone(replace(BASE, answers=()), entry([50.0]))
    assert (judged.verdict, judged.ours, judged.record, judged.others) == (Verdict.NOT_RUN, (), "", ())


# Runs side by side


def test_medians_of_an_experiment_answer() -> None:
    quick, slow = run("axonn 2x1", [3.0, 1.0, 2.0, math.nan]), run("gpipe 2x1", [2.5, 9.0, 2.1])
    judged = judge_alone(QUICKER, quick, slow)
    assert (judged.evidence, judged.ours) == (Evidence.MEASURED, ((2.0, 2.5),))
    assert judged.record == "records/axonn 2x1.json"
    for entries in ((quick,), (slow,), (quick, run("gpipe 2x1", [3.0], outcome=Outcome.FAILED)), ()):
        judged = judge_alone(QUICKER, *entries)
        assert (judged.verdict, judged.experiment) == (Verdict.NOT_RUN, "demo")
        assert "experiment demo has no complete set of axonn 2x1, gpipe 2x1" in judged.why
    assert judge_alone(QUICKER, quick, run("gpipe 2x1", [3.0], experiment="other")).verdict is Verdict.NOT_RUN
    assert judge_alone(QUICKER, quick, run("gpipe 2x1", [])).verdict is Verdict.NOT_RUN
    crowded = run("gpipe 2x1", [3.0], "oversubscribed: 4 ranks on 2 cores")
    assert judge_alone(QUICKER, quick, crowded).why == "gpipe 2x1: oversubscribed: 4 ranks on 2 cores"


def test_runs_of_two_machines_or_sources_are_not_compared() -> None:
    here, there = run("axonn 2x1", [2.0]), run("gpipe 2x1", [3.0], machine="h200")
    assert judge_alone(QUICKER, here, there).verdict is Verdict.NOT_RUN
    assert judge_alone(QUICKER, here, run("gpipe 2x1", [3.0], source=Source.SIMULATED)).verdict is Verdict.NOT_RUN
    both = [there, run("axonn 2x1", [4.0], machine="h200")]
    assert judge_alone(QUICKER, here, *both).ours == ((4.0, 3.0),)
    assert judge_alone(QUICKER, here, *both, run("gpipe 2x1", [5.0])).ours == ((2.0, 5.0),)


def test_the_newest_run_of_each_label_answers() -> None:
    runs = [run(label, [time], started=day) for label, time, day in [("axonn 2x1", 2.0, "1"), ("gpipe 2x1", 3.0, "1")]]
    newer = run("axonn 2x1", [7.0], started="2")
    for entries in ([*runs, newer], [newer, *runs]):
        assert judge_alone(QUICKER, *entries).ours == ((7.0, 3.0),)
    failed = judge_alone(QUICKER, *runs, run("axonn 2x1", [7.0], started="2", outcome=Outcome.OOM))
    assert (failed.verdict, failed.ours) == (Verdict.NOT_RUN, ())
    assert "axonn 2x1 oom" in failed.why


def test_runs_that_did_not_take_turns_are_in_no_order() -> None:
    runs = [run("axonn 2x1", [2.0], turns="a"), run("gpipe 2x1", [3.0], turns="b")]
    judged = judge_alone(QUICKER, *runs)
    assert judged.verdict is Verdict.NOT_RUN
    assert "were not interleaved" in judged.why
    assert judge_alone(QUICKER, runs[0], run("gpipe 2x1", [3.0], turns="a")).ours == ((2.0, 3.0),)


def test_units_are_compared() -> None:
    judged = judge_alone(BASE, entry([50.0], unit="minute"))
    assert (judged.verdict, judged.ours) == (Verdict.NOT_RUN, ())
    assert "'minute'" in judged.why
    assert "'second'" in judged.why
    slow = run("gpipe 2x1", metrics={"batch_time": Metric("ms", "lower", (3.0,))})
    assert "'ms' and 's'" in judge_alone(QUICKER, run("axonn 2x1", [2.0]), slow).why


# Repeats


EARLY, LATE = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]  # of 70 ways to deal 4 + 4 ranks, 2 are as far apart
MIXED = [1.5, 2.5, 6.5, 7.5]


def timed(label: str, times: Sequence[float], rounds: int = 4, **changes: Any) -> StoredRecord:
    """A run in so many rounds."""
    return run(label, times, config={"measure": {"rounds": rounds}}, **changes)


@pytest.mark.parametrize(
    ("ours", "theirs", "published", "stand_in"),
    [
        (EARLY, LATE, Verdict.REPRODUCED, Verdict.TREND_ONLY),
        (EARLY, MIXED, Verdict.UNDECIDED, Verdict.UNDECIDED),
        (LATE, MIXED, Verdict.UNDECIDED, Verdict.UNDECIDED),
        (EARLY, EARLY, Verdict.UNDECIDED, Verdict.UNDECIDED),
        (LATE, EARLY, Verdict.DIFFERS, Verdict.DIFFERS_ON_STAND_IN),
    ],
)
def test_a_measured_order_needs_repeats_that_are_apart(
    ours: list[float], theirs: list[float], published: Verdict, stand_in: Verdict
) -> None:
    runs = (timed("axonn 2x1", ours), timed("gpipe 2x1", theirs))
    elsewhere = replace(QUICKER.answers[0], stand_in=OTHER)
    greatest = replace(QUICKER, check=Check.GREATEST, terms=("gpipe", "axonn"))
    swapped = replace(QUICKER.answers[0], labels=("gpipe 2x1", "axonn 2x1"))
    assert judge_alone(QUICKER, *runs).verdict is published
    assert judge_alone(replace(QUICKER, answers=(elsewhere,)), *runs).verdict is stand_in
    assert judge_alone(replace(greatest, answers=(swapped,)), *runs).verdict is published
    assert "4 repeats each" in judge_alone(QUICKER, *runs).why


def test_three_repeats_a_side_decide_nothing() -> None:
    # of 20 ways to deal 3 + 3 ranks, 2 are as far apart: one in ten
    runs = (timed("axonn 2x1", [1.0, 2.0, 3.0], 3), timed("gpipe 2x1", [7.0, 8.0, 9.0], 3))
    assert judge_alone(QUICKER, *runs).verdict is Verdict.UNDECIDED


def test_samples_of_one_round_are_one_repeat() -> None:
    times = (EARLY + EARLY, LATE + LATE)
    for rounds, expected in ((8, Verdict.REPRODUCED), (4, Verdict.REPRODUCED), (2, Verdict.UNDECIDED)):
        runs = (timed(label, each, rounds) for label, each in zip(("axonn 2x1", "gpipe 2x1"), times, strict=True))
        assert judge_alone(QUICKER, *runs).verdict is expected


def test_only_the_pairs_that_the_check_compares_must_be_apart() -> None:
    labels = ("a", "b", "c")
    least = replace(QUICKER, terms=labels, answers=(replace(QUICKER.answers[0], labels=labels),))
    between = [each + 0.1 for each in LATE]
    runs = [timed(label, each) for label, each in zip(labels, (EARLY, LATE, between), strict=True)]
    assert judge_alone(least, *runs).verdict is Verdict.REPRODUCED
    assert judge_alone(replace(least, check=Check.RISES), *runs).verdict is Verdict.UNDECIDED
    assert judge_alone(replace(least, check=Check.NEVER_FALLS), *runs).verdict is Verdict.REPRODUCED
    assert judge_alone(replace(least, check=Check.FALLS), *runs).verdict is Verdict.DIFFERS
    apart = [each + 10 for each in LATE]
    rising = (*runs[:2], timed("c", apart))
    assert judge_alone(replace(least, check=Check.RISES), *rising).verdict is Verdict.REPRODUCED
    fallen = (*runs[:2], timed("c", EARLY))
    assert judge_alone(replace(least, check=Check.NEVER_FALLS), *fallen).verdict is Verdict.DIFFERS


def test_counts_and_models_need_no_repeats() -> None:
    counted = replace(QUICKER, answers=(replace(QUICKER.answers[0], metric="payload_bytes"),))
    for ours, theirs, expected in ((3.0, 4.0, Verdict.REPRODUCED), (4.0, 3.0, Verdict.DIFFERS)):
        sent = ({"payload_bytes": Metric("byte", "lower", (each, each))} for each in (ours, theirs))
        runs = [run(label, metrics=each) for label, each in zip(("axonn 2x1", "gpipe 2x1"), sent, strict=True)]
        assert judge_alone(counted, *runs).verdict is expected
    modelled = replace(QUICKER, answers=(replace(QUICKER.answers[0], evidence=Evidence.SIMULATED),))
    runs = [timed(label, each, source=Source.SIMULATED) for label, each in (("axonn 2x1", EARLY), ("gpipe 2x1", MIXED))]
    assert judge_alone(modelled, *runs).verdict is Verdict.MATCHED


BY_SEED = replace(
    QUICKER, answers=(replace(QUICKER.answers[0], labels=("axonn seed *", "gpipe seed *"), metric="perplexity"),)
)


def test_label_with_star_answers_with_the_mean_over_seeds() -> None:
    def seeds(system: str, values: Sequence[float]) -> list[StoredRecord]:
        sampled = [(value, value - 0.5, value + 0.5) for value in values]
        return [
            run(f"{system} seed {seed}", metrics={"perplexity": Metric("", "lower", each)})
            for seed, each in enumerate(sampled)
        ]

    judged = judge_alone(BY_SEED, *seeds("axonn", EARLY), *seeds("gpipe", LATE))
    assert (judged.verdict, judged.ours) == (Verdict.REPRODUCED, ((2.5, 6.5),))
    assert judge_alone(BY_SEED, *seeds("axonn", EARLY[:3]), *seeds("gpipe", LATE[:3])).verdict is Verdict.UNDECIDED
    assert judge_alone(BY_SEED, *seeds("axonn", EARLY), *seeds("gpipe", MIXED)).verdict is Verdict.UNDECIDED
    assert judge_alone(BY_SEED, *seeds("axonn", LATE), *seeds("gpipe", EARLY)).verdict is Verdict.DIFFERS
    odd = seeds("axonn", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 1000.0])  # ranks below, in the mean above
    assert (
        judge_alone(BY_SEED, *odd, *seeds("gpipe", [each + 10 for each in (*EARLY, *LATE)])).verdict
        is Verdict.UNDECIDED
    )
    for gpipe in (LATE[:3], []):
        assert judge_alone(BY_SEED, *seeds("axonn", EARLY), *seeds("gpipe", gpipe)).verdict is Verdict.NOT_RUN


# Series


def seeds(system: str, values: Sequence[float]) -> list[StoredRecord]:
    return [
        run(f"{system} seed {number}", metrics={"perplexity": Metric("", "lower", (value,))})
        for number, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([49.0, 50.0, 51.0], Verdict.REPRODUCED),  # 95 percent: 47.5 to 52.5
        ([45.0, 50.0, 55.0], Verdict.UNDECIDED),  # 37.6 to 62.4, where 46 to 54 is allowed
        ([54.5, 54.6, 54.7], Verdict.DIFFERS),
        ([53.0, 54.5, 56.0], Verdict.UNDECIDED),  # the mean is outside, its interval is not
    ],
)
def test_a_measured_number_needs_an_interval_inside_the_tolerance(values: Sequence[float], expected: Verdict) -> None:
    judged = judge_alone(ACCURACY, *seeds("axonn", values))
    assert judged.verdict is expected
    assert "3 repeats each, 95 percent interval" in judged.why


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ([10.1, 10.0, 9.9], Verdict.REPRODUCED),
        ([10.9, 10.4, 10.0], Verdict.UNDECIDED),
        ([12.0, 12.1, 12.2], Verdict.DIFFERS),
    ],
)
def test_a_measured_equality_needs_an_interval_of_the_difference(theirs: Sequence[float], expected: Verdict) -> None:
    claim = replace(BY_SEED, check=Check.EQUAL, kind="equality", tolerance=0.05)
    ours = [10.0, 10.1, 9.9]
    assert judge_alone(claim, *seeds("axonn", ours), *seeds("gpipe", theirs)).verdict is expected


@pytest.mark.parametrize(
    ("least", "largest", "expected"),
    [
        ([10.1, 10.0, 9.9], [40.0, 40.1, 39.9], Verdict.REPRODUCED),
        ([10.1, 10.0, 9.9], [38.0, 40.0, 42.0], Verdict.UNDECIDED),  # 95 percent: 35 to 45, where 38 to 42 is allowed
        ([10.1, 10.0, 9.9], [20.0, 20.1, 19.9], Verdict.DIFFERS),  # inside the range, and not its end
    ],
)
def test_each_measured_end_needs_an_interval_around_its_own(
    least: Sequence[float], largest: Sequence[float], expected: Verdict
) -> None:
    claim = replace(BY_SEED, check=Check.ENDS, kind="range", value=(10.0, 40.0), tolerance=0.05)
    assert judge_alone(claim, *seeds("axonn", least), *seeds("gpipe", largest)).verdict is expected


def test_ranks_apart_in_the_other_direction_outweigh_the_means() -> None:
    one = judge_alone(BY_SEED, *seeds("axonn", range(11, 19)), *seeds("gpipe", [1, 2, 3, 4, 5, 6, 7, 1000]))
    assert one.ours[0][0] < one.ours[0][1]
    assert one.verdict is Verdict.DIFFERS
    assert "apart in the other direction" in one.why


def test_timed_run_of_one_round_decides_no_order() -> None:
    one = judge_alone(QUICKER, run("axonn 2x1", [1.0]), run("gpipe 2x1", [2.0]))
    assert one.verdict is Verdict.UNDECIDED


def test_too_many_repeats_to_test_decide_no_order() -> None:
    times = [1.0 + number / 10 for number in range(21)]  # 42 together, where 40 are tested at most
    one = judge_alone(QUICKER, timed("axonn 2x1", times, 21), timed("gpipe 2x1", [each + 9 for each in times], 21))
    assert one.verdict is Verdict.UNDECIDED


def test_parts_of_a_batch_time_need_repeats_too() -> None:
    claim = replace(QUICKER, answers=(replace(QUICKER.answers[0], metric="update_time"),))
    for theirs, expected in ((LATE, Verdict.REPRODUCED), (MIXED, Verdict.UNDECIDED)):
        times = ({"update_time": Metric("s", "lower", tuple(each))} for each in (EARLY, theirs))
        rounds = {"measure": {"rounds": 4}}
        runs = [
            run(label, metrics=each, config=rounds)
            for label, each in zip(QUICKER.answers[0].labels, times, strict=True)
        ]
        assert judge_alone(claim, *runs).verdict is expected


def test_drop_inside_the_noise_is_undecided() -> None:
    rises = replace(QUICKER, check=Check.NEVER_FALLS)
    assert (
        judge_alone(rises, timed("axonn 2x1", [1.0, 2.0, 3.2, 4.1]), timed("gpipe 2x1", EARLY)).verdict
        is Verdict.UNDECIDED
    )
    assert judge_alone(rises, timed("axonn 2x1", LATE), timed("gpipe 2x1", EARLY)).verdict is Verdict.DIFFERS


def test_simulated_runs_answer_no_measured_row() -> None:
    one = judge_alone(
        QUICKER, *(replace_source(each) for each in (timed("axonn 2x1", EARLY), timed("gpipe 2x1", LATE)))
    )
    assert one.verdict is Verdict.NOT_RUN


def replace_source(one: StoredRecord) -> StoredRecord:
    return replace(one, record=replace(one.record, source=Source.SIMULATED))


def test_series_of_several_seeds_are_averaged() -> None:
    answer = replace(BY_SEED.answers[0], metric="", series="loss")
    equal = replace(BY_SEED, check=Check.EQUAL, tolerance=0.01, because="x", answers=(answer,))
    runs = [
        run(f"{name} seed {seed}", loss=[1.0 + seed * (name == "gpipe")])
        for name in ("axonn", "gpipe")
        for seed in (0, 1)
    ]
    assert judge_alone(equal, *runs).ours == ((1.0, 1.5),)


def test_number_near_the_printed_one_may_lose_the_direction() -> None:
    claim = answered(replace(SPEEDUP, value=1.05), Evidence.MEASURED, stand_in="a smaller model")
    assert verdict(claim, [1.02]) is Verdict.TREND_ONLY
    assert verdict(claim, [0.98]) is Verdict.DIFFERS_ON_STAND_IN


def test_broken_sample_does_not_take_its_round_with_it() -> None:
    one = judge_alone(
        QUICKER, timed("axonn 2x1", [1.0, 2.0, 3.0, math.nan, 3.5, 3.6], 3), timed("gpipe 2x1", [5.0, 6.0, 7.0], 3)
    )
    assert "3 repeats each" in one.why


def test_tables_and_figures_of_a_place_are_all_found() -> None:
    for where, names in {
        "Tables I and II": {"axonn Table I", "axonn Table II"},
        "Figures 5, 6 and 7": {"axonn Figure 5", "axonn Figure 6", "axonn Figure 7"},
        "Figures 2(a) and 3": {"axonn Figure 2", "axonn Figure 3"},
        "Section VI-B": set(),
    }.items():
        assert replace(BASE, where=where).displays == names


def test_the_batches_of_a_series_are_the_cases() -> None:
    terms = ("pytorch", "axonn")
    claim = replace(BASE, value="same", check=Check.EQUAL, terms=terms, tolerance=1e-5, because="x")
    labels = ("pytorch 1x1", "axonn 2x2")
    answer = AnswerRow(
        Evidence.MEASURED, turned_by=TURNED, experiment="demo", labels=labels, series="loss", stand_in="a smaller model"
    )
    claim = replace(claim, answers=(replace(answer, identity=True),))
    theirs = run("pytorch 1x1", loss=[6.0, 5.0, 4.0])
    near = judge_alone(claim, theirs, run("axonn 2x2", loss=[6.0, 5.00004, 4.0]))
    assert (near.verdict, near.ours) == (Verdict.REPRODUCED, ((6.0, 6.0), (5.0, 5.00004), (4.0, 4.0)))
    assert judge_alone(replace(claim, answers=(answer,)), theirs, run("axonn 2x2", loss=[6.0, 5.0, 4.0])).verdict is (
        Verdict.TREND_ONLY
    )
    far = judge_alone(claim, theirs, run("axonn 2x2", loss=[6.0, 5.0, 4.00005]))
    assert far.verdict is Verdict.DIFFERS
    assert far.why.startswith("case 3 of 3: axonn = 4.00005 is not within 1e-05")
    for loss in ([6.0, 5.0], [], [6.0, math.nan, 4.0]):
        judged = judge_alone(claim, theirs, run("axonn 2x2", loss=loss))
        assert (judged.verdict, judged.ours) == (Verdict.NOT_RUN, ())
    assert "pytorch 1x1 3, axonn 2x2 2" in judge_alone(claim, theirs, run("axonn 2x2", loss=[6.0, 5.0])).why


# claims.csv


def test_claims_csv_has_every_column(tmp_path: Path) -> None:
    claims = [
        replace(BASE, id="c.number", quantity='say "fast", now', where="Table I\nand II"),
        answered(replace(SAVED, id="c.range", paper="samo"), Evidence.SIMULATED),
        answered(replace(ORDER, id="c.order"), Evidence.MEASURED, stand_in=OTHER),
        replace(FORMULA, id="c.formula"),
        replace(BASE, id="c.none", value=54.78, system="", answers=()),
    ]
    entries = [
        entry([50.1234567, 49.0], name="c.number", label="number"),
        entry([11.0], name="c.range", label="range", source=Source.SIMULATED),
        entry([1e-7, 2, 3, 4, 5, 6e11], name="c.order", label="order", source=Source.MEASURED),
        entry([56, 128, 29], name="c.formula", label="formula"),
    ]
    judged = judge.judge(claims, ReportStore(tmp_path, tuple(entries)))
    path = claim_text.write_claims(tmp_path / "new", judged)
    assert path == tmp_path / "new" / "claims.csv"
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == [
        *("id", "paper", "where", "system", "quantity", "paper_value", "our_value"),
        *("unit", "evidence", "scope", "verdict", "why", "note", "turns"),
    ]
    assert [row["id"] for row in rows] == [claim.id for claim in claims]
    assert [row["our_value"] for row in rows] == [
        "50.1235 | 49",
        "11",
        "a=1e-07 b=2 c=3 | a=4 b=5 c=6e+11",
        "point 1=56 point 2=128 point 3=29",
        "",
    ]
    assert [row["paper_value"] for row in rows] == ["50", "[13, inf]", "a < b < c", "4*phi + 16*bsize", "54.78"]
    verdicts = ["reproduced", "not matched by the model", "trend only", "differs", "not run"]
    assert [row["verdict"] for row in rows] == verdicts
    assert [row["evidence"] for row in rows] == ["derived", "simulated", "measured", "derived", ""]
    scopes = ["as published", "as published", "stand-in", "as published", "as published"]
    assert [row["scope"] for row in rows] == scopes
    assert [row["paper"] for row in rows] == ["axonn", "samo", "axonn", "axonn", "axonn"]
    assert [row["system"] for row in rows] == ["axonn", "axonn", "axonn", "axonn", ""]
    assert (rows[0]["quantity"], rows[0]["where"]) == ('say "fast", now', "Table I\nand II")
    assert (rows[0]["unit"], rows[1]["why"]) == ("second", "our 11 is outside [13, inf]")
    assert [row["note"] for row in rows] == ["", "on the published side of 0", "", "", ""]
    assert all(row["why"] for row in rows)


def test_hostile_text_in_a_record_is_text(tmp_path: Path) -> None:
    hostile = "\"><script>alert(1)</script>\r\n=cmd|' /C calc'!A0,\ud800\x00../../etc"
    records = tmp_path / "records"
    records.mkdir()
    good = run("axonn 2x1", [2.0])
    bad = run(
        "gpipe 2x1", [3.0], "oversubscribed" + hostile, provenance={"started": hostile, "command": hostile, "x": []}
    )
    for number, record in enumerate((good, bad)):
        text = replace(record.record, key=str(number), reason=hostile, system=hostile).to_json()
        (records / f"{number}.json").write_text(text, encoding="utf-8")
    store = read_store(tmp_path)
    assert len(store.entries) == 2
    judged = judge.judge([QUICKER, replace(BASE, id="c.y")], store)
    assert judged[0].why == "gpipe 2x1: oversubscribed" + hostile
    path = claim_text.write_claims(tmp_path, judged)
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    assert [len(row) for row in rows] == [14, 14, 14]
    assert rows[1][-3] == "gpipe 2x1: oversubscribed" + hostile.replace("\ud800", "?")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["claims.csv", "records"]


def test_a_null_in_a_file_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "measured" / "h200").mkdir(parents=True)
    (tmp_path / "measured" / "h200" / "a.jsonl").write_text(entry([math.nan]).record.to_line())
    judged = judge.judge([BASE], read_store(tmp_path))[0]
    assert (judged.verdict, judged.record) == (Verdict.NOT_RUN, "measured/h200/a.jsonl#1")


@pytest.mark.parametrize(
    ("answer", "turned", "missed"),
    [
        (row(), Verdict.REPRODUCED, Verdict.DIFFERS),
        (row(stand_in=OTHER), Verdict.TREND_ONLY, Verdict.DIFFERS_ON_STAND_IN),
        (row(Evidence.SIMULATED), Verdict.MATCHED, Verdict.NOT_MATCHED),
        (row(Evidence.PRINTED), Verdict.CONSISTENT, Verdict.CONTRADICTED),
    ],
)
def test_verdict_in_favour_needs_a_mutation(answer: AnswerRow, turned: Verdict, missed: Verdict) -> None:
    free = replace(BASE, answers=(answer,))
    bare = replace(BASE, answers=(replace(answer, turned_by=()),))
    assert verdict(free, [50.0]) is turned
    one = judge_alone(bare, stored_answer(bare, [50.0], answer.evidence))
    assert one.verdict is Verdict.CONSISTENT
    assert (f"else {turned}" in one.why) is (turned is not Verdict.CONSISTENT)
    assert verdict(bare, [90.0]) is missed
    fitted = {"fed_by": ("c.x",)}
    assert verdict(bare, [50.0], **fitted) is verdict(free, [50.0], **fitted)
