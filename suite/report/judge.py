"""Decides the verdict on every published value, from the records that a reports folder holds.

A record answers a claim by a metric that bears the claim's id, or by the series or medians that the claim's evidence
names. What no record holds is not run here; what a record holds is judged by the claim's own check, and a stand-in
never reproduces a number. Nothing here is tuned to a verdict: a doubtful record answers nothing and says why.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from suite.core.claim import Check, Claim, Judged, Scope, Verdict
from suite.core.expression import evaluate
from suite.core.record import Outcome, Record, Source
from suite.report import derive
from suite.report.files import inert, write
from suite.report.load import Entry, Store, text_at

FORMULA_TOLERANCE = 1e-12  # relative: what the order of operations can change
MOST = 6  # values in a sentence
BEST_FIRST = (Source.MEASURED, Source.EMULATED, Source.SIMULATED, Source.ANALYTIC)
COLUMNS = (
    *("id", "paper", "where", "system", "quantity", "paper_value", "our_value"),
    *("unit", "source", "scope", "verdict", "why"),
)
_NEEDS = {
    "analytic": "a record computed from the suite's own formulas",
    "cpu": "a run of it on a CPU",
    "gpu": "a run of it on a GPU",
    "cluster": "a simulated or measured run of its cluster",
    "data": "a run on its data set, or on a stand-in for it",
}
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
class _Answer:
    """What the store says about a claim. fault: why its values are no values; entries: whose they are."""

    entries: tuple[Entry, ...] = ()
    cases: tuple[Case, ...] = ()
    fault: str = ""


def judge(claims: Iterable[Claim], store: Store) -> list[Judged]:
    """A verdict for every claim, in their order."""
    entries = _newest(store.entries)
    holders: dict[str, list[Entry]] = {}
    ran: dict[str, list[Entry]] = {}
    for entry in entries:
        ran.setdefault(entry.record.experiment, []).append(entry)
        for name in entry.record.metrics:
            holders.setdefault(name, []).append(entry)
    return [_judge(claim, _answer(claim, holders, ran)) for claim in claims]


def terms(claim: Claim) -> tuple[str, ...]:
    """The names of the values of one case."""
    if claim.check is Check.FORMULA:
        return claim.terms or tuple(f"point {number}" for number in range(1, len(claim.points) + 1))
    return claim.terms or (claim.system or claim.quantity,)


# What the store holds


def _newest(entries: Iterable[Entry]) -> list[Entry]:
    """The last run of each label, however it ended: an older success must not hide that the code fails now."""
    newest: dict[tuple[object, ...], Entry] = {}
    for entry in sorted(entries, key=_precedence):
        newest[entry.machine, entry.record.source, entry.record.experiment, entry.record.label] = entry
    return list(newest.values())


def _answer(claim: Claim, holders: Mapping[str, Sequence[Entry]], ran: Mapping[str, Sequence[Entry]]) -> _Answer:
    """holders, ran: the last run of each label, by its metrics and by its experiment"""
    if claim.evidence:
        return _compared(claim, ran.get(str(claim.evidence["experiment"]), ()))
    found = holders.get(claim.id, ())
    if not found:
        return _Answer(fault=f"no record holds it: it needs {_NEEDS.get(claim.reach, 'a record')}")
    if not (fit := [entry for entry in found if entry.record.outcome is Outcome.OK]):
        return _Answer(fault=f"no run of it ended well: {_outcomes(found)}")
    entry = max(fit, key=_precedence)
    metric = entry.record.metrics[claim.id]
    if metric.unit != claim.unit:
        return _Answer((entry,), fault=f"its record counts in {metric.unit!r}, the claim in {claim.unit!r}")
    values, width = metric.values, len(terms(claim))
    if not values or len(values) % width:
        return _Answer((entry,), fault=f"its record has {len(values)} values; rule: {width} a case")
    return _Answer((entry,), tuple(values[i : i + width] for i in range(0, len(values), width)))


def _compared(claim: Claim, entries: Sequence[Entry]) -> _Answer:
    """The runs that the evidence names, side by side: of one machine and one source. `entries`: the experiment's."""
    experiment, labels = str(claim.evidence["experiment"]), [str(label) for label in claim.evidence["labels"]]
    named = [entry for entry in entries if entry.record.label in labels]
    sets: dict[tuple[str, Source], dict[str, Entry]] = {}
    for entry in named:
        if entry.record.outcome is Outcome.OK:
            sets.setdefault((entry.machine, entry.record.source), {})[entry.record.label] = entry
    whole = [found for found in sets.values() if len(found) == len(set(labels))]
    if not whole:
        ended = f" ({_outcomes(named)})" if named else ""
        return _Answer(fault=f"experiment {experiment} has no complete set of {', '.join(labels)}{ended}")
    best = max(whole, key=lambda found: max(_precedence(entry) for entry in found.values()))
    chosen = tuple(best[label] for label in labels)
    if "series" in claim.evidence:
        name = str(claim.evidence["series"])
        curves = [entry.record.series.get(name, []) for entry in chosen]
        lengths = [len(curve) for curve in curves]
        if not lengths[0] or len(set(lengths)) > 1:
            told = ", ".join(f"{label} {length}" for label, length in zip(labels, lengths, strict=True))
            return _Answer(chosen, fault=f"the series {name} differ in length: {told}")
        return _Answer(chosen, tuple(zip(*curves, strict=True)))
    name = str(claim.evidence["metric"])
    for entry in chosen:
        if name == derive.BATCH_TIME and not derive.comparable(entry.record):
            return _Answer(chosen, fault=f"{entry.record.label}: {derive.note(entry.record, name)}")
    units = sorted({entry.record.metrics[name].unit for entry in chosen if name in entry.record.metrics})
    if len(units) > 1:
        return _Answer(chosen, fault=f"the runs count {name} in {' and '.join(map(repr, units))}")
    if name == derive.BATCH_TIME and (apart := derive.not_in_turns(entry.record for entry in chosen)):
        return _Answer(chosen, fault=apart)
    return _Answer(chosen, (tuple(derive.samples(entry.record, name).median for entry in chosen),))


