"""Reader and validator for the claims of each paper (claims.yaml).

One invalid row makes the whole file invalid, and the error contains the id of the row. Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from suite.core import blind
from suite.core.claim import (
    MODELLED,
    AnswerRow,
    Cases,
    Check,
    Claim,
    Decision,
    Evidence,
    Judged,
    Passage,
    Role,
    Scalar,
    Sensitivity,
    Settings,
    Turn,
)
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.expression import evaluate, symbols

try:
    from yaml import CSafeLoader as Loader  # ten times faster
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeLoader as Loader

FOLDER = Path(__file__).parents[1]
PAPERS = ("axonn", "samo", "pipeoptim", "sparse_gnn", "schedules")
WITHOUT_TEXT = ("schedules",)  # rooms of several public sources, whose claims have a place and no fingerprint
KINDS = ("number", "ratio", "range", "ordering", "equality", "formula")
LEAST_POINTS = 3  # three points expose a formula that is wrong by a factor, an offset or a power
SENSITIVITY = "sensitivity.yaml"
MUTATIONS = "mutations.yaml"
REACHES = ("analytic", "cpu", "data", "gpu", "cluster")  # resources that the published run needs
_FIELDS = tuple(f.name for f in fields(Claim) if f.name != "paper")
_REQUIRED = ("id", "where", "asserts", "role", "quantity", "value", "unit", "kind", "reach", "check")
_TEXT = (
    "id",
    "where",
    "asserts",
    "hedge",
    "limits",
    "quantity",
    "system",
    "versus",
    "unit",
    "note",
    "because",
    "control",
    "expression",
)
_ORDERS = (Check.RISES, Check.FALLS, Check.NEVER_FALLS, Check.LEAST, Check.GREATEST)
_ANSWER_FORMS = (  # legal sets of keys of an answer, without the optional keys below
    {"figure", "function"},
    {"experiment", "series", "labels"},
    {"experiment", "metric", "labels"},
    {"experiment", "value", "labels"},
    {"experiment"},  # the executor writes the value under the id of the claim
)
_FUNCTION_KEYS = {"arguments", "anchors"}
_COMMON_KEYS = {"evidence", "stand_in", "identity", "restates"}
_DECISION = ("id", "weight", "paper", "where", "finding", "decision")  # text fields; `claims` is a list of ids

_Word = TypeVar("_Word", bound=StrEnum)
Answered = tuple[str, Evidence]  # an answer, identified by the id of its claim and its evidence


def named(name: str, known: Mapping[str, Claim]) -> list[Claim]:
    """The claim with this id, the claims of this paper, or those whose ids match this pattern with *.

    Raises UnknownName for none."""
    if name in known:
        return [known[name]]
    matches = [claim for claim in known.values() if claim.paper == name or fnmatchcase(claim.id, name)]
    if not matches:
        raise UnknownName("claim", name, known)
    return matches


def load(folder: Path | None = None) -> tuple[Claim, ...]:
    """All claims of the papers in the order of the files. Blind mode hides their outcomes.

    Args:
        folder: Parent of the papers' folders; by default this package.

    Raises:
        InvalidRequest: A row breaks a rule.
    """
    return _hidden(folder or FOLDER) if blind.active() else _load(folder or FOLDER)


def hide_outcome(claim: Claim) -> Claim:
    """Copy of a claim without its outcome: value, tolerance, expression, and every text that may contain it.

    A published setting keeps its value because it is an input."""
    value: Any = claim.value if claim.role is Role.SETTING else blind.Hidden(claim.id)
    bare = replace(claim, value=value, tolerance=None, neutral=None, printed=(), asserts="", hedge="", limits="")
    return replace(bare, note="", because="", expression="", answers=tuple(map(_without_anchors, claim.answers)))


def _without_anchors(row: AnswerRow) -> AnswerRow:
    """Copy of an answer with nan for each anchor, which disables its null model."""
    hidden = {
        name: (math.nan,) * len(anchor) if isinstance(anchor, tuple) else math.nan
        for name, anchor in row.anchors.items()
    }
    return replace(row, anchors=hidden)


@cache
def _hidden(folder: Path) -> tuple[Claim, ...]:
    return tuple(map(hide_outcome, _load(folder)))


@cache
def _load(folder: Path) -> tuple[Claim, ...]:
    turned = _turned(folder)
    claims = [
        _with_mutations(parse_claim(row, paper), turned)
        for paper in PAPERS
        for row in _rows(folder / paper / "claims.yaml")
    ]
    seen: set[str] = set()
    for loaded in claims:
        if loaded.id in seen:
            raise InvalidRequest(f"two claims have the id {loaded.id}", rule="one row per id")
        seen.add(loaded.id)
    return tuple(claims)


def turned_answers(row: Mapping[str, Any]) -> tuple[Answered, ...]:
    """Answers whose verdicts a mutation changes, the fast ones first.

    Raises:
        InvalidRequest: `turns` or `slowly` is malformed, or both are empty.
    """
    answers = (*answers_by_evidence(row, "turns"), *answers_by_evidence(row, "slowly"))
    if not answers:
        raise InvalidRequest(f"mutation {row.get('id')} changes no verdict", rule="an answer", legal="{derived: [ID]}")
    return answers


def answers_by_evidence(row: Mapping[str, Any], key: str) -> tuple[Answered, ...]:
    """Answers of a mutation under `turns` or `slowly`. Raises InvalidRequest if the entry is malformed."""
    name, turns = row.get("id"), row.get(key, {})
    if not isinstance(turns, dict):
        raise InvalidRequest(
            f"{key} of mutation {name} is {turns!r}", rule="claims by evidence", legal="{derived: [ID]}"
        )
    kinds = {_word(Evidence, kind, f"evidence in {key} of mutation {name}"): ids for kind, ids in turns.items()}
    return tuple((id_, kind) for kind, ids in kinds.items() for id_ in _terms(ids, f"claims of mutation {name}"))


def _turned(folder: Path) -> dict[Answered, tuple[str, ...]]:
    """Ids of the mutations that change the verdict of each answer, from the papers' files."""
    answers: dict[Answered, tuple[str, ...]] = {}
    for paper in PAPERS:
        path = folder / paper / MUTATIONS
        for row in _rows(path) if path.is_file() else ():
            for answered in turned_answers(row):
                answers[answered] = (*answers.get(answered, ()), str(row["id"]))
    return answers


