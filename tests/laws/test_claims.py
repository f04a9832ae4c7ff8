"""Law: every claim can be met and can be missed.

For each answer of each claim, a store with conforming values must get the best verdict, and every violation of the
check must change it. Conforming values are derived here from the row, without the code of the judge. A claim without
an answer obeys the same laws, as if our code derived its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from suite.claims import load
from suite.claims.claim import AnswerRow, Check, Claim, Evidence, Judged, Verdict
from suite.claims.claim import Cases as HowMany
from suite.claims.judge import judge
from suite.core.record import Metric, Outcome, Record, Source
from suite.report.load import ReportStore, StoredRecord

ALL = load.claims()
EMPTY = ReportStore(Path("nowhere"))
SOURCES = {
    Evidence.MEASURED: Source.MEASURED,
    Evidence.DERIVED: Source.ANALYTIC,
    Evidence.EMULATED: Source.EMULATED,
    Evidence.SIMULATED: Source.SIMULATED,
    Evidence.PRINTED: Source.ANALYTIC,
}
STRONGEST_FIRST = tuple(SOURCES)
MODELLED = (Evidence.EMULATED, Evidence.SIMULATED)
NUMERIC = (Check.NUMBER, Check.RANGE)
NEIGHBOURS = (Check.RISES, Check.FALLS, Check.NEVER_FALLS)
FUNCTIONS = {"min": min, "max": max, "abs": abs, "sqrt": math.sqrt, "log": math.log}
APART = 2.0**-13  # between repeats: far less than what conforming values differ by
UNANSWERED = AnswerRow(Evidence.DERIVED, figure="law", function="suite.papers.law.value", turned_by=("law",))

Cases = list[list[float]]


def turned(row: AnswerRow) -> AnswerRow:
    """Copy of the answer with a registered mutation. An expression over runs is judged as a metric of one run."""
    row = replace(row, turned_by=("law",))
    return replace(row, value="", metric="peak_memory", labels=row.labels[:1]) if row.value else row


# each claim with one of its answers
CASES = [replace(claim, answers=(turned(row),)) for claim in ALL for row in claim.answers or (UNANSWERED,)]
Law = Callable[[Claim], None]


def each_paper(law: Law) -> Callable[[str], None]:
    """Turn a law on one claim into a test per paper over all its answers.

    Collecting and reporting thousands of tests would take longer than the laws themselves.
    """

    @pytest.mark.parametrize("paper", sorted({claim.paper for claim in ALL}))
    def every(paper: str) -> None:
        assert_each(law, [claim for claim in CASES if claim.paper == paper])

    return every


def assert_each(law: Law, tried: Sequence[Claim]) -> None:
    """Fail with the ids and errors of all claims that break the law."""
    broken = []
    for claim in tried:
        try:
            law(claim)
        except Exception as error:  # an error breaks the law too
            broken.append(f"{claim.id} {answer(claim).evidence}: {type(error).__name__}: {error}")
    assert not broken, f"{len(broken)} of {len(tried)} answers\n" + "\n".join(broken)


def answer(claim: Claim) -> AnswerRow:
    (row,) = claim.answers
    return row


# Stores that answer a claim


def stored(claim: Claim, cases: Sequence[Sequence[float]]) -> ReportStore:
    """Store of records that give `cases` as the answer of the claim."""
    row = answer(claim)
    base = Record("k", "law", "axonn", f"{claim.id} {row.evidence}", Outcome.OK, SOURCES[row.evidence])
    if not row.labels:
        values = tuple(value for case in cases for value in case)
        metric = Metric(claim.unit, "", values, evidence=row.evidence.value)
        records = [replace(base, metrics={claim.id: metric})]
    else:
        positions = enumerate(row.labels)
        records = [record for term, label in positions for record in runs(base, row, label, cases, term)]
    entries = tuple(StoredRecord(record, f"records/{record.label}.json") for record in records)
    return ReportStore(Path("nowhere"), entries)


def runs(base: Record, row: AnswerRow, label: str, cases: Sequence[Sequence[float]], term: int) -> Iterator[Record]:
    """Records of one label: a series of the cases, or five repeats around the value as rounds or seeds."""
    base = replace(base, experiment=row.experiment, label=label, config={"measure": {"rounds": 5}})
    repeats = [cases[0][term] + number * APART for number in (0, -1, 1, -2, 2)]
    if row.series:
        yield replace(base, series={row.series: [case[term] for case in cases]})
    elif "*" not in label:
        yield replace(base, metrics={row.metric: Metric(unit_of(row), "lower", tuple(repeats))})
    else:
        for seed, value in enumerate(repeats):
            metrics = {row.metric: Metric(unit_of(row), "lower", (value,))}
            yield replace(base, label=label.replace("*", str(seed)), metrics=metrics)


def unit_of(row: AnswerRow) -> str:
    """The unit of the metric that an answer compares."""
    return "s" if "time" in row.metric.split("_") else ""


def ranked(claim: Claim) -> bool:
    """Whether repeats of a measured order are compared by rank."""
    row = answer(claim)
    repeated = unit_of(row) == "s" or any("*" in label for label in row.labels)
    return bool(row.labels) and row.evidence not in (*MODELLED, Evidence.PRINTED) and repeated


def verdict(claim: Claim, cases: Sequence[Sequence[float]]) -> Judged:
    row, store = answer(claim), EMPTY
    if row.printed:  # expressions that have these values
        claim = replace(claim, answers=(replace(row, printed=tuple(tuple(map(repr, case)) for case in cases)),))
    else:
        store = stored(claim, cases)
    (judged,) = judge([claim], store)
    assert judged.why
    return judged


def how_many(claim: Claim) -> int:
    return 1 if answer(claim).metric else 3


def needed(claim: Claim) -> int:
    """The fewest cases that have to fail before the claim does."""
    return {HowMany.ALL: 1, HowMany.MOST: (how_many(claim) + 1) // 2, HowMany.SOME: how_many(claim)}[claim.cases]


# Printed values of the row


def conforming(claim: Claim) -> Cases:
    width = max(1, len(claim.terms))
    rising = [float(number + 1) for number in range(width)]
    match claim.check:
        case Check.NUMBER:
            case = [claim.value]
        case Check.RANGE:
            low, high = claim.value
            low = high - abs(high) - 1 if math.isinf(low) else low
            high = low + abs(low) + 1 if math.isinf(high) else high
            case = [low + (high - low) * number / (width + 1) for number in rising]
        case Check.ENDS:
            case = list(claim.value)
        case Check.RISES | Check.NEVER_FALLS:
            case = rising
        case Check.FALLS:
            case = rising[::-1]
        case Check.LEAST:
            case = [0.5, *[2.0] * (width - 1)]
        case Check.GREATEST:
            case = [2.0, *[0.5] * (width - 1)]
        case Check.EQUAL:
            case = [3.0] * width
        case Check.FORMULA:
            case = [formula(claim, number) for number in range(len(claim.points))]
    return [list(case) for _ in range(how_many(claim))]


def formula(claim: Claim, point: int) -> float:
    return float(eval(claim.expression, {"__builtins__": {}}, {**FUNCTIONS, **claim.points[point]}))


def allowed(claim: Claim) -> float:
    """Largest distance from the printed number: 8 percent or a unit of its last digit, unless the row has a tolerance.

    Answers from printed numbers alone may differ by the unit only.
    """
    if claim.tolerance is not None:
        return claim.tolerance * abs(claim.value)
    exponent = Decimal(repr(claim.value)).normalize().as_tuple().exponent
    unit = 10.0 ** min(0, exponent)
    if answer(claim).evidence is Evidence.PRINTED and claim.value:
        return unit
    return 0.0 if claim.kind in ("equality", "formula") else max(0.08 * abs(claim.value), unit)


def best(claim: Claim) -> Verdict:
    """Verdict on a conforming value."""
    row = answer(claim)
    if row.evidence is Evidence.PRINTED or row.restates:
        return Verdict.CONSISTENT
    if row.evidence in MODELLED:
        return Verdict.MATCHED
    return Verdict.TREND_ONLY if row.stand_in and not row.identity else Verdict.REPRODUCED


def missed(claim: Claim) -> Verdict:
    """Verdict on a value that misses the claim and its direction."""
    row = answer(claim)
    if row.evidence is Evidence.PRINTED:
        return Verdict.CONTRADICTED
    if row.evidence in MODELLED:
        return Verdict.NOT_MATCHED
    return Verdict.DIFFERS_ON_STAND_IN if row.stand_in and not row.identity else Verdict.DIFFERS


def outside(claim: Claim, value: float) -> Verdict:
    """The verdict on a number that is not inside: on a stand-in the published side of the neutral point is a trend."""
    ends = claim.value if isinstance(claim.value, tuple) else (claim.value, claim.value)
    middle = claim.neutral
    if middle is None or missed(claim) is not Verdict.DIFFERS_ON_STAND_IN:
        return missed(claim)
    above = all(end >= middle for end in ends) and value > middle
    below = all(end <= middle for end in ends) and value < middle
    return Verdict.TREND_ONLY if above or below else missed(claim)


# Violations of the check


def breaks(claim: Claim) -> Iterator[tuple[str, Cases, Verdict]]:
    """Yield each violation of a conforming store with the expected verdict."""
    for number in range(how_many(claim)):
        for what, case, expected in broken_cases(claim, conforming(claim)[0]):
            cases = conforming(claim)
            for further in range(needed(claim)):
                cases[(number + further) % len(cases)] = case
            yield f"case {number}: {what}", cases, expected


def broken_cases(claim: Claim, case: list[float]) -> Iterator[tuple[str, list[float], Verdict]]:
    if claim.check in NUMERIC and claim.cases is not HowMany.ALL:  # each value of a range is a case: all have to fail
        for value in missing_numbers(claim):
            yield f"all terms are {value}", [value] * len(case), outside(claim, value)
        return
    if claim.check in NUMERIC:
        for index in range(len(case)):
            for value in missing_numbers(claim):
                yield f"term {index} is {value}", [*case[:index], value, *case[index + 1 :]], outside(claim, value)
        return
    if claim.check is Check.ENDS:
        assert claim.tolerance is not None  # stated in every row
        for index, end in enumerate(claim.value):
            step = max(1e-9, 1.001 * claim.tolerance) * abs(end)
            for value in (end - step, end + step):
                yield f"term {index} is {value}", [*case[:index], value, *case[index + 1 :]], missed(claim)
        return
    if claim.check in (Check.EQUAL, Check.FORMULA):
        step = max(1e-9, 1.01 * (claim.tolerance or 0.0))
        for index, value in enumerate(case):
            moved = [value * (1 + step), value * (1 - step)] if value else [1e-9, -1e-9]
            if claim.check is Check.EQUAL and index == 0:
                moved = [value / (1 - step), value / (1 + step)]  # the others must be too far from the new first one
            for changed in moved:
                yield f"term {index} is {changed}", [*case[:index], changed, *case[index + 1 :]], missed(claim)
        return
    firsts = [0] if claim.check in (Check.LEAST, Check.GREATEST) else range(len(case))
    for one in firsts:
        for other in range(one + 1, len(case)):
            if case[one] != case[other]:
                swapped = list(case)
                swapped[one], swapped[other] = case[other], case[one]
                yield f"terms {one} and {other} change places", swapped, missed(claim)
            if claim.check is not Check.NEVER_FALLS:
                tied = list(case)
                tied[other] = case[one]
                far = claim.check in NEIGHBOURS and other > one + 1  # then the terms between them are out of order
                tie = Verdict.UNDECIDED if ranked(claim) and not far else missed(claim)
                yield f"terms {one} and {other} are equal", tied, tie


def missing_numbers(claim: Claim) -> Iterator[float]:
    """Numbers just beyond the tolerance, and on the other side of the neutral point."""
    if isinstance(claim.value, tuple):
        for end, sign in zip(claim.value, (-1, 1), strict=True):
            if math.isfinite(end):
                yield end + sign * max(1e-9, 1e-9 * abs(end))
    else:
        step = 1.001 * allowed(claim) or 1e-9 * max(1.0, abs(claim.value))
        yield from (claim.value - step, claim.value + step)
    if claim.neutral is not None:
        end = claim.value if isinstance(claim.value, float) else claim.value[0]
        end = end if math.isfinite(end) else claim.neutral + 1
        far = claim.neutral - (end - claim.neutral or 1.0)
        yield far


# The laws


@each_paper
def test_conforming_store_gets_the_best_verdict(claim: Claim) -> None:
    judged, row = verdict(claim, conforming(claim)), answer(claim)
    assert judged.verdict is best(claim), judged.why
    assert (judged.evidence, judged.scope, judged.stand_in) == (row.evidence, row.scope, row.stand_in)
    assert [list(case) for case in judged.ours] == [pytest.approx(case, rel=1e-11) for case in conforming(claim)]


@each_paper
def test_every_violation_changes_the_verdict(claim: Claim) -> None:
    ways = list(breaks(claim))
    # on a stand-in a number on the published side of its neutral point stays a trend; crossing the point ends it
    changed = {what.partition(":")[0] for what, _, expected in ways if expected is not best(claim)}
    assert len(changed) == how_many(claim), "every case counts"
    for what, cases, expected in ways:
        judged = verdict(claim, cases)
        assert judged.verdict is expected, f"{what}: {judged.why}"


def test_an_empty_store_answers_nothing() -> None:
    bare = [replace(claim, answers=tuple(row for row in claim.answers if not row.printed)) for claim in ALL]
    judged = judge(bare, EMPTY)
    assert [judgement.claim for judgement in judged] == bare
    assert {judgement.verdict for judgement in judged} == {Verdict.NOT_RUN}
    assert all(
        judgement.why and not judgement.ours and not judgement.record and not judgement.evidence for judgement in judged
    )


def test_no_record_answers_for_another_claim() -> None:
    """The values of all rows in one store: every row gets its own verdict, and the strongest evidence leads.

    Claims that compare the same runs cannot all be met by one set of them: each is judged by its own.
    """
    answered = [claim for claim in CASES if answer(claim) != UNANSWERED and not answer(claim).printed]
    computed = [claim for claim in answered if not answer(claim).labels]
    entries = tuple(entry for claim in computed for entry in stored(claim, conforming(claim)).entries)
    expected = {(claim.id, answer(claim).evidence): best(claim) for claim in computed}
    single_points = [
        replace(one, answers=tuple(turned(row) for row in one.answers if not (row.labels or row.printed)))
        for one in ALL
    ]
    for judgement in judge(single_points, ReportStore(Path("nowhere"), entries)):
        judgements = (judgement, *judgement.others) if judgement.claim.answers else ()
        order = sorted((row.evidence for row in judgement.claim.answers), key=STRONGEST_FIRST.index)
        assert [one.evidence for one in judgements] == order
        for one in judgements:
            assert one.evidence is not None
            assert one.verdict is expected[one.claim.id, one.evidence], one.why
    for claim in answered:
        if answer(claim).labels:
            of_claim = stored(claim, conforming(claim)).entries
            (judgement,) = judge([claim], ReportStore(Path("nowhere"), (*entries, *of_claim)))
            assert judgement.verdict is best(claim), judgement.why


def test_a_row_that_nothing_answers_takes_no_value() -> None:
    bare = [claim for claim in CASES if answer(claim) == UNANSWERED]
    entries = tuple(entry for claim in bare for entry in stored(claim, conforming(claim)).entries)
    judged = judge([replace(claim, answers=()) for claim in bare], ReportStore(Path("nowhere"), entries))
    assert [(judgement.verdict, judgement.ours) for judgement in judged] == [(Verdict.NOT_RUN, ())] * len(bare)


def test_every_control_is_another_claim_that_can_be_reproduced() -> None:
    answered = [claim for claim in CASES if answer(claim) != UNANSWERED]
    reproducible = {claim.id for claim in answered if best(claim) is Verdict.REPRODUCED}
    assert [claim.id for claim in ALL if claim.control and claim.control not in reproducible - {claim.id}] == []
