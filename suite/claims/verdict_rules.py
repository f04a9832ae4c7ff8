"""Rules that lead from our values of a claim to a verdict.

The first rule that applies to an answer gives its verdict:

1. No value: not run (suite.claims.judge).
2. Printed numbers against each other: consistent, or contradicted.
3. Our value restates a definition, a setting or a literal, and holds: consistent.
4. A constant was fitted to this claim: calibrated, or calibrated, missed.
5. Simulated or emulated: matched by the model if the value is within the tolerance, is nearer than the null model,
   and reads no constant that was fitted to another cell of the same table or figure. The verdict is no better than
   null if only the second condition fails, and fed by calibration if only the third fails. Otherwise it is not matched
   by the model. All values inside a printed range are equally near. Two claims are cells of one figure if both name
   it, or if one simulated figure of the suite answers both: a sentence about a figure often does not name it.
6. Measured or derived on a stand-in: trend only, or differs on a stand-in. An identity counts as published.
7. Measured or derived as published: reproduced; contradicted where the value is exact or has three repeats, and a
   control holds; else differs.

Before rules 6 and 7, repeats may leave a measured value undecided: an order if an exact rank test does not separate the
terms, a number or an equality if the confidence interval of the mean spans an end of the tolerance.

A verdict in favour of a claim (reproduced, trend only, matched by the model) becomes consistent if no registered
mutation of the code changes it (suite.claims.mutate).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from suite.claims.claim import MODELLED, AnswerRow, Cases, Check, Claim, Evidence, Judged, Scope, Verdict, last_digit
from suite.claims.claim_text import published, short, terms
from suite.core.errors import InvalidRequest
from suite.core.expression import evaluate
from suite.stats import inference, rank_test

IN_FAVOUR = (Verdict.REPRODUCED, Verdict.TREND_ONLY, Verdict.MATCHED)
FORMULA_TOLERANCE = 1e-12  # relative; the order of floating-point operations changes less
FEWEST_REPEATS = 3  # fewest repeats of a varying measured value that contradicts a claim
MOST = 6  # most values that a sentence lists
_PAIRS: dict[Check, tuple[Callable[[float, float], bool], str]] = {
    Check.RISES: (lambda before, after: before < after, "less than"),
    Check.FALLS: (lambda before, after: before > after, "greater than"),
    Check.NEVER_FALLS: (lambda before, after: before <= after, "at most"),
    Check.LEAST: (lambda first, other: first < other, "less than"),
    Check.GREATEST: (lambda first, other: first > other, "greater than"),
}
_NEIGHBOURS = (Check.RISES, Check.FALLS, Check.NEVER_FALLS)

Case = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Basis:
    """Inputs of the rules in addition to our values.

    Attributes:
        fed_by: Claims to which constants behind our values were fitted.
        null: Values of the null model.
        samples: Repeats behind the value of each term.
    """

    fed_by: Sequence[Claim] = ()
    null: Sequence[float] = ()
    samples: Sequence[Sequence[float]] = ()


def verdict(found: Judged, answer: AnswerRow, basis: Basis) -> Judged:
    """Verdict by the first of rules 2 to 7 that applies."""
    evidence = answer.evidence
    holds, why = _holds(
        _with_printed_tolerance(found.claim) if evidence is Evidence.PRINTED else found.claim, found.ours
    )
    if evidence is Evidence.PRINTED:
        return replace(found, verdict=Verdict.CONSISTENT if holds else Verdict.CONTRADICTED, why=why)
    if answer.restates and holds:
        return replace(found, verdict=Verdict.CONSISTENT, why=why, note=f"it restates: {answer.restates}")
    if found.claim in basis.fed_by:
        verdict = Verdict.CALIBRATED if holds else Verdict.CALIBRATED_MISSED
        return replace(found, verdict=verdict, why=f"the model was fitted to this value; {why}")
    if evidence in MODELLED:
        return _modelled_verdict(replace(found, why=why), answer, basis, holds=holds)
    decided, test = _decide_by_repeats(found.claim, basis.samples, holds)
    why = f"{why}; {test}" if test else why
    if decided is None:
        return replace(found, verdict=Verdict.UNDECIDED, why=why)
    holds = decided
    if found.scope is Scope.STAND_IN:
        direction = _direction(found)
        trend = bool(direction) if _published_side(found.claim) else holds
        verdict = Verdict.TREND_ONLY if trend else Verdict.DIFFERS_ON_STAND_IN
        return replace(found, verdict=verdict, why=why, note="" if holds else direction)
    verdict = Verdict.REPRODUCED if holds else Verdict.DIFFERS
    return replace(found, verdict=verdict, why=why, note="" if holds else _direction(found))


def held_back(found: Judged, answer: AnswerRow) -> Judged:
    """The answer with a verdict of at most `consistent` if no mutation changes it."""
    if answer.turned_by or found.verdict not in IN_FAVOUR:
        return found
    why = f"{found.why}; no registered change of the code turns it, else {found.verdict}"
    return replace(found, verdict=Verdict.CONSISTENT, why=why)


def _modelled_verdict(found: Judged, answer: AnswerRow, basis: Basis, *, holds: bool) -> Judged:
    """Rule 5: a simulated or emulated value."""
    if not holds:
        return replace(found, verdict=Verdict.NOT_MATCHED, note=_direction(found))
    cells = [each.id for each in basis.fed_by if _share_figure(found.claim, answer, each)]
    beaten = _is_nearer_than_null(found, basis.null)
    if cells:
        why = f"{found.why}; a constant was fitted to {', '.join(cells)}"
        worse = "" if beaten else "; the null model is as near"
        return replace(found, verdict=Verdict.FED if beaten else Verdict.NOT_MATCHED, why=why + worse)
    if not beaten:
        null_text = ", ".join(map(short, basis.null[:MOST]))
        return replace(found, verdict=Verdict.NO_BETTER, why=f"{found.why}; the null model gives {null_text}")
    return replace(found, verdict=Verdict.MATCHED)


def _share_figure(claim: Claim, answer: AnswerRow, other: Claim) -> bool:
    """Whether both claims report values of one table or figure."""
    figures = {row.figure for row in other.answers if row.evidence in MODELLED and row.figure}
    return bool(claim.displays & other.displays) or answer.figure in figures


def _is_nearer_than_null(found: Judged, null: Sequence[float]) -> bool:
    """Whether our values are nearer to the printed ones than the null model's; True if there is nothing to compare."""
    values = [value for case in found.ours for value in case]
    if isinstance(found.claim.value, str) or len(null) != len(values) or not all(map(math.isfinite, null)):
        return True
    width = len(found.ours[0])
    nulls = [tuple(null[first : first + width]) for first in range(0, len(null), width)]
    return _distance(found.claim, found.ours) < _distance(found.claim, nulls)