def _with_mutations(claim: Claim, turned: Mapping[Answered, tuple[str, ...]]) -> Claim:
    rows = (replace(row, turned_by=turned.get((claim.id, row.evidence), ())) for row in claim.answers)
    return replace(claim, answers=tuple(rows))


def decisions(folder: Path = FOLDER) -> tuple[Decision, ...]:
    """Contradictions within and between the papers, with our decisions. Raises InvalidRequest for an invalid row."""
    decision_list = []
    for row in _rows(folder / "common" / "decisions.yaml"):
        bare = {key: value for key, value in row.items() if key != "claims"}
        if tuple(bare) != _DECISION or not all(isinstance(text, str) and text for text in bare.values()):
            raise InvalidRequest(
                f"decision {row.get('id')} with {', '.join(row)}", rule=f"text for {', '.join(_DECISION)}"
            )
        decision_list.append(Decision(**bare, claims=_terms(row.get("claims", ()), f"claims of decision {row['id']}")))
    return tuple(decision_list)


def sensitivities(folder: Path = FOLDER) -> dict[str, Sensitivity]:
    """Sensitivity of simulated claims by id, as written by `suite claims sensitivity`.

    Raises:
        InvalidRequest: A row lacks a key or has a value of another type.
    """
    by_claim = {}
    for paper in PAPERS:
        path = folder / paper / SENSITIVITY
        for row in _rows(path) if path.is_file() else ():
            try:
                low, high = map(float, row["values"])
                turns = tuple(Turn(str(turn["constant"]), turn["at"], str(turn["verdict"])) for turn in row["turns"])
                by_claim[row["id"]] = Sensitivity(row["id"], row["verdict"], (low, high), turns, int(row["varied"]))
            except (KeyError, TypeError, ValueError) as error:
                raise InvalidRequest(
                    f"{paper}/{SENSITIVITY}: {row}", rule="id, verdict, values, varied, turns"
                ) from error
    return by_claim


def with_sensitivity(judged: Iterable[Judged], by_claim: Mapping[str, Sensitivity]) -> list[Judged]:
    """Copies of judged claims with the sensitivity of each simulated or emulated value, headline or not."""

    def annotate(claim: Judged) -> Judged:
        sensitivity = by_claim.get(claim.claim.id) if claim.evidence in MODELLED else None
        return replace(claim, sensitivity=sensitivity, others=tuple(map(annotate, claim.others)))

    return [annotate(claim) for claim in judged]


