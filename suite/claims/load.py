"""Reader and validator for the claims of each paper (claims.yaml).

One invalid row makes the whole file invalid, and the error contains the id of the row. Needs no torch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import TypeAdapter, ValidationError

from suite.claims import blind
from suite.claims.claim import (
    MODELLED,
    Answered,
    AnswerRow,
    Cases,
    Check,
    Claim,
    Decision,
    Evidence,
    FrontRow,
    Judged,
    Mutation,
    Role,
    Sensitivity,
    Settings,
)
from suite.claims.printed import quoted
from suite.core.errors import InvalidRequest, UnknownName, refuse
from suite.core.expression import evaluate, symbols

try:
    from yaml import CSafeLoader as Loader  # ten times faster
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeLoader as Loader

FOLDER = Path(__file__).parents[1] / "papers"
FUNCTIONS = ("suite.papers.", "suite.memory.")
LEAST_POINTS = 3  # three points expose a formula that is wrong by a factor, an offset or a power
SENSITIVITY = "sensitivity.yaml"
MUTATIONS = "mutations.yaml"
COMMANDS = "commands.yaml"
_REQUIRED = ("asserts", "role", "check")  # of a row, besides the arguments of a Claim
_ORDERS = (Check.RISES, Check.FALLS, Check.NEVER_FALLS, Check.LEAST, Check.GREATEST)
_ANSWER_FORMS = (  # legal sets of keys of an answer, without the optional keys below
    {"figure", "function"},
    {"printed"},
    {"experiment", "series", "labels"},
    {"experiment", "metric", "labels"},
    {"experiment", "value", "labels"},
    {"experiment"},  # the executor writes the value under the id of the claim
)
_FUNCTION_KEYS = {"arguments", "at", "anchors"}
_COMMON_KEYS = {"evidence", "stand_in", "identity", "restates"}
_PLACE = re.compile(r".+_(\d+)")  # a metric and the place of its label

T = TypeVar("T")
Rule = tuple[object, str]  # true if the rule is broken, and the rule
_SHA256 = re.compile("[0-9a-f]{64}")


def named(name: str, known: Mapping[str, Claim]) -> list[Claim]:
    """The claim with this id, the claims of this paper, or those whose ids match this pattern with *.

    Raises UnknownName for none."""
    if name in known:
        return [known[name]]
    matches = [claim for claim in known.values() if claim.paper == name or fnmatchcase(claim.id, name)]
    if not matches:
        raise UnknownName("claim", name, known)
    return matches


def papers() -> tuple[str, ...]:
    """Names of the papers. A paper is a folder with a file claims.yaml."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/claims.yaml")))


def papers_answering(figure: str) -> tuple[str, ...]:
    """Papers with a claim whose answer is computed with this figure."""
    having = (claim.paper for claim in claims() if any(row.figure == figure for row in claim.answers))
    return tuple(dict.fromkeys(having))


def titles() -> dict[str, str]:
    """Title of each paper: the heading of its README.md, or else the name of its folder."""
    return _titles(FOLDER)


@cache
def _titles(folder: Path) -> dict[str, str]:
    files = {paper: folder / paper / "README.md" for paper in papers()}
    return {
        paper: file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") if file.exists() else paper
        for paper, file in files.items()
    }


def claims() -> tuple[Claim, ...]:
    """All claims of the papers in the order of the files. Blind mode hides their outcomes.

    Raises:
        InvalidRequest: A row breaks a rule.
    """
    return _hidden(FOLDER) if blind.active() else _load(FOLDER)


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
    turned, commands = _turned(), list(_of_papers(COMMANDS))
    loaded: dict[str, Claim] = {}
    for paper in papers():
        rows = _rows(folder / paper / "claims.yaml")
        printed = any("passage" in row for row in rows)  # rows from public sources have a place and no fingerprint
        for row in rows:
            claim = parse_claim(row, paper, passage=printed)
            refuse([(claim.id in loaded, f"two claims have the id {claim.id}", "one row per id")])
            answers = (replace(each, turned_by=turned.get((claim.id, each.evidence), ())) for each in claim.answers)
            loaded[claim.id] = replace(claim, answers=tuple(answers), command=_command(claim, commands))
    return tuple(loaded.values())