def _distance(claim: Claim, cases: Sequence[Case]) -> float:
    """Largest distance of our values from the printed one; 0 inside a printed range.

    A check of both ends of a range compares each of our two values with its own end.

    Raises:
        InvalidRequest: The check only compares our values with each other.
    """
    if isinstance(claim.value, str) or claim.check not in (Check.NUMBER, Check.RANGE, Check.ENDS):
        raise InvalidRequest(f"claim {claim.id} is an order", rule="only printed numbers have a distance")
    if claim.check is Check.ENDS:
        return max(abs(value - end) for case in cases for value, end in zip(case, _printed_ends(claim), strict=True))
    low, high = _span(claim.value)
    return max(max(low - value, value - high, 0.0) for case in cases for value in case)


def _decide_by_repeats(claim: Claim, samples: Sequence[Sequence[float]], holds: bool) -> tuple[bool | None, str]:
    """Whether the repeats support the result of their means, and the test in words; None if they do not decide."""
    if not samples or not all(samples):
        return holds, ""
    if claim.check in _PAIRS:
        return _decide_by_rank_test(claim, samples, holds)
    if claim.check is Check.FORMULA:
        return holds, ""
    return _decide_by_interval(claim, samples)


def _decide_by_interval(claim: Claim, samples: Sequence[Sequence[float]]) -> tuple[bool | None, str]:
    """Whether confidence intervals of means lie within the tolerance of a number, a range or an equality.

    The interval of an equality is that of the difference from the first term.
    """
    if claim.check is Check.EQUAL:
        first = samples[0]
        slack = (claim.tolerance or 0.0) * abs(fmean(first))
        intervals = [inference.difference_interval(values, first) for values in samples[1:]]
        allowed = [(-slack, slack)] * len(intervals)
    else:
        intervals = [inference.mean_interval(values) for values in samples]
        each_end = claim.check is Check.ENDS
        allowed = list(map(claim.around, _printed_ends(claim))) if each_end else [claim.ends] * len(intervals)
    ranges_text = ", ".join(f"{short(least)} to {short(most)}" for least, most in intervals)
    test = f"{min(map(len, samples))} repeats each, 95 percent interval {ranges_text}"
    pairs = list(zip(intervals, allowed, strict=True))
    if any(most < low or least > high for (least, most), (low, high) in pairs):
        return False, test
    return (True if all(low <= least and most <= high for (least, most), (low, high) in pairs) else None), test