def settings(folder: Path = FOLDER) -> Settings:
    """Published settings by group: systems, models, machines, software, datasets, training, formulas."""
    data = _read(folder / "common" / "settings.yaml")
    if not isinstance(data, dict) or not all(isinstance(rows, list) for rows in data.values()):
        raise InvalidRequest(f"{folder / 'settings.yaml'} is not a mapping of lists", rule="groups of rows")
    return {str(group): tuple(_scalars(row, f"row of {group}") for row in rows) for group, rows in data.items()}


def parse_claim(row: Mapping[str, Any], paper: str) -> Claim:
    """Claim from a row of claims.yaml. Raises InvalidRequest with the id of the row if it breaks a rule."""
    name = str(row.get("id"))
    for key in row:
        if key not in _FIELDS:
            raise UnknownName(f"field of claim {name}", str(key), _FIELDS)
    required = _REQUIRED if paper in WITHOUT_TEXT else (*_REQUIRED, "passage")
    if missing := [key for key in required if row.get(key) is None]:
        raise InvalidRequest(f"claim {name} lacks {', '.join(missing)}", rule=f"every row has {', '.join(required)}")
    for key in _TEXT:
        if not isinstance("" if row.get(key) is None else row[key], str):
            raise InvalidRequest(f"{key} of claim {name} is {row[key]!r}", rule="text")
    for key in ("setting", "passage"):
        if not isinstance(row.get(key, {}), dict):
            raise InvalidRequest(f"{key} of claim {name} is {row[key]!r}", rule="a mapping")
    if row["kind"] not in KINDS:
        raise UnknownName(f"kind of claim {name}", str(row["kind"]), KINDS)
    if row["reach"] not in REACHES:
        raise UnknownName(f"reach of claim {name}", str(row["reach"]), REACHES)
    row_claim = Claim(
        **{
            **{key: value for key, value in row.items() if value is not None},
            "paper": paper,
            "system": row.get("system") or "",  # null: the claim is about no single system
            "check": _word(Check, row["check"], f"check of claim {name}"),
            "cases": _word(Cases, row.get("cases", Cases.ALL), f"cases of claim {name}"),
            "role": _word(Role, row["role"], f"role of claim {name}"),
            "printed": _terms(row.get("printed", ()), f"printed numbers of claim {name}"),
            "passage": _passage(row["passage"], name) if "passage" in row else None,
            "value": _published(row["value"], name),
            "tolerance": _number(row.get("tolerance"), f"tolerance of claim {name}"),
            "neutral": _number(row.get("neutral"), f"neutral of claim {name}"),
            "terms": _terms(row.get("terms", ()), f"terms of claim {name}"),
            "points": _points(row.get("points", ()), name),
            "setting": _scalars(row.get("setting", {}), f"setting of claim {name}"),
        }
    )
    _check_reasons(row_claim)
    _check_shape(row_claim)
    return replace(row_claim, answers=_answers(row.get("answers", []), row_claim))


def _check_reasons(claim: Claim) -> None:
    """Raise InvalidRequest if the claim departs from a default without a reason."""
    if claim.tolerance is not None and not 0 <= claim.tolerance <= 1:
        raise InvalidRequest(
            f"tolerance of claim {claim.id} is {claim.tolerance}", rule="relative, 0 to 1", legal="0.08"
        )
    if claim.because:
        return
    if claim.tolerance is not None:
        raise InvalidRequest(
            f"claim {claim.id} has the tolerance {claim.tolerance}", rule="a tolerance has its reason in `because`"
        )
    if claim.cases is not Cases.ALL and not claim.hedge:
        raise InvalidRequest(
            f"claim {claim.id} must hold in {claim.cases} cases",
            rule="fewer than all only with a hedge, or with a reason in `because`",
        )