def _precedence(entry: Entry) -> tuple[int, bool, str, str]:
    """The better the source, the greater; then what was made here; then what is newer."""
    rank = -BEST_FIRST.index(entry.record.source)
    return rank, not entry.machine, text_at(entry.record.provenance, "started"), entry.file


def _outcomes(entries: Iterable[Entry]) -> str:
    return ", ".join(sorted({f"{entry.record.label} {entry.record.outcome}" for entry in entries}))


# What it says about the claim


def _judge(claim: Claim, answer: _Answer) -> Judged:
    none = Judged(claim, Verdict.NOT_RUN, answer.fault, claim.scope)
    if not answer.entries:
        return none
    lead = answer.entries[0]
    found = replace(
        none,
        scope=_scope(claim, lead.record.source),
        source=lead.record.source.value,
        record=lead.file,
        experiment=lead.record.experiment,
        command=text_at(lead.record.provenance, "command"),
    )
    if answer.fault:
        return found
    values = [value for case in answer.cases for value in case]
    if broken := sum(not math.isfinite(value) for value in values):
        return replace(found, why=f"not finite: {broken} of our {len(values)} values")
    found = replace(found, ours=answer.cases)
    if any(_calibrated_on(entry.record, claim.id) for entry in answer.entries):
        return replace(found, verdict=Verdict.CALIBRATED, why="the model behind our value was fitted to this one")
    verdict, why = (_number if claim.check in (Check.NUMBER, Check.RANGE) else _relation)(claim, found)
    return replace(found, verdict=verdict, why=why)


def _scope(claim: Claim, source: Source) -> Scope:
    if claim.scope is Scope.STAND_IN or source is Source.ANALYTIC:
        return claim.scope
    if source is Source.MEASURED:
        # a run on other hardware than the published cluster is no simulation of it either
        return Scope.AS_PUBLISHED if claim.scope is Scope.AS_PUBLISHED else Scope.STAND_IN
    return Scope.SIMULATED if source is Source.SIMULATED else Scope.EMULATED


def _calibrated_on(record: Record, name: str) -> bool:
    names = record.provenance.get("calibrated_on", [])
    return name == names or (isinstance(names, list | tuple) and name in names)


def _relation(claim: Claim, found: Judged) -> tuple[Verdict, str]:
    """Orders, equalities and formulas hold in every case or are refuted by the first that breaks them."""
    for number, case in enumerate(found.ours, 1):
        if fault := _fault(claim, case):
            where = f"case {number} of {len(found.ours)}: " if len(found.ours) > 1 else ""
            return Verdict.REFUTED, where + fault
    held = {
        Check.RISES: "rises over",
        Check.FALLS: "falls over",
        Check.NEVER_FALLS: "never falls over",
        Check.LEAST: "the first is the least of",
        Check.GREATEST: "the first is the greatest of",
        Check.EQUAL: f"equal within {claim.tolerance:g}, relative:" if claim.tolerance else "equal:",
        Check.FORMULA: f"our code gives what {claim.expression} gives at",
    }[claim.check]
    cases = f" in all {len(found.ours)} cases" if len(found.ours) > 1 else ""
    return Verdict.REPRODUCED, f"{held} {', '.join(terms(claim))}{cases}"