def _command(claim: Claim, rows: Iterable[Mapping[str, Any]]) -> str:
    """Commands that measure a claim on published data or a GPU, joined by &&; empty for none."""
    named = (row["command"] for row in rows if any(fnmatchcase(claim.id, pattern) for pattern in row["claims"]))
    return " && ".join(named) if claim.reach in ("data", "gpu") else ""


def _of_papers(name: str) -> Iterator[dict[str, Any]]:
    """Rows of the file of this name in each paper's folder that has one."""
    return chain.from_iterable(map(_rows, sorted(FOLDER.glob(f"*/{name}"))))


def mutations() -> list[Mutation]:
    """Mutations of the papers. Raises InvalidRequest for an invalid row."""
    return [_read_as(Mutation, row, f"mutation {row.get('id')}") for row in _of_papers(MUTATIONS)]


def _turned() -> dict[Answered, tuple[str, ...]]:
    """Ids of the mutations that change the verdict of each answer, from the papers' files."""
    answers: dict[Answered, tuple[str, ...]] = {}
    for mutation in mutations():
        for answered in mutation.answers:
            answers[answered] = (*answers.get(answered, ()), mutation.id)
    return answers


def decisions() -> tuple[Decision, ...]:
    """Contradictions within and between the papers, with our decisions. Raises InvalidRequest for an invalid row."""
    return tuple(_read_as(Decision, row, f"decision {row.get('id')}") for row in _rows(FOLDER / "decisions.yaml"))


def sensitivities() -> dict[str, Sensitivity]:
    """Sensitivity of simulated claims by id, as written by `suite claims sensitivity`.

    Raises:
        InvalidRequest: A row lacks a key or has a value of another type.
    """
    return {row["id"]: _read_as(Sensitivity, row, f"{SENSITIVITY}: {row}") for row in _of_papers(SENSITIVITY)}


def with_sensitivity(judged: Iterable[Judged], by_claim: Mapping[str, Sensitivity]) -> list[Judged]:
    """Copies of judged claims with the sensitivity of each simulated or emulated value, headline or not."""

    def annotate(claim: Judged) -> Judged:
        sensitivity = by_claim.get(claim.claim.id) if claim.evidence in MODELLED else None
        return replace(claim, sensitivity=sensitivity, others=tuple(map(annotate, claim.others)))

    return [annotate(claim) for claim in judged]


def settings() -> Settings:
    """Published settings by group: systems, models, machines, software, datasets, training, formulas."""
    path = FOLDER / "settings.yaml"
    return _read_as(dict[str, tuple[dict[str, str | int | float], ...]], _read(path), path.name)


def fronts() -> dict[str, FrontRow]:
    """What the front page shows of each paper that has a front.yaml, by the name of the paper."""
    files = sorted(FOLDER.glob("*/front.yaml"))
    return {path.parent.name: _read_as(FrontRow, _read(path), f"{path.parent.name}/{path.name}") for path in files}


def parse_claim(row: Mapping[str, Any], paper: str, *, passage: bool = True) -> Claim:
    """Claim from a row of claims.yaml, with the fingerprint of its passage where `passage` is true.

    Raises InvalidRequest with the id of the row if it breaks a rule."""
    what = f"claim {row.get('id')}"
    given = {key: value for key, value in row.items() if value is not None}
    missing = [key for key in (*_REQUIRED, *["passage"] * passage) if key not in given]
    refuse([(missing, what, f"it has {', '.join(missing)}")])
    refuse((key in row, what, f"no key {key}") for key in ("paper", "command"))
    # null as a system: the claim is about no single one
    claim = _read_as(Claim, {"system": "", **given, "paper": paper}, what)
    refuse((broken, what, rule) for broken, rule in _rules(claim))
    for answer, row_of_answer in zip(claim.answers, row.get("answers", ()), strict=True):
        rules = _answer_rules(answer, row_of_answer, claim)
        refuse((broken, f"answer of {what}", rule) for broken, rule in rules)
    return claim