def _check_shape(claim: Claim) -> None:
    """Raise InvalidRequest if the claim lacks a field that its check needs, or has a field that its check ignores."""
    name, check, terms = claim.id, claim.check, claim.terms
    if check is Check.NUMBER and (not isinstance(claim.value, float) or len(terms) > 1):
        raise InvalidRequest(
            f"claim {name} is {claim.value!r} of {len(terms)} terms", rule="check number: a number, one term"
        )
    if check is Check.RANGE and not isinstance(claim.value, tuple):
        raise InvalidRequest(f"claim {name} is {claim.value!r}", rule="check range: a pair", legal="[13.0, .inf]")
    if check is Check.ENDS:
        if not isinstance(claim.value, tuple) or not all(map(math.isfinite, claim.value)):
            raise InvalidRequest(f"claim {name} is {claim.value!r}", rule="check ends: a finite pair", legal="[10, 47]")
        if len(terms) != 2:
            raise InvalidRequest(f"claim {name} has the terms {list(terms)}", rule="check ends: one term per end")
    if check not in (Check.RANGE, Check.ENDS) and isinstance(claim.value, tuple):
        raise InvalidRequest(f"claim {name} is {claim.value} with check {check}", rule="a pair has check range or ends")
    if check in (*_ORDERS, Check.EQUAL) and len(terms) < 2:
        raise InvalidRequest(f"claim {name} has the terms {list(terms)}", rule=f"check {check}: at least 2 terms")
    if len(set(terms)) < len(terms):
        raise InvalidRequest(f"claim {name} has the terms {list(terms)}", rule="each term once")
    if claim.tolerance is not None and check in (*_ORDERS, Check.RANGE):
        raise InvalidRequest(
            f"claim {name} has the tolerance {claim.tolerance}", rule=f"check {check} has no tolerance"
        )
    if claim.neutral is not None and check not in (Check.NUMBER, Check.RANGE):
        raise InvalidRequest(
            f"claim {name} has the neutral point {claim.neutral}", rule="for the checks number and range"
        )
    if check is Check.FORMULA:
        different = {tuple(sorted(point.items())) for point in claim.points}
        if not LEAST_POINTS <= len(different) == len(claim.points):
            raise InvalidRequest(
                f"claim {name} has {len(claim.points)} points", rule=f"at least {LEAST_POINTS}, no two equal"
            )
        try:
            for point in claim.points:
                evaluate(claim.expression, point)
        except InvalidRequest as error:
            raise InvalidRequest(f"claim {name}: {error}") from error
        if terms and len(terms) != len(claim.points):
            raise InvalidRequest(
                f"claim {name} has {len(terms)} terms and {len(claim.points)} points", rule="one term per point"
            )
    elif claim.expression or claim.points:
        raise InvalidRequest(f"claim {name} has an expression or points", rule="only with check formula")


def _answers(rows: Any, claim: Claim) -> tuple[AnswerRow, ...]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InvalidRequest(f"answers of claim {claim.id} are {rows!r}", rule="a list of mappings")
    answers = tuple(_answer(row, claim) for row in rows)
    if len({answer.evidence for answer in answers}) < len(answers):
        raise InvalidRequest(f"claim {claim.id} has two answers with the same evidence", rule="one per evidence")
    figures = [answer.figure for answer in answers if answer.figure]
    if len(set(figures)) < len(figures):
        raise InvalidRequest(
            f"claim {claim.id} has two answers in one figure",
            rule="one answer per figure, because a record has one value per claim",
        )
    return answers


def _answer(row: Mapping[str, Any], claim: Claim) -> AnswerRow:
    what = f"answer of claim {claim.id}"
    labels, arguments, identity = row.get("labels", []), row.get("arguments", {}), row.get("identity", False)
    texts = {key: text for key, text in row.items() if key not in ("labels", "identity", *_FUNCTION_KEYS)}
    optional = _COMMON_KEYS | (_FUNCTION_KEYS if "function" in row else set())
    shaped = set(row) - optional in _ANSWER_FORMS and all(isinstance(text, str) and text for text in texts.values())
    if not shaped or not isinstance(labels, list) or type(identity) is not bool:
        raise InvalidRequest(
            f"{what} is {dict(row)}",
            rule="evidence with figure and function, or evidence with experiment, labels and series or metric",
            legal="{evidence: derived, figure: samo_small, function: suite.papers.samo.counts.bubble}",
        )
    if "function" in row and not row["function"].startswith("suite.papers."):
        raise InvalidRequest(f"function of the {what} is {row['function']}", rule="a function of suite.papers")
    if not isinstance(arguments, dict) or not all(isinstance(key, str) for key in arguments):
        raise InvalidRequest(f"arguments of the {what} are {arguments!r}", rule="a mapping", legal="{when: before}")
    if "value" in row:
        _check_value(row["value"], len(labels), what)
    elif "labels" in row and len(labels) != max(1, len(claim.terms)):
        raise InvalidRequest(f"{what} has the labels {labels}", rule="one label per term", legal="[axonn 2x1]")
    evidence = _word(Evidence, texts.pop("evidence", None), f"evidence of the {what}")
    return AnswerRow(
        evidence,
        **texts,
        arguments=arguments,
        anchors=_anchors(row, what),
        labels=tuple(map(str, labels)),
        identity=identity,
    )


