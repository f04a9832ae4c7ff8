"""Decides whether the judge gives the verdicts that were worked out by hand, to the edge of every tolerance.

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

from suite.core.claim import Check, Claim, Judged, Scope, Verdict
from suite.core.record import Metric, Outcome, Record, Source
from suite.report import judge
from suite.report.load import Entry, Store, read_store

BASE = Claim(
    "c.x", "axonn", "Table I", "batch_time", "axonn", 50.0, "second", "number", "cluster", scope=Scope.SIMULATED
)
ORDER = replace(BASE, value="a < b < c", kind="ordering", check=Check.RISES, terms=("a", "b", "c"))
FORMULA = replace(
    BASE,
    value="4*phi + 16*bsize",
    kind="formula",
    check=Check.FORMULA,
    expression="4*phi + 16*bsize",
    points=({"phi": 10.0, "bsize": 1.0}, {"phi": 20.0, "bsize": 3.0}, {"phi": 5.0, "bsize": 0.5}),
)
COMPARED = {"experiment": "demo", "metric": "batch_time", "labels": ["axonn 2x1", "gpipe 2x1"]}


def entry(values: Sequence[float], source: Source = Source.SIMULATED, name: str = "c.x", **changes: Any) -> Entry:
    """A record that answers claim `name`; file, machine and started name its entry and its time."""
    file, machine = changes.pop("file", "records/k.json"), changes.pop("machine", "")
    unit = changes.pop("unit", "second")
    provenance = {"started": changes.pop("started", "2025-01-01"), "command": "python -m suite experiment=demo"}
    provenance["turns"] = changes.pop("turns", "one call")
    record = Record("k", "demo", "axonn", "axonn 2x1", Outcome.OK, source, provenance=provenance)
    record = replace(record, metrics={name: Metric(unit, "lower", tuple(values))})
    return Entry(replace(record, **changes), file, machine)


def found(claim: Claim, *entries: Entry) -> Judged:
    (judged,) = judge.judge([claim], Store(Path("nowhere"), entries))
    assert judged.claim is claim
    return judged


def verdict(claim: Claim, values: Sequence[float], source: Source = Source.SIMULATED) -> Verdict:
    return found(claim, entry(values, source, unit=claim.unit)).verdict


def run(label: str, times: Sequence[float] = (), note: str = "", loss: Sequence[float] = (), **changes: Any) -> Entry:
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
    stand_in = replace(claim, scope=Scope.STAND_IN)
    for value in inside:
        assert verdict(claim, [value]) is Verdict.REPRODUCED
        assert verdict(stand_in, [value], Source.MEASURED) is Verdict.TREND_ONLY
    for value in outside:
        assert verdict(claim, [value]) is Verdict.REFUTED
        assert verdict(stand_in, [value], Source.MEASURED) is Verdict.NOT_RUN


SPEEDUP = replace(BASE, value=1.5, neutral=1.0, unit="ratio", kind="ratio")
SAVED = replace(BASE, value=(13.0, math.inf), neutral=0.0, check=Check.RANGE, kind="range")
AT_NEUTRAL = replace(SPEEDUP, value=1.0)
LOST = replace(BASE, value=-20.0, neutral=0.0)
AROUND = replace(BASE, value=(-1.0, 3.0), neutral=0.0, check=Check.RANGE, kind="range")
FROM_NEUTRAL = replace(BASE, value=(0.0, 4.0), neutral=0.0, check=Check.RANGE, kind="range")


@pytest.mark.parametrize(
    ("claim", "value", "simulated", "stand_in"),
    [
        (SPEEDUP, 1.5, Verdict.REPRODUCED, Verdict.TREND_ONLY),
        (SPEEDUP, 1.05, Verdict.TREND_ONLY, Verdict.TREND_ONLY),
        (SPEEDUP, 9.0, Verdict.TREND_ONLY, Verdict.TREND_ONLY),
        (SPEEDUP, 1.0, Verdict.REFUTED, Verdict.REFUTED),
        (SPEEDUP, 0.9, Verdict.REFUTED, Verdict.REFUTED),
        (SAVED, 13.0, Verdict.REPRODUCED, Verdict.TREND_ONLY),
        (SAVED, 0.1, Verdict.TREND_ONLY, Verdict.TREND_ONLY),
        (SAVED, 0.0, Verdict.REFUTED, Verdict.REFUTED),
        (SAVED, -5.0, Verdict.REFUTED, Verdict.REFUTED),
        (LOST, -21.0, Verdict.REPRODUCED, Verdict.TREND_ONLY),
        (LOST, -1.0, Verdict.TREND_ONLY, Verdict.TREND_ONLY),
        (LOST, 1.0, Verdict.REFUTED, Verdict.REFUTED),
        # a range around the neutral point has no side
        (AROUND, 2.0, Verdict.REPRODUCED, Verdict.TREND_ONLY),
        (AROUND, 3.1, Verdict.REFUTED, Verdict.NOT_RUN),
        # a number on the neutral point has none either
        (AT_NEUTRAL, 1.0, Verdict.REPRODUCED, Verdict.TREND_ONLY),
        (AT_NEUTRAL, 9.0, Verdict.REFUTED, Verdict.NOT_RUN),
        (AT_NEUTRAL, -9.0, Verdict.REFUTED, Verdict.NOT_RUN),
        (FROM_NEUTRAL, 0.0, Verdict.REPRODUCED, Verdict.TREND_ONLY),
        (FROM_NEUTRAL, 5.0, Verdict.TREND_ONLY, Verdict.TREND_ONLY),
        (FROM_NEUTRAL, -0.1, Verdict.REFUTED, Verdict.REFUTED),
    ],
)
def test_a_trend_is_the_published_side_of_the_neutral_point(
    claim: Claim, value: float, simulated: Verdict, stand_in: Verdict
) -> None:
    assert verdict(claim, [value]) is simulated
    assert verdict(replace(claim, scope=Scope.STAND_IN), [value], Source.MEASURED) is stand_in


def test_one_case_outside_is_enough() -> None:
    assert verdict(BASE, [50.0, 51.0, 49.0]) is Verdict.REPRODUCED
    assert verdict(BASE, [50.0, 51.0, 60.0]) is Verdict.REFUTED
    assert verdict(SPEEDUP, [1.5, 1.1]) is Verdict.TREND_ONLY
    assert verdict(SPEEDUP, [1.5, 1.1, 0.9]) is Verdict.REFUTED


def test_the_reason_says_what_was_compared() -> None:
    assert found(BASE, entry([50.0, 51.5])).why == "our 50, 51.5 lie in 50 ± 4"
    assert found(BASE, entry([50.0, 60.0, 61.0])).why == "our 60 is outside 50 ± 4"
    assert found(BASE, entry([50.0] * 3 + [47.0] + [52.0] * 3)).why == "our 7 values, 47 to 52, lie in 50 ± 4"
    count = replace(BASE, tolerance=0.0, because="a count")
    assert (found(count, entry([50.0])).why, found(count, entry([51.0])).why) == ("our 50 is 50", "our 51 is not 50")
    assert found(SAVED, entry([12.0])).why == "our 12 is outside [13, inf], on the published side of 0"
    stand_in = replace(BASE, scope=Scope.STAND_IN)
    assert found(stand_in, entry([50.0], Source.MEASURED)).why == "our 50 lies in 50 ± 4; a stand-in shows no more"
    assert found(stand_in, entry([70.0], Source.MEASURED)).why == (
        "our 70 is outside 50 ± 4, and a stand-in's value says nothing about the published one"
    )


def test_every_value_of_a_range_counts() -> None:
    claim = replace(BASE, value=(22.0, 37.0), check=Check.RANGE, kind="range", terms=("12b", "24b"))
    assert verdict(claim, [22.0, 37.0]) is Verdict.REPRODUCED
    assert verdict(claim, [22.0, 38.0]) is Verdict.REFUTED
    assert found(claim, entry([22.0, 37.0, 30.0, 31.0])).ours == ((22.0, 37.0), (30.0, 31.0))


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
@pytest.mark.parametrize("scope", [Scope.AS_PUBLISHED, Scope.STAND_IN])
def test_relations(check: Check, holds: list[list[float]], fails: list[list[float]], scope: Scope) -> None:
    """On a stand-in an order and an equality may be reproduced."""
    claim = replace(ORDER, check=check, scope=scope)
    for case in holds:
        assert verdict(claim, case, Source.MEASURED) is Verdict.REPRODUCED
    for case in fails:
        assert verdict(claim, case, Source.MEASURED) is Verdict.REFUTED
        assert verdict(claim, [*holds[0], *case], Source.MEASURED) is Verdict.REFUTED


def test_the_reason_names_the_first_case_that_fails_and_its_numbers() -> None:
    why = found(ORDER, entry([1, 2, 3, 1, 5, 4, 9, 8, 7])).why
    assert why == "case 2 of 3: b = 5 is not less than c = 4"
    assert found(replace(ORDER, check=Check.LEAST), entry([2, 3, 1])).why == "a = 2 is not less than c = 1"
    assert found(replace(ORDER, check=Check.EQUAL), entry([2, 2, 3])).why == "c = 3 is not equal to a = 2"


def test_an_equality_takes_its_tolerance_from_the_first_term() -> None:
    claim = replace(ORDER, check=Check.EQUAL, tolerance=0.08, because="similar")
    assert verdict(claim, [100, 108, 92]) is Verdict.REPRODUCED
    assert verdict(claim, [100, 108.01, 92]) is Verdict.REFUTED
    assert verdict(claim, [100, 108, 91.99]) is Verdict.REFUTED
    assert verdict(claim, [-100, -108, -92]) is Verdict.REPRODUCED
    assert verdict(claim, [0, 0, 1e-12]) is Verdict.REFUTED


def test_a_formula_holds_at_every_point() -> None:
    # 4*10 + 16, 4*20 + 48, 4*5 + 8
    assert verdict(FORMULA, [56, 128, 28]) is Verdict.REPRODUCED
    assert verdict(FORMULA, [56 * (1 + 5e-13), 128, 28]) is Verdict.REPRODUCED
    assert verdict(FORMULA, [56 * (1 + 2e-12), 128, 28]) is Verdict.REFUTED
    assert verdict(FORMULA, [56, 128, 28, 56, 128, 29]) is Verdict.REFUTED
    why = found(FORMULA, entry([56, 129, 28])).why
    assert why == "4*phi + 16*bsize is 128 at phi = 20, bsize = 3, ours 129"
    wide = replace(FORMULA, tolerance=0.01, because="measured")
    assert verdict(wide, [56.5, 127, 28.2]) is Verdict.REPRODUCED
    assert verdict(wide, [56.5, 127, 28.3]) is Verdict.REFUTED


def test_a_formula_that_is_nothing_somewhere_is_met_by_nothing_alone() -> None:
    claim = replace(FORMULA, expression="phi - 10")
    assert verdict(claim, [0, 10, -5]) is Verdict.REPRODUCED
    assert verdict(claim, [1e-15, 10, -5]) is Verdict.REFUTED


# Sources and scopes


@pytest.mark.parametrize(
    ("scope", "source", "effective"),
    [
        (Scope.AS_PUBLISHED, Source.MEASURED, Scope.AS_PUBLISHED),
        (Scope.AS_PUBLISHED, Source.EMULATED, Scope.EMULATED),
        (Scope.AS_PUBLISHED, Source.SIMULATED, Scope.SIMULATED),
        (Scope.AS_PUBLISHED, Source.ANALYTIC, Scope.AS_PUBLISHED),
        (Scope.STAND_IN, Source.MEASURED, Scope.STAND_IN),
        (Scope.STAND_IN, Source.SIMULATED, Scope.STAND_IN),
        (Scope.STAND_IN, Source.EMULATED, Scope.STAND_IN),
        (Scope.STAND_IN, Source.ANALYTIC, Scope.STAND_IN),
        (Scope.SIMULATED, Source.MEASURED, Scope.STAND_IN),
        (Scope.SIMULATED, Source.EMULATED, Scope.EMULATED),
        (Scope.SIMULATED, Source.SIMULATED, Scope.SIMULATED),
        (Scope.SIMULATED, Source.ANALYTIC, Scope.SIMULATED),
        (Scope.EMULATED, Source.MEASURED, Scope.STAND_IN),
    ],
)
def test_the_source_can_only_narrow_the_scope(scope: Scope, source: Source, effective: Scope) -> None:
    judged = found(replace(BASE, scope=scope), entry([50.0], source))
    assert (judged.scope, judged.source) == (effective, source.value)
    assert judged.verdict is (Verdict.TREND_ONLY if effective is Scope.STAND_IN else Verdict.REPRODUCED)


def test_a_judged_claim_says_where_its_value_comes_from() -> None:
    judged = found(BASE, entry([50.0], file="measured/h200/a.json", machine="h200"))
    assert (judged.record, judged.experiment) == ("measured/h200/a.json", "demo")
    assert judged.command == "python -m suite experiment=demo"
    assert judged.ours == ((50.0,),)


def test_a_model_fitted_to_the_claim_is_calibrated() -> None:
    for names in (["c.x"], ("c.y", "c.x"), "c.x"):
        for value in (50.0, 1.0):
            assert found(BASE, entry([value], provenance={"calibrated_on": names})).verdict is Verdict.CALIBRATED
    for names in (["c"], ["c.xx"], "c.xx", {"c.x": 1}, None, 3, [["c.x"]]):
        assert found(BASE, entry([50.0], provenance={"calibrated_on": names})).verdict is Verdict.REPRODUCED
    assert found(BASE, entry([math.nan], provenance={"calibrated_on": ["c.x"]})).verdict is Verdict.NOT_RUN


# Choice among records


def test_the_best_source_answers_then_this_machine_then_the_newest() -> None:
    order = [
        entry([1.0], Source.MEASURED, started="2025-01-02", file="1"),
        entry([2.0], Source.MEASURED, started="2025-01-01", file="2"),
        entry([3.0], Source.MEASURED, started="2025-06-01", machine="h200", file="3"),
        entry([4.0], Source.EMULATED, started="2025-07-01", file="4"),
        entry([5.0], Source.SIMULATED, started="2025-08-01", file="5"),
        entry([6.0], Source.SIMULATED, started="2025-09-01", machine="h200", file="6"),
        entry([7.0], Source.ANALYTIC, started="2025-10-01", file="7"),
    ]
    while order:
        best = order[0]
        for entries in (order, order[::-1]):
            judged = found(BASE, *entries)
            assert (judged.record, judged.ours) == (best.file, (best.record.metrics["c.x"].values,))
        order.pop(0)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_a_run_that_did_not_end_well_never_answers(outcome: Outcome) -> None:
    bad = entry([50.0], Source.MEASURED, started="2026", outcome=outcome)
    judged = found(BASE, bad)
    assert (judged.verdict, judged.ours, judged.record) == (Verdict.NOT_RUN, (), "")
    assert outcome.value in judged.why
    assert found(BASE, bad, entry([10.0])).verdict is Verdict.REFUTED


def test_the_newest_record_answers_even_if_it_is_broken() -> None:
    """An older number must not hide that the code gives none any more."""
    old, new = entry([50.0], started="2025-01-01"), entry([math.nan], started="2025-01-02")
    judged = found(BASE, old, new)
    assert (judged.verdict, judged.ours) == (Verdict.NOT_RUN, ())
    assert judged.why == "not finite: 1 of our 1 values"


@pytest.mark.parametrize(
    ("values", "why"),
    [([], "0 values; rule: 3 a case"), ([1.0, 2.0], "2 values"), ([1.0] * 4, "4 values"), ([1, 2, math.inf], "finite")],
)
def test_a_wrong_number_of_values_answers_nothing(values: list[float], why: str) -> None:
    judged = found(ORDER, entry(values))
    assert (judged.verdict, judged.ours) == (Verdict.NOT_RUN, ())
    assert why in judged.why


@pytest.mark.parametrize("reach", ["analytic", "cpu", "gpu", "cluster", "data"])
def test_no_record_says_what_is_needed(reach: str) -> None:
    judged = found(replace(BASE, reach=reach), entry([1.0], name="c.y"))
    assert judged.verdict is Verdict.NOT_RUN
    assert judged.why.startswith("no record holds it: it needs a")
    assert (judged.source, judged.record, judged.ours, judged.scope) == ("", "", (), BASE.scope)


# Runs side by side


def test_medians_of_an_experiment_answer() -> None:
    claim = replace(BASE, value="a < b", check=Check.LEAST, terms=("axonn", "gpipe"), evidence=COMPARED, reach="cpu")
    quick, slow = run("axonn 2x1", [3.0, 1.0, 2.0, math.nan]), run("gpipe 2x1", [2.5, 9.0, 2.1])
    assert found(claim, quick, slow).ours == ((2.0, 2.5),)
    assert found(claim, quick, slow).verdict is Verdict.REPRODUCED
    assert found(claim, quick, run("gpipe 2x1", [1.9])).verdict is Verdict.REFUTED
    assert found(claim, quick, slow).record == "records/axonn 2x1.json"
    for entries in ((quick,), (slow,), (quick, run("gpipe 2x1", [3.0], outcome=Outcome.FAILED)), ()):
        judged = found(claim, *entries)
        assert judged.verdict is Verdict.NOT_RUN
        assert "experiment demo has no complete set of axonn 2x1, gpipe 2x1" in judged.why
    assert found(claim, quick, run("gpipe 2x1", [3.0], experiment="other")).verdict is Verdict.NOT_RUN
    assert found(claim, quick, run("gpipe 2x1", [])).verdict is Verdict.NOT_RUN
    crowded = run("gpipe 2x1", [3.0], "oversubscribed: 4 ranks on 2 cores")
    assert found(claim, quick, crowded).why == "gpipe 2x1: oversubscribed: 4 ranks on 2 cores"


def test_runs_of_two_machines_or_sources_are_not_compared() -> None:
    claim = replace(BASE, value="a < b", check=Check.LEAST, terms=("axonn", "gpipe"), evidence=COMPARED)
    here, there = run("axonn 2x1", [2.0]), run("gpipe 2x1", [3.0], machine="h200")
    assert found(claim, here, there).verdict is Verdict.NOT_RUN
    assert found(claim, here, run("gpipe 2x1", [3.0], source=Source.SIMULATED)).verdict is Verdict.NOT_RUN
    both = [there, run("axonn 2x1", [4.0], machine="h200")]
    assert found(claim, here, *both).ours == ((4.0, 3.0),)
    assert found(claim, here, *both, run("gpipe 2x1", [5.0])).ours == ((2.0, 5.0),)


def test_the_newest_run_of_each_label_answers() -> None:
    claim = replace(BASE, value="a < b", check=Check.LEAST, terms=("axonn", "gpipe"), evidence=COMPARED)
    runs = [run(label, [time], started=day) for label, time, day in [("axonn 2x1", 2.0, "1"), ("gpipe 2x1", 3.0, "1")]]
    newer = run("axonn 2x1", [7.0], started="2")
    for entries in ([*runs, newer], [newer, *runs]):
        assert found(claim, *entries).ours == ((7.0, 3.0),)
    failed = found(claim, *runs, run("axonn 2x1", [7.0], started="2", outcome=Outcome.OOM))
    assert (failed.verdict, failed.ours) == (Verdict.NOT_RUN, ())
    assert "axonn 2x1 oom" in failed.why


def test_runs_that_did_not_take_turns_are_in_no_order() -> None:
    claim = replace(BASE, value="a < b", check=Check.LEAST, terms=("axonn", "gpipe"), evidence=COMPARED)
    runs = [run("axonn 2x1", [2.0], turns="a"), run("gpipe 2x1", [3.0], turns="b")]
    judged = found(claim, *runs)
    assert judged.verdict is Verdict.NOT_RUN
    assert "did not take turns" in judged.why
    assert found(claim, runs[0], run("gpipe 2x1", [3.0], turns="a")).verdict is Verdict.REPRODUCED


def test_units_are_compared() -> None:
    judged = found(BASE, entry([50.0], unit="minute"))
    assert (judged.verdict, judged.ours) == (Verdict.NOT_RUN, ())
    assert "'minute'" in judged.why
    assert "'second'" in judged.why
    claim = replace(BASE, value="a < b", check=Check.LEAST, terms=("axonn", "gpipe"), evidence=COMPARED)
    slow = run("gpipe 2x1", metrics={"batch_time": Metric("ms", "lower", (3.0,))})
    assert "'ms' and 's'" in found(claim, run("axonn 2x1", [2.0]), slow).why


def test_the_batches_of_a_series_are_the_cases() -> None:
    evidence = {"experiment": "demo", "series": "loss", "labels": ["pytorch 1x1", "axonn 2x2"]}
    terms = ("pytorch", "axonn")
    claim = replace(BASE, value="same", check=Check.EQUAL, terms=terms, evidence=evidence, tolerance=1e-5, because="x")
    theirs = run("pytorch 1x1", loss=[6.0, 5.0, 4.0])
    near = found(claim, theirs, run("axonn 2x2", loss=[6.0, 5.00004, 4.0]))
    assert (near.verdict, near.ours) == (Verdict.REPRODUCED, ((6.0, 6.0), (5.0, 5.00004), (4.0, 4.0)))
    far = found(claim, theirs, run("axonn 2x2", loss=[6.0, 5.0, 4.00005]))
    assert far.verdict is Verdict.REFUTED
    assert far.why.startswith("case 3 of 3: axonn = 4.00005 is not within 1e-05")
    for loss in ([6.0, 5.0], [], [6.0, math.nan, 4.0]):
        judged = found(claim, theirs, run("axonn 2x2", loss=loss))
        assert (judged.verdict, judged.ours) == (Verdict.NOT_RUN, ())
    assert "pytorch 1x1 3, axonn 2x2 2" in found(claim, theirs, run("axonn 2x2", loss=[6.0, 5.0])).why


# claims.csv


def test_claims_csv_has_every_column(tmp_path: Path) -> None:
    claims = [
        replace(BASE, id="c.number", quantity='say "fast", now', where="Table I\nand II"),
        replace(BASE, id="c.range", value=(13.0, math.inf), check=Check.RANGE, paper="samo"),
        replace(ORDER, id="c.order"),
        replace(FORMULA, id="c.formula"),
        replace(BASE, id="c.none", value=54.78, system=""),
    ]
    entries = [
        entry([50.1234567, 49.0], name="c.number", label="number"),
        entry([11.0], name="c.range", label="range"),
        entry([1e-7, 2, 3, 4, 5, 6e11], name="c.order", label="order"),
        entry([56, 128, 28], name="c.formula", source=Source.ANALYTIC, label="formula"),
    ]
    judged = judge.judge(claims, Store(tmp_path, tuple(entries)))
    path = judge.write_claims(tmp_path / "new", judged)
    assert path == tmp_path / "new" / "claims.csv"
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == [
        *("id", "paper", "where", "system", "quantity", "paper_value", "our_value"),
        *("unit", "source", "scope", "verdict", "why"),
    ]
    assert [row["id"] for row in rows] == [claim.id for claim in claims]
    assert [row["our_value"] for row in rows] == [
        "50.1235 | 49",
        "11",
        "a=1e-07 b=2 c=3 | a=4 b=5 c=6e+11",
        "point 1=56 point 2=128 point 3=28",
        "",
    ]
    assert [row["paper_value"] for row in rows] == ["50", "[13, inf]", "a < b < c", "4*phi + 16*bsize", "54.78"]
    assert [row["verdict"] for row in rows] == ["reproduced", "refuted", "reproduced", "reproduced", "not run here"]
    assert [row["source"] for row in rows] == ["simulated", "simulated", "simulated", "analytic", ""]
    assert [row["scope"] for row in rows] == ["simulated"] * 5
    assert [row["paper"] for row in rows] == ["axonn", "samo", "axonn", "axonn", "axonn"]
    assert [row["system"] for row in rows] == ["axonn", "axonn", "axonn", "axonn", ""]
    assert (rows[0]["quantity"], rows[0]["where"]) == ('say "fast", now', "Table I\nand II")
    assert (rows[0]["unit"], rows[1]["why"]) == ("second", "our 11 is outside [13, inf]")
    assert all(row["why"] for row in rows)


def test_hostile_text_in_a_record_is_text(tmp_path: Path) -> None:
    hostile = "\"><script>alert(1)</script>\r\n=cmd|' /C calc'!A0,\ud800\x00../../etc"
    records = tmp_path / "records"
    records.mkdir()
    good = run("axonn 2x1", [2.0])
    bad = run(
        "gpipe 2x1", [3.0], "oversubscribed" + hostile, provenance={"started": hostile, "command": hostile, "x": []}
    )
    for number, item in enumerate((good, bad)):
        text = replace(item.record, key=str(number), reason=hostile, system=hostile).to_json()
        (records / f"{number}.json").write_text(text, encoding="utf-8")
    store = read_store(tmp_path)
    assert len(store.entries) == 2
    claim = replace(BASE, value="a < b", check=Check.LEAST, terms=("axonn", "gpipe"), evidence=COMPARED)
    judged = judge.judge([claim, BASE], store)
    assert judged[0].why == "gpipe 2x1: oversubscribed" + hostile
    path = judge.write_claims(tmp_path, judged)
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    assert [len(row) for row in rows] == [12, 12, 12]
    assert rows[1][-1] == "gpipe 2x1: oversubscribed" + hostile.replace("\ud800", "?")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["claims.csv", "records"]


def test_a_null_in_a_file_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "measured" / "h200").mkdir(parents=True)
    (tmp_path / "measured" / "h200" / "a.jsonl").write_text(entry([math.nan]).record.to_line())
    judged = judge.judge([BASE], read_store(tmp_path))[0]
    assert (judged.verdict, judged.record) == (Verdict.NOT_RUN, "measured/h200/a.jsonl#1")