def _rules(claim: Claim) -> Iterator[Rule]:
    """Rules between the fields of a claim: each check reads some fields and ignores others."""
    check, value, terms, points = claim.check, claim.value, claim.terms, claim.points
    yield any(map(math.isnan, _numbers(value))), "its value is a number"
    yield isinstance(value, tuple) and value[0] > value[1], "a pair has its low end first"
    paired = check in (Check.RANGE, Check.ENDS)
    yield isinstance(value, tuple) is not paired, "checks range and ends have a pair as value, and no other check"
    yield check is Check.NUMBER and (not isinstance(value, float) or len(terms) > 1), "check number: a number, one term"
    yield check is Check.ENDS and math.inf in map(abs, _numbers(value)), "check ends: a finite pair"
    yield check is Check.ENDS and len(terms) != 2, "check ends: one term per end"
    yield check in (*_ORDERS, Check.EQUAL) and len(terms) < 2, f"check {check}: at least 2 terms"
    yield len(set(terms)) < len(terms) or "" in terms, "each term has a name of its own"
    tolerance = claim.tolerance
    yield tolerance is not None and not 0 <= tolerance <= 1, "a tolerance is relative, 0 to 1"
    yield tolerance is not None and not claim.because, "a tolerance has its reason in `because`"
    yield tolerance is not None and check in (*_ORDERS, Check.RANGE), f"check {check} has no tolerance"
    hedged = claim.hedge or claim.because
    yield claim.cases is not Cases.ALL and not hedged, "fewer cases than all only with `hedge`, or with `because`"
    neutral = claim.neutral
    yield neutral is not None and check not in (Check.NUMBER, Check.RANGE), "neutral is for checks number and range"
    yield neutral is not None and not math.isfinite(neutral), "neutral is a finite number"
    passage = claim.passage
    yield passage and (passage.words < 1 or not _SHA256.fullmatch(passage.sha256)), "passage: words and their SHA-256"
    answers = claim.answers
    figures = [answer.figure for answer in answers if answer.figure]
    yield len({answer.evidence for answer in answers}) < len(answers), "one answer per evidence"
    yield len(set(figures)) < len(figures), "one answer per figure, because a record has one value per claim"
    if check is not Check.FORMULA:
        yield claim.expression or points, "an expression and points only with check formula"
        return
    different = {tuple(sorted(point.items())) for point in points}
    few = not LEAST_POINTS <= len(different) == len(points)
    yield few, f"check formula: at least {LEAST_POINTS} points, no two equal"
    yield terms and len(terms) != len(points), "check formula: one term per point"
    yield _fault_of(claim), f"its expression: {_fault_of(claim)}"


def _numbers(value: object) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,) if isinstance(value, float) else ()


def _fault_of(claim: Claim) -> str:
    """The first fault of a formula at its points; empty for none."""
    try:
        for point in claim.points:
            evaluate(claim.expression, point)
    except InvalidRequest as error:
        return str(error)
    return ""


def _answer_rules(answer: AnswerRow, row: Mapping[str, Any], claim: Claim) -> Iterator[Rule]:
    keys = set(row) - _COMMON_KEYS - (_FUNCTION_KEYS if answer.function else set())
    yield (
        keys not in _ANSWER_FORMS or "" in row.values(),
        "evidence with figure and function, with printed, or with experiment, labels and series, metric or value",
    )
    yield answer.function and not answer.function.startswith(FUNCTIONS), "a function of suite.papers"
    known = set(claim.points[0] if claim.points else claim.setting)
    yield not known >= {*answer.at.values()}, "at: symbols of the points, or names in the setting"
    read = {symbol.partition(" ")[0] for case in answer.printed for text in case for symbol in symbols(quoted(text))}
    yield claim.id in read, "printed: numbers of other claims"
    yield (
        bool(answer.printed) is not (answer.evidence is Evidence.PRINTED),
        "evidence printed: the key printed, and no other",
    )
    if answer.value:
        places = [_PLACE.fullmatch(symbol) for symbol in symbols(answer.value)]
        legal = places and all(place and int(place[1]) < len(answer.labels) for place in places)
        yield not legal, "value: metrics with the place of their label, such as allocated_memory_0"
    else:
        yield "labels" in row and len(answer.labels) != max(1, len(claim.terms)), "one label per term"


@cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)


def _read_as(form: type[T], data: Any, what: str) -> T:
    """The data of a file as this form, without conversions: a number is no text. Raises InvalidRequest."""
    try:
        return cast(T, _adapter(cast(Any, form)).validate_json(json.dumps(data, default=str)))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(key) for key in fault["loc"] if key not in ("float", "str", "tuple[float, float]"))
        subject = f"{place} of {what}" if place else what
        raise InvalidRequest(f"{subject} is {fault['input']!r}", rule=fault["msg"]) from error


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
