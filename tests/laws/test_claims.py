"""Decides whether every claim can be reproduced and can be refuted: a verdict that no number changes is worth nothing.

For each of the rows a store is made whose values are what the row publishes, then broken in every way that the row's
check forbids. How a conforming value looks is worked out here from the row, not by the judge's code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from suite import claims
from suite.core.claim import Check, Claim, Judged, Scope, Verdict
from suite.core.record import Metric, Outcome, Record, Source
from suite.report.judge import judge
from suite.report.load import Entry, Store

ALL = claims.load()
EMPTY = Store(Path("nowhere"))
SOURCES = {
    Scope.AS_PUBLISHED: Source.MEASURED,
    Scope.STAND_IN: Source.MEASURED,
    Scope.EMULATED: Source.EMULATED,
    Scope.SIMULATED: Source.SIMULATED,
}
NUMERIC = (Check.NUMBER, Check.RANGE)
FUNCTIONS = {"min": min, "max": max, "abs": abs, "sqrt": math.sqrt, "log": math.log}

Cases = list[list[float]]

every_claim = pytest.mark.parametrize("claim", ALL, ids=[claim.id for claim in ALL])


# Stores that answer a claim


def stored(claim: Claim, cases: Sequence[Sequence[float]], **changes: object) -> Store:
    """A store with whatever the claim's evidence asks for, holding `cases`."""
    base = Record("k", "law", "axonn", claim.id, Outcome.OK, SOURCES[claim.scope])
    if not claim.evidence:
        values = tuple(value for case in cases for value in case)
        records = [replace(base, metrics={claim.id: Metric(claim.unit, "", values)})]
    else:
        records = []
        for number, label in enumerate(claim.evidence["labels"]):
            column = [case[number] for case in cases]
            record = replace(base, key=f"k{number}", experiment=claim.evidence["experiment"], label=label)
            if "series" in claim.evidence:
                record = replace(record, series={claim.evidence["series"]: column})
            else:
                # three samples whose median is the value
                samples = (column[0], column[0] - 1.0, column[0] + 1.0)
                record = replace(record, metrics={claim.evidence["metric"]: Metric("s", "lower", samples)})
            records.append(record)
    return Store(
        Path("nowhere"),
        tuple(Entry(replace(record, **changes), f"records/{record.key}.json") for record in records),  # type: ignore[arg-type]
    )


def verdict(claim: Claim, cases: Sequence[Sequence[float]], **changes: object) -> Judged:
    (found,) = judge([claim], stored(claim, cases, **changes))
    assert found.why
    assert "\n" not in found.why
    return found


def how_many(claim: Claim) -> int:
    return 1 if "metric" in claim.evidence else 3


# What the row publishes


def conforming(claim: Claim) -> Cases:
    width = max(1, len(claim.terms))
    rising = [float(number + 1) for number in range(width)]
    match claim.check:
        case Check.NUMBER:
            assert isinstance(claim.value, float)
            case = [claim.value]
        case Check.RANGE:
            assert isinstance(claim.value, tuple)
            low, high = claim.value
            low = high - abs(high) - 1 if math.isinf(low) else low
            high = low + abs(low) + 1 if math.isinf(high) else high
            case = [low + (high - low) * number / (width + 1) for number in rising]
        case Check.RISES:
            case = rising
        case Check.FALLS:
            case = rising[::-1]
        case Check.NEVER_FALLS:
            case = rising
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
    """How far a number may lie from the printed one: 8 percent or a unit of its last digit, unless the row says."""
    assert isinstance(claim.value, float)
    if claim.tolerance is not None:
        return claim.tolerance * abs(claim.value)
    if claim.kind in ("equality", "formula"):
        return 0.0
    exponent = Decimal(repr(claim.value)).normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return max(0.08 * abs(claim.value), 10.0 ** min(0, exponent))


def best(claim: Claim) -> Verdict:
    """The best verdict that the row's scope allows."""
    return Verdict.TREND_ONLY if claim.check in NUMERIC and claim.scope is Scope.STAND_IN else Verdict.REPRODUCED