def _fault(claim: Claim, case: Case) -> str:
    """The first of the values that breaks the relation; empty where it holds."""
    names = terms(claim)
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
            held = abs(case[index] - case[first]) <= (claim.tolerance or 0.0) * abs(case[first])
            rule = f"within {claim.tolerance:g}, relative, of" if claim.tolerance else "equal to"
            pair = (index, first)
        else:
            holds, rule = _PAIRS[claim.check]
            held, pair = holds(case[first], case[index]), (first, index)
        if not held:
            left, right = (f"{names[i]} = {case[i]:.9g}" for i in pair)
            return f"{left} is not {rule} {right}"
    return ""


def _number(claim: Claim, found: Judged) -> tuple[Verdict, str]:
    """Numbers and ranges: all inside, or all on the published side of the neutral point, or refuted."""
    values = [value for case in found.ours for value in case]
    outside = [value for value in values if not claim.within(value)]
    told = _told(claim, outside[:1] or values, inside=not outside)
    side = _side(claim)
    lost = [value for value in values if not _keeps(claim, side, value)]
    if found.scope is not Scope.STAND_IN:
        if not outside:
            return Verdict.REPRODUCED, told
        if side and not lost:
            return Verdict.TREND_ONLY, f"{told}, on the published side of {claim.neutral:g}"
        return Verdict.REFUTED, told
    if side and lost:
        return Verdict.REFUTED, f"our {_short(lost[0])} is not on the published side of {claim.neutral:g} (stand-in)"
    if side:
        return Verdict.TREND_ONLY, f"{told}, on the published side of {claim.neutral:g}; a stand-in shows no more"
    if outside:
        return Verdict.NOT_RUN, f"{told}, and a stand-in's value says nothing about the published one"
    return Verdict.TREND_ONLY, f"{told}; a stand-in shows no more"


def _side(claim: Claim) -> int:
    """1 where the published value lies above the neutral point, -1 below, 0 where it has no side."""
    if claim.neutral is None or isinstance(claim.value, str):
        return 0
    low, high = claim.value if isinstance(claim.value, tuple) else (claim.value, claim.value)
    if low == high == claim.neutral:
        return 0
    return 1 if low >= claim.neutral else -1 if high <= claim.neutral else 0


def _keeps(claim: Claim, side: int, value: float) -> bool:
    """Whether the value lies on the published side; the neutral point itself does where the claim includes it."""
    beyond = (value - (claim.neutral or 0.0)) * side
    return beyond > 0 or (beyond == 0 and claim.within(value))


def _allowed(claim: Claim) -> str:
    if isinstance(claim.value, float) and claim.slack:
        return f"{_short(claim.value)} ± {_short(claim.slack)}"
    return published(claim)


def _told(claim: Claim, values: Sequence[float], *, inside: bool) -> str:
    """'our 46 lies in 50 ± 4'; the ends of many values."""
    many = f"{len(values)} values, {_short(min(values))} to {_short(max(values))},"
    ours = many if len(values) > MOST else ", ".join(map(_short, values))
    exact = isinstance(claim.value, float) and not claim.slack
    verb = ("are" if exact else "lie in") if len(values) > 1 else ("is" if exact else "lies in")
    if not inside:
        verb = "is not" if exact else "is outside"
    return f"our {ours} {verb} {_allowed(claim)}"


def _short(value: float) -> str:
    return f"{value:.6g}"


# claims.csv


def published(claim: Claim) -> str:
    """The published value as text."""
    if isinstance(claim.value, tuple):
        return f"[{_short(claim.value[0])}, {_short(claim.value[1])}]"
    return claim.value if isinstance(claim.value, str) else repr(claim.value).removesuffix(".0")


def ours(judged: Judged) -> str:
    """Our value as text: a number, or term=value pairs; cases stand between bars."""
    names = terms(judged.claim)
    return " | ".join(
        _short(case[0])
        if len(case) == 1
        else " ".join(f"{name}={_short(value)}" for name, value in zip(names, case, strict=True))
        for case in judged.ours
    )


def write_claims(folder: Path, judged: Iterable[Judged]) -> Path:
    """Write `folder`/claims.csv, a row per claim. Raises OSError where it cannot be written."""
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for item in judged:
        claim = item.claim
        values = (claim.id, claim.paper, claim.where, claim.system, claim.quantity, published(claim), ours(item))
        row = (*values, claim.unit, item.source, item.scope.value, item.verdict.value, item.why)
        rows.writerow([inert(cell) for cell in row])
    return write(folder, "claims.csv", text.getvalue())
