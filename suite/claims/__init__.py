"""Decides which published values the suite answers for: the rows beside this file, checked field by field.

A row that a program could not judge would show as a claim that nobody refuted, so a file that departs from the rules
is refused as a whole, by the row's name. No torch: ranks' parents and the report both read claims.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import yaml

from suite.core.claim import Check, Claim, Scope
from suite.core.errors import Refused, UnknownName
from suite.core.expression import evaluate

FOLDER = Path(__file__).parent
PAPERS = ("axonn", "samo", "pipeoptim", "sparse_gnn")
KINDS = ("number", "ratio", "range", "ordering", "equality", "formula")
LEAST_POINTS = 3  # a formula that is wrong by a factor, an offset or a power differs at one of three points
# what a row's reach says about its scope; another scope needs a reason
SCOPES = {
    "analytic": (Scope.AS_PUBLISHED,),
    "cpu": (Scope.AS_PUBLISHED, Scope.STAND_IN),
    "data": (Scope.AS_PUBLISHED, Scope.STAND_IN),
    "gpu": (Scope.STAND_IN,),
    "cluster": (Scope.SIMULATED,),
}
_FIELDS = tuple(f.name for f in fields(Claim) if f.name != "paper")
_REQUIRED = ("id", "where", "quantity", "value", "unit", "kind", "reach", "check", "scope")
_TEXT = ("id", "where", "quantity", "system", "versus", "unit", "note", "because", "expression")
_ORDERS = (Check.RISES, Check.FALLS, Check.NEVER_FALLS, Check.LEAST, Check.GREATEST)
_EVIDENCE = ({"experiment", "series", "labels"}, {"experiment", "metric", "labels"})
_DECISION = ("id", "weight", "paper", "where", "finding", "decision")  # and the ids of the claims it bears on
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same rows, ten times as fast

_Word = TypeVar("_Word", bound=StrEnum)


def load(folder: Path = FOLDER) -> tuple[Claim, ...]:
    """Every claim of the four papers, in the order of the files. Raises Refused for a row that breaks a rule."""
    claims = [claim(row, paper) for paper in PAPERS for row in _rows(folder / f"{paper}.yaml")]
    seen: set[str] = set()
    for found in claims:
        if found.id in seen:
            raise Refused(f"two claims are named {found.id}", rule="one row an id")
        seen.add(found.id)
    return tuple(claims)


def decisions(folder: Path = FOLDER) -> tuple[Mapping[str, Any], ...]:
    """Where the papers contradict themselves or each other, and what was decided: id, weight (A changes what counts as
    reproduced, B needed a choice, C is a slip), paper, where, finding, decision, and the claims it bears on."""
    rows = _rows(folder / "decisions.yaml")
    for row in rows:
        bare = {key: value for key, value in row.items() if key != "claims"}
        if tuple(bare) != _DECISION or not all(isinstance(text, str) and text for text in bare.values()):
            raise Refused(f"decision {row.get('id')} with {', '.join(row)}", rule=f"text for {', '.join(_DECISION)}")
        _terms(row.get("claims", ()), f"claims of decision {row['id']}")
    return tuple(rows)


def settings(folder: Path = FOLDER) -> Mapping[str, tuple[Mapping[str, Any], ...]]:
    """The published settings by group: systems, models, machines, software, datasets, training, formulas."""
    data = _read(folder / "settings.yaml")
    if not isinstance(data, dict) or not all(isinstance(rows, list) for rows in data.values()):
        raise Refused(f"{folder / 'settings.yaml'} is no mapping of lists", rule="groups of rows")
    return {str(group): tuple(rows) for group, rows in data.items()}


def claim(row: Mapping[str, Any], paper: str) -> Claim:
    """The claim that `row` of a file of `paper` states. Raises Refused, naming the row, for whatever breaks a rule."""
    name = str(row.get("id"))
    for key in row:
        if key not in _FIELDS:
            raise UnknownName(f"field of claim {name}", str(key), _FIELDS)
    if missing := [key for key in _REQUIRED if row.get(key) is None]:
        raise Refused(f"claim {name} lacks {', '.join(missing)}", rule=f"every row has {', '.join(_REQUIRED)}")
    for key in _TEXT:
        if not isinstance("" if row.get(key) is None else row[key], str):
            raise Refused(f"{key} of claim {name} is {row[key]!r}", rule="text")
    for key in ("setting", "evidence"):
        if not isinstance(row.get(key, {}), dict):
            raise Refused(f"{key} of claim {name} is {row[key]!r}", rule="a mapping")
    if row["kind"] not in KINDS:
        raise UnknownName(f"kind of claim {name}", str(row["kind"]), KINDS)
    if row["reach"] not in SCOPES:
        raise UnknownName(f"reach of claim {name}", str(row["reach"]), SCOPES)
    found = Claim(
        **{
            **{key: value for key, value in row.items() if value is not None},
            "paper": paper,
            "system": row.get("system") or "",  # null: about no one system
            "check": _word(Check, row["check"], f"check of claim {name}"),
            "scope": _word(Scope, row["scope"], f"scope of claim {name}"),
            "value": _published(row["value"], name),
            "tolerance": _number(row.get("tolerance"), f"tolerance of claim {name}"),
            "neutral": _number(row.get("neutral"), f"neutral of claim {name}"),
            "terms": _terms(row.get("terms", ()), f"terms of claim {name}"),
            "points": _points(row.get("points", ()), name),
        }
    )
    _check_reasons(found)
    _check_shape(found)
    return found


def _check_reasons(claim: Claim) -> None:
    """A departure from the defaults says why."""
    if claim.tolerance is not None and not 0 <= claim.tolerance <= 1:
        raise Refused(f"tolerance of claim {claim.id} is {claim.tolerance}", rule="relative, 0 to 1", legal="0.08")
    if claim.because:
        return
    if claim.tolerance is not None:
        raise Refused(f"claim {claim.id} has the tolerance {claim.tolerance}", rule="a tolerance says why in because")
    if claim.scope not in SCOPES[claim.reach]:
        usual = " or ".join(SCOPES[claim.reach])
        raise Refused(
            f"claim {claim.id} with reach {claim.reach} has the scope {claim.scope}",
            rule="another scope than the usual says why in because",
            legal=usual,
        )


def _check_shape(claim: Claim) -> None:
    """The check has what it needs, and nothing that it would not read."""
    name, check, terms = claim.id, claim.check, claim.terms
    if check is Check.NUMBER and (not isinstance(claim.value, float) or len(terms) > 1):
        raise Refused(f"claim {name} is {claim.value!r} of {len(terms)} terms", rule="check number: a number, one term")
    if check is Check.RANGE and not isinstance(claim.value, tuple):
        raise Refused(f"claim {name} is {claim.value!r}", rule="check range: a pair", legal="[13.0, .inf]")
    if check is not Check.RANGE and isinstance(claim.value, tuple) and not claim.because:
        raise Refused(f"claim {name} is {claim.value} with check {check}", rule="range, or because says why not")
    if check in (*_ORDERS, Check.EQUAL) and len(terms) < 2:
        raise Refused(f"claim {name} has the terms {list(terms)}", rule=f"check {check}: at least 2 terms")
    if len(set(terms)) < len(terms):
        raise Refused(f"claim {name} has the terms {list(terms)}", rule="each term once")
    if claim.tolerance is not None and check in (*_ORDERS, Check.RANGE):
        raise Refused(f"claim {name} has the tolerance {claim.tolerance}", rule=f"check {check} is not widened")
    if claim.neutral is not None and check not in (Check.NUMBER, Check.RANGE):
        raise Refused(f"claim {name} has the neutral point {claim.neutral}", rule="for the checks number and range")
    if check is Check.FORMULA:
        different = {tuple(sorted(point.items())) for point in claim.points}
        if not LEAST_POINTS <= len(different) == len(claim.points):
            raise Refused(f"claim {name} has {len(claim.points)} points", rule=f"at least {LEAST_POINTS}, no two equal")
        try:
            for point in claim.points:
                evaluate(claim.expression, point)
        except Refused as error:
            raise Refused(f"claim {name}: {error}") from error
        if terms and len(terms) != len(claim.points):
            raise Refused(f"claim {name} has {len(terms)} terms, {len(claim.points)} points", rule="a term per point")
    elif claim.expression or claim.points:
        raise Refused(f"claim {name} has an expression or points", rule="for the check formula alone")
    if claim.evidence:
        labels = claim.evidence.get("labels")
        if set(claim.evidence) not in _EVIDENCE or not isinstance(labels, list) or len(labels) != max(1, len(terms)):
            raise Refused(
                f"evidence of claim {name} is {dict(claim.evidence)}",
                rule="experiment, series or metric, and a label per term",
                legal="{experiment: overhead, metric: batch_time, labels: [axonn 2x1]}",
            )


def _word(words: type[_Word], value: Any, what: str) -> _Word:
    try:
        return words(value)
    except ValueError as error:
        raise UnknownName(what, str(value), [word.value for word in words]) from error


def _number(value: Any, what: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Refused(f"{what} is {value!r}", rule="a finite number", legal="3.0e+11")
    return float(value)


def _published(value: Any, name: str) -> float | tuple[float, float] | str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        ends = [end for end in value if isinstance(end, int | float) and not isinstance(end, bool)]
        if len(value) != 2 or len(ends) != 2 or not ends[0] <= ends[1]:
            raise Refused(f"value of claim {name} is {value!r}", rule="a pair, low first", legal="[13.0, .inf]")
        return float(ends[0]), float(ends[1])
    number = _number(value, f"value of claim {name}")
    assert number is not None
    return number


def _terms(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(term, str) and term for term in value):
        raise Refused(f"{what} are {value!r}", rule="a list of names; numbers in quotes", legal='["6", "12"]')
    return tuple(value)


def _points(value: Any, name: str) -> tuple[Mapping[str, float], ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(point, dict) for point in value):
        raise Refused(f"points of claim {name} are {value!r}", rule="a list of mappings", legal="[{phi: 5.0e+8}]")
    found = []
    for point in value:
        numbers = {str(symbol): _number(number, f"{symbol} of claim {name}") for symbol, number in point.items()}
        if None in numbers.values():
            raise Refused(f"claim {name} has the point {point}", rule="a number for every symbol")
        found.append({symbol: number for symbol, number in numbers.items() if number is not None})
    return tuple(found)


def _read(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Refused(f"{path.name} cannot be read: {error}") from error


def _rows(path: Path) -> Sequence[dict[str, Any]]:
    rows = _read(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Refused(f"{path.name} is no list of mappings", rule="a row per claim")
    return rows