def outside(claim: Claim, value: float) -> Verdict:
    """The verdict on a number that is not inside."""
    ends = claim.value if isinstance(claim.value, tuple) else (claim.value, claim.value)
    middle = claim.neutral
    if middle is None:
        return Verdict.NOT_RUN if claim.scope is Scope.STAND_IN else Verdict.REFUTED
    above = all(end >= middle for end in ends) and value > middle  # type: ignore[operator]
    below = all(end <= middle for end in ends) and value < middle  # type: ignore[operator]
    return Verdict.TREND_ONLY if above or below else Verdict.REFUTED


# Everything that the row's check forbids


def breaks(claim: Claim) -> Iterator[tuple[str, Cases, Verdict]]:
    """Each way to break a conforming store, with the verdict that must follow."""
    for number in range(how_many(claim)):
        for what, case, expected in broken_cases(claim, conforming(claim)[0]):
            cases = conforming(claim)
            cases[number] = case
            yield f"case {number}: {what}", cases, expected


def broken_cases(claim: Claim, case: list[float]) -> Iterator[tuple[str, list[float], Verdict]]:
    if claim.check in NUMERIC:
        for index in range(len(case)):
            for value in strangers(claim):
                yield f"term {index} is {value}", [*case[:index], value, *case[index + 1 :]], outside(claim, value)
        return
    if claim.check in (Check.EQUAL, Check.FORMULA):
        step = max(1e-9, 1.01 * (claim.tolerance or 0.0))
        for index, value in enumerate(case):
            moved = [value * (1 + step), value * (1 - step)] if value else [1e-9, -1e-9]
            if claim.check is Check.EQUAL and index == 0:
                moved = [value / (1 - step), value / (1 + step)]  # the others must be too far from the new first one
            for changed in moved:
                yield f"term {index} is {changed}", [*case[:index], changed, *case[index + 1 :]], Verdict.REFUTED
        return
    firsts = [0] if claim.check in (Check.LEAST, Check.GREATEST) else range(len(case))
    for one in firsts:
        for other in range(one + 1, len(case)):
            if case[one] != case[other]:
                swapped = list(case)
                swapped[one], swapped[other] = case[other], case[one]
                yield f"terms {one} and {other} change places", swapped, Verdict.REFUTED
            if claim.check is not Check.NEVER_FALLS:
                tied = list(case)
                tied[other] = case[one]
                yield f"terms {one} and {other} are equal", tied, Verdict.REFUTED


def strangers(claim: Claim) -> Iterator[float]:
    """Numbers that are not the published one: just past the tolerance, and on the other side of the neutral point."""
    if isinstance(claim.value, tuple):
        for end, sign in zip(claim.value, (-1, 1), strict=True):
            if math.isfinite(end):
                yield end + sign * max(1e-9, 1e-9 * abs(end))
    else:
        assert isinstance(claim.value, float)
        step = 1.001 * allowed(claim) or 1e-9 * max(1.0, abs(claim.value))
        yield from (claim.value - step, claim.value + step)
    if claim.neutral is not None:
        end = claim.value if isinstance(claim.value, float) else claim.value[0]
        end = end if math.isfinite(end) else claim.neutral + 1
        far = claim.neutral - (end - claim.neutral or 1.0)
        yield far


# The laws


@every_claim
def test_a_store_that_agrees_gives_the_best_verdict_that_the_scope_allows(claim: Claim) -> None:
    found = verdict(claim, conforming(claim))
    assert found.verdict is best(claim), found.why
    assert found.scope is claim.scope
    assert [list(case) for case in found.ours] == conforming(claim)


@every_claim
def test_whatever_breaks_a_claim_changes_its_verdict(claim: Claim) -> None:
    ways = list(breaks(claim))
    # on a stand-in a number on the published side of its neutral point stays a trend; crossing the point ends it
    assert any(expected is not best(claim) for _, _, expected in ways)
    for what, cases, expected in ways:
        found = verdict(claim, cases)
        assert found.verdict is expected, f"{what}: {found.why}"