def _decide_by_rank_test(claim: Claim, samples: Sequence[Sequence[float]], holds: bool) -> tuple[bool | None, str]:
    """Whether an exact rank test over repeats supports the order of the means; None if it does not decide.

    A strict order needs every pair separated in its direction. One pair separated in the other direction refutes it.
    """
    tests = []
    for index in range(1, len(samples)):
        first, second = samples[index - 1 if claim.check in _NEIGHBOURS else 0], samples[index]
        rises = claim.check in (Check.RISES, Check.NEVER_FALLS, Check.LEAST)
        tests.append(rank_test.rank_test(second, first) if rises else rank_test.rank_test(first, second))
    repeats_text = f"{len(samples[0])} repeats each"
    if reversed_pairs := sum(test.decision is rank_test.RankTestOutcome.WORSE for test in tests):
        return False, f"{repeats_text}, {reversed_pairs} of the pairs apart in the other direction (rank test)"
    if claim.check is Check.NEVER_FALLS:
        return (holds or None), f"{repeats_text}, no pair apart in the other direction (rank test)"
    apart = all(test.decision is rank_test.RankTestOutcome.BETTER for test in tests)
    worst = max((1.0 if math.isnan(test.p) else test.p) for test in tests)
    return (True if apart and holds else None), f"{repeats_text}, largest p {worst:.2g} (rank test)"


def _with_printed_tolerance(claim: Claim) -> Claim:
    """The claim with the tolerance of printed numbers: one unit of the last digit unless the row states another."""
    if claim.tolerance is not None or not isinstance(claim.value, float) or not claim.value:
        return claim
    return replace(claim, tolerance=last_digit(claim.value) / abs(claim.value))


def _holds(claim: Claim, cases: Sequence[Case]) -> tuple[bool, str]:
    """Whether the claim holds in the required number of cases, and the compared quantities.

    Each value of a number or a range is a case of its own."""
    alone = claim.check in (Check.NUMBER, Check.RANGE)
    tried = [(value,) for case in cases for value in case] if alone else list(cases)
    faults = {number: fault for number, case in enumerate(tried, 1) if (fault := _first_violation(claim, case))}
    holding = len(tried) - len(faults)
    if not _holds_in_enough_cases(claim, holding, len(tried)):
        number, fault = next(iter(faults.items()))
        return False, fault if alone or len(tried) == 1 else f"case {number} of {len(tried)}: {fault}"
    hedge = f" (the paper says {claim.hedge})" if claim.hedge and claim.cases is not Cases.ALL else ""
    in_all = holding == len(tried) and (len(tried) == 1 or claim.check in (Check.NUMBER, Check.RANGE, Check.ENDS))
    return True, _statement(claim, tried) + ("" if in_all else f" in {holding} of {len(tried)} cases{hedge}")


def _holds_in_enough_cases(claim: Claim, held: int, cases: int) -> bool:
    """Whether a claim that holds in `held` of its cases holds."""
    return {Cases.ALL: held == cases, Cases.MOST: 2 * held > cases, Cases.SOME: held > 0}[claim.cases]


def _statement(claim: Claim, cases: Sequence[Case]) -> str:
    """The relation that holds, in words: 'our 46 lies in 50 ± 4'."""
    if claim.check in (Check.NUMBER, Check.RANGE):
        values = [value for (value,) in cases]
        many = f"{len(values)} values, {short(min(values))} to {short(max(values))},"
        ours = many if len(values) > MOST else ", ".join(map(short, values))
        verbs = ("is", "are") if isinstance(claim.value, float) and not claim.slack else ("lies in", "lie in")
        return f"our {ours} {verbs[len(values) > 1]} {_allowed(claim)}"
    if claim.check is Check.ENDS:
        printed = _printed_ends(claim)
        ranges = ", ".join(f"{short(case[0])} to {short(case[1])}" for case in cases)
        verb = "lie in" if any(map(claim.slack_of, printed)) else "are"
        return f"the ends of our {ranges} {verb} {' and '.join(_format_tolerance(claim, end) for end in printed)}"
    words = {
        Check.RISES: "rises over",
        Check.FALLS: "falls over",
        Check.NEVER_FALLS: "never falls over",
        Check.LEAST: "the first is the least of",
        Check.GREATEST: "the first is the greatest of",
        Check.EQUAL: f"equal within {claim.tolerance:g}, relative:" if claim.tolerance else "equal:",
        Check.FORMULA: f"our code gives what {claim.expression} gives at",
    }[claim.check]
    return f"{words} {', '.join(terms(claim))}"