def _check_value(expression: str, labels: int, what: str) -> None:
    """Raises InvalidRequest unless every symbol is METRIC_N with a place N among the labels."""
    places = [symbol.rpartition("_")[2] for symbol in symbols(expression)]
    if not places or not all(place.isdecimal() and int(place) < labels for place in places):
        raise InvalidRequest(
            f"{what} has the value {expression!r} over {labels} labels",
            rule="metrics with the place of their label",
            legal="100 * (1 - allocated_memory_1 / allocated_memory_0)",
        )


def _anchors(row: Mapping[str, Any], what: str) -> dict[str, float | tuple[float, ...]]:
    """Anchors of an answer by name: each a printed number or a list of them."""
    anchors = row.get("anchors", {})
    named_anchors: dict[str, Any] = anchors if isinstance(anchors, dict) else {"": None}
    lists: dict[str, list[Any]] = {
        name: anchor if isinstance(anchor, list) else [anchor] for name, anchor in named_anchors.items()
    }
    if not all(type(number) in (int, float) for numbers in lists.values() for number in numbers):
        raise InvalidRequest(f"anchors of the {what} are {anchors!r}", rule="numbers by name", legal="{first: 18.9}")
    return {name: tuple(anchor) if isinstance(anchor, list) else anchor for name, anchor in named_anchors.items()}


def _passage(row: Mapping[str, Any], name: str) -> Passage:
    count, digest = row.get("words"), row.get("sha256")
    if set(row) != {"words", "sha256"} or type(count) is not int or count < 1 or not _is_sha256(digest):
        raise InvalidRequest(
            f"passage of claim {name} is {dict(row)}",
            rule="words, at least 1, and sha256, 64 hexadecimal digits",
            legal="{words: 1, sha256: " + 64 * "0" + "}",
        )
    return Passage(count, str(digest))


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _scalars(row: Any, what: str) -> Mapping[str, Scalar]:
    if not isinstance(row, dict) or not all(isinstance(value, str | int | float) for value in row.values()):
        raise InvalidRequest(
            f"{what} is {row!r}", rule="a mapping with texts and numbers as values", legal="{model: gpt3_xl, gpus: 64}"
        )
    return {str(key): value for key, value in row.items()}


def _word(words: type[_Word], value: Any, what: str) -> _Word:
    try:
        return words(value)
    except ValueError as error:
        raise UnknownName(what, str(value), [word.value for word in words]) from error


def _number(value: Any, what: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRequest(f"{what} is {value!r}", rule="a finite number", legal="3.0e+11")
    return float(value)


def _published(value: Any, name: str) -> float | tuple[float, float] | str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        ends = [end for end in value if isinstance(end, int | float) and not isinstance(end, bool)]
        if len(value) != 2 or len(ends) != 2 or not ends[0] <= ends[1]:
            raise InvalidRequest(f"value of claim {name} is {value!r}", rule="a pair, low first", legal="[13.0, .inf]")
        return float(ends[0]), float(ends[1])
    number = _number(value, f"value of claim {name}")
    assert number is not None
    return number


def _terms(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(term, str) and term for term in value):
        raise InvalidRequest(f"{what} are {value!r}", rule="a list of names; numbers in quotes", legal='["6", "12"]')
    return tuple(value)


def _points(value: Any, name: str) -> tuple[Mapping[str, float], ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(point, dict) for point in value):
        raise InvalidRequest(
            f"points of claim {name} are {value!r}", rule="a list of mappings", legal="[{phi: 5.0e+8}]"
        )
    points = []
    for point in value:
        numbers = {str(symbol): _number(number, f"{symbol} of claim {name}") for symbol, number in point.items()}
        if None in numbers.values():
            raise InvalidRequest(f"claim {name} has the point {point}", rule="a number for every symbol")
        points.append({symbol: number for symbol, number in numbers.items() if number is not None})
    return tuple(points)


def _read(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequest(f"{path.parent.name}/{path.name} cannot be read: {error}") from error


def _rows(path: Path) -> Sequence[dict[str, Any]]:
    rows = _read(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InvalidRequest(f"{path.parent.name}/{path.name} is not a list of mappings", rule="one row per claim")
    return rows