@every_claim
def test_every_case_of_a_claim_can_refute_it(claim: Claim) -> None:
    changed = {what.partition(":")[0] for what, _, expected in breaks(claim) if expected is not best(claim)}
    assert len(changed) == how_many(claim)


@pytest.mark.parametrize("claim", [c for c in ALL if c.check is Check.NUMBER], ids=lambda claim: claim.id)
def test_a_number_inside_its_tolerance_keeps_the_verdict(claim: Claim) -> None:
    assert isinstance(claim.value, float)
    for value in (claim.value - 0.999 * allowed(claim), claim.value + 0.999 * allowed(claim)):
        assert verdict(claim, [[value]]).verdict is best(claim)


@pytest.mark.parametrize("claim", [c for c in ALL if c.check is Check.RANGE], ids=lambda claim: claim.id)
def test_the_ends_of_a_range_belong_to_it(claim: Claim) -> None:
    assert isinstance(claim.value, tuple)
    for end in claim.value:
        if math.isfinite(end):
            assert verdict(claim, [[end] * max(1, len(claim.terms))]).verdict is best(claim)


@pytest.mark.parametrize("claim", [c for c in ALL if c.check is Check.NEVER_FALLS], ids=lambda claim: claim.id)
def test_a_tie_keeps_the_verdict_where_the_claim_allows_it(claim: Claim) -> None:
    assert verdict(claim, [[1.0] * len(claim.terms)]).verdict is best(claim)


@every_claim
def test_a_model_that_was_fitted_to_a_claim_does_not_reproduce_it(claim: Claim) -> None:
    fitted = {"calibrated_on": ["another.claim", claim.id]}
    assert verdict(claim, conforming(claim), provenance=fitted).verdict is Verdict.CALIBRATED
    assert verdict(claim, conforming(claim), provenance={"calibrated_on": [claim.id + ".x"]}).verdict is best(claim)
    assert verdict(claim, next(breaks(claim))[1], provenance=fitted).verdict is Verdict.CALIBRATED


def test_an_empty_store_answers_nothing() -> None:
    found = judge(ALL, EMPTY)
    assert [item.claim for item in found] == list(ALL)
    assert {item.verdict for item in found} == {Verdict.NOT_RUN}
    assert all(item.why and not item.ours and not item.record for item in found)


@every_claim
def test_what_is_no_value_answers_nothing(claim: Claim) -> None:
    for outcome in Outcome:
        expected = best(claim) if outcome is Outcome.OK else Verdict.NOT_RUN
        assert verdict(claim, conforming(claim), outcome=outcome).verdict is expected
    for value in (math.nan, math.inf, -math.inf):
        for index in range(len(conforming(claim)[0])):
            cases = conforming(claim)
            cases[-1][index] = value
            found = verdict(claim, cases)
            assert found.verdict is Verdict.NOT_RUN, found.why
            assert not found.ours
    nothing = [stored(claim, conforming(claim), metrics={}, series={})]
    whole = stored(claim, conforming(claim))
    if claim.evidence:
        nothing += [replace(whole, entries=whole.entries[:number]) for number in range(len(whole.entries))]
    else:
        (entry,) = whole.entries
        values = entry.record.metrics[claim.id].values
        kept = [0] if len(claim.terms or claim.points) <= 1 else [0, 1, len(values) - 1]
        for count in kept:
            metrics = {claim.id: Metric(claim.unit, "", values[:count])}
            nothing.append(stored(claim, conforming(claim), metrics=metrics))
    for store in nothing:
        (found,) = judge([claim], store)
        assert found.verdict is Verdict.NOT_RUN
        assert found.why
        assert not found.ours


def test_no_record_answers_for_another_claim() -> None:
    """All rows in one store: every verdict is that of the row's own values."""
    entries = tuple(entry for claim in ALL for entry in stored(claim, conforming(claim)).entries)
    found = judge(ALL, Store(Path("nowhere"), entries))
    assert [item.claim.id for item in found if item.verdict is not best(item.claim)] == []