def _first_violation(claim: Claim, case: Case) -> str:
    """The first value outside its limits, or pair that breaks the relation, in words; empty if the claim holds."""
    names = terms(claim)
    if claim.check in (Check.NUMBER, Check.RANGE):
        exact = isinstance(claim.value, float) and not claim.slack
        inside, fault = claim.within(case[0]), "is not" if exact else "is outside"
        return "" if inside else f"our {short(case[0])} {fault} {_allowed(claim)}"
    if claim.check is Check.ENDS:
        for name, ours, end in zip(names, case, _printed_ends(claim), strict=True):
            if not claim.around(end)[0] <= ours <= claim.around(end)[1]:
                fault = "outside" if claim.slack_of(end) else "not"
                return f"{name} = {short(ours)} is {fault} {_format_tolerance(claim, end)}"
        return ""
    if claim.check is Check.FORMULA:
        allowed = FORMULA_TOLERANCE if claim.tolerance is None else claim.tolerance
        for ours, point in zip(case, claim.points, strict=True):
            theirs = evaluate(claim.expression, point)
            if abs(ours - theirs) > allowed * abs(theirs):
                at = ", ".join(f"{symbol} = {value:g}" for symbol, value in point.items())
                return f"{claim.expression} is {theirs:.13g} at {at}, ours {ours:.13g}"
        return ""
    for index in range(1, len(case)):
        first = index - 1 if claim.check in _NEIGHBOURS else 0
        if claim.check is Check.EQUAL:
            holds_here = abs(case[index] - case[first]) <= (claim.tolerance or 0.0) * abs(case[first])
            rule = f"within {claim.tolerance:g}, relative, of" if claim.tolerance else "equal to"
            pair = (index, first)
        else:
            holds, rule = _PAIRS[claim.check]
            holds_here, pair = holds(case[first], case[index]), (first, index)
        if not holds_here:
            first_text, right = (f"{names[i]} = {case[i]:.9g}" for i in pair)
            return f"{first_text} is not {rule} {right}"
    return ""


def _span(value: float | tuple[float, float]) -> tuple[float, float]:
    """The ends of a published range; of a number the number twice."""
    return value if isinstance(value, tuple) else (value, value)


def _printed_ends(claim: Claim) -> tuple[float, float]:
    """Both ends of a published range. Raises InvalidRequest where the claim is none."""
    if not isinstance(claim.value, tuple):
        raise InvalidRequest(f"claim {claim.id} is {claim.value!r}", rule="only a range has ends")
    return claim.value


def _format_tolerance(claim: Claim, printed: float) -> str:
    """'50 ± 4'; the number alone where it is exact."""
    slack = claim.slack_of(printed)
    return f"{short(printed)} ± {short(slack)}" if slack else short(printed)


def _direction(found: Judged) -> str:
    """A note that our values are on the published side of the neutral point in enough cases; otherwise empty."""
    side = _published_side(found.claim)
    if not side:
        return ""
    values = [value for case in found.ours for value in case]
    keeping = sum(_is_on_published_side(found.claim, side, value) for value in values)
    if not _holds_in_enough_cases(found.claim, keeping, len(values)):
        return ""
    return f"on the published side of {found.claim.neutral:g}"


def _published_side(claim: Claim) -> int:
    """1 where the published value lies above the neutral point, -1 below, 0 where it has no side."""
    if claim.neutral is None or isinstance(claim.value, str):
        return 0
    low, high = _span(claim.value)
    if low == high == claim.neutral:
        return 0
    return 1 if low >= claim.neutral else -1 if high <= claim.neutral else 0


def _is_on_published_side(claim: Claim, side: int, value: float) -> bool:
    """Whether the value lies on the published side; the neutral point itself does where the claim includes it."""
    beyond = (value - (claim.neutral or 0.0)) * side
    return beyond > 0 or (beyond == 0 and claim.within(value))


def _allowed(claim: Claim) -> str:
    return _format_tolerance(claim, claim.value) if isinstance(claim.value, float) and claim.slack else published(claim)


def controlled(judged: Judged, found: Mapping[str, Judged]) -> Judged:
    """The answer and its other answers, contradicted if they differ certainly and the control claim is reproduced."""
    others = tuple(_controlled(one, found) for one in judged.others)
    return replace(_controlled(judged, found), others=others)


def _controlled(judged: Judged, found: Mapping[str, Judged]) -> Judged:
    control = found.get(judged.claim.control)
    sure = judged.repeats == 0 or judged.repeats >= FEWEST_REPEATS
    differs = sure and judged.verdict is Verdict.DIFFERS
    if differs and control is not None and control.verdict is Verdict.REPRODUCED:
        why = f"{judged.why}; the control {control.claim.id} holds"
        return replace(judged, verdict=Verdict.CONTRADICTED, why=why)
    return judged
