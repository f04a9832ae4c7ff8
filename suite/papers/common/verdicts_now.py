"""Verdicts on a few claims, answered in this process without a record.

Used where the same claims are answered again and again: after a mutation, and with other constants.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from suite.config.compose import resolve
from suite.core.claim import AnswerRow, Claim, Evidence, Judged
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.record import Metric, Outcome, Record, Source
from suite.core.resources import conf_folder
from suite.papers.common import claims
from suite.papers.common.answer import Papers, metrics_of
from suite.papers.common.claims import Answered
from suite.papers.common.formula_executor import FIGURE, FormulaExecutor
from suite.report import judge
from suite.report.load import ReportStore, StoredRecord
from suite.runner.executors.registry import without_ranks

EXPERIMENTS = conf_folder() / "experiment"


def judge_claims(names: Sequence[str]) -> dict[str, Judged]:
    """These claims with our values of now, by id. `names`: ids, or patterns of ids with *.

    Raises:
        UnknownName: no claim has the id
        InvalidRequest: no function answers the claim
    """
    claims_by_id = {claim.id: claim for claim in claims.load()}
    claim_ids = [claim.id for name in names for claim in _named(name, claims_by_id)]
    verdicts = judge_with_records(claim_ids)
    return {name: verdicts[name] for name in claim_ids}


def judge_with_records(names: Sequence[str], records: Sequence[StoredRecord] = ()) -> dict[str, Judged]:
    """Every claim, by id, with these claims' current values and the values of `records`.

    Raises:
        UnknownName: no claim has the id
        InvalidRequest: no function answers the claim
    """
    claims_by_id = {claim.id: claim for claim in claims.load()}
    chosen = [claim for name in names for claim in _named(name, claims_by_id)]
    if unanswered := [claim.id for claim in chosen if not any(row.function for row in claim.answers)]:
        raise InvalidRequest(f"no function answers {', '.join(unanswered)}", rule="a claim with a function")
    chosen += [claims_by_id[name] for name in _controls([claim.id for claim in chosen], claims_by_id)]
    verdicts = judge.judge(claims_by_id.values(), ReportStore(Path("none"), (*records, *_entries(chosen))))
    return {one.claim.id: one for one in verdicts}


def _controls(names: Iterable[str], known: Mapping[str, Claim]) -> list[str]:
    """The controls of these claims that a function answers: a contradiction requires a control that holds."""
    controls = dict.fromkeys(known[name].control for name in names if known[name].control)
    return [name for name in controls if name not in names and any(row.function for row in known[name].answers)]


def compose_sources(asked: Iterable[Answered]) -> None:
    """Composes what the functions of these answers are asked with; answers nothing."""
    claims_by_id = {claim.id: claim for claim in claims.load()}
    for name, kind in asked:
        source_of(claims_by_id[name].paper, _answer_row(claims_by_id[name], kind).figure)


def verdict_of_each(asked: Iterable[Answered], failed: str) -> Iterator[tuple[Answered, str, float]]:
    """The verdict on each answer by itself, whether a mutation turns it or not, and the CPU seconds that it took.

    failed: stands for the verdict where the function raises
    """
    bare = {claim.id: replace(claim, answers=()) for claim in claims.load()}
    claims_by_id = {claim.id: claim for claim in claims.load()}
    for name, kind in asked:
        claim, row = claims_by_id[name], _answer_row(claims_by_id[name], kind)
        start = _cpu_seconds()
        try:
            entry = _entry("now", metrics_of([(claim, row)], source_of(claim.paper, row.figure)))
        except Exception:  # whatever broken code raises
            verdict = failed
        else:
            alone = {**bare, name: replace(claim, answers=(row,))}
            verdicts = judge.judge(alone.values(), ReportStore(Path("none"), (entry,)), hold=False)
            verdict = next(one.verdict.value for one in verdicts if one.claim.id == name)
        yield (name, kind), verdict, _cpu_seconds() - start


def _cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended: a shared machine changes it little."""
    return sum(os.times()[:4])


def _answer_row(claim: Claim, kind: Evidence) -> AnswerRow:
    """The answer of this evidence. Raises InvalidRequest where no function gives it."""
    for row in claim.answers:
        if row.evidence is kind and row.function:
            return row
    raise InvalidRequest(f"no function gives the {kind} answer of {claim.id}", rule="an answer with a function")


def judge_metrics(metrics: Mapping[str, Metric]) -> dict[str, Judged]:
    """The verdicts on claims, by id, with these values."""
    claims_by_id = {claim.id: claim for claim in claims.load()}
    verdicts = judge.judge(claims_by_id.values(), ReportStore(Path("none"), (_entry("varied", metrics),)))
    return {one.claim.id: one for one in verdicts if one.claim.id in metrics}


def _named(name: str, known: Mapping[str, Claim]) -> list[Claim]:
    """The claim of an id; of a pattern, those that a function answers."""
    if name in known:
        return [known[name]]
    matches = [claim for claim in known.values() if fnmatchcase(claim.id, name)]
    if not matches:
        raise UnknownName("claim", name, known)
    return [claim for claim in matches if any(row.function for row in claim.answers)]


def _entries(asked: Sequence[Claim]) -> list[StoredRecord]:
    """A record per figure, and per kind of evidence where a claim has several answers in one figure."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for claim in asked:
        for row in claim.answers:
            if row.function:
                groups.setdefault((claim.paper, row.figure), []).append((claim, row))
    stored = []
    for (paper, figure), pairs in groups.items():
        source = source_of(paper, figure)
        for claim, row in pairs:
            metrics = metrics_of([(claim, row)], source)
            stored.append(_entry(f"{figure} {claim.id} {row.evidence}", metrics))
    return stored


def _entry(label: str, metrics: Mapping[str, Metric]) -> StoredRecord:
    record = Record(label, "now", "suite", label, Outcome.OK, Source.SIMULATED, metrics=dict(metrics))
    return StoredRecord(record, f"{label}.json")


@cache
def source_of(paper: str, figure: str) -> Any:
    """Sources for the answers of a figure: simulated runs, graphs, or the papers' printed values."""
    overrides = ["executor=analytic", f"executor.paper={paper}"] if figure == FIGURE else _run_of(figure)
    executor: Any = without_ranks(resolve(overrides).executor)
    if isinstance(executor, FormulaExecutor):
        return Papers({claim.id: claim for claim in claims.load()}, claims.settings(), executor.shapes)
    return executor.lab


def _run_of(figure: str) -> list[str]:
    """The overrides of an experiment's run that computes a figure. Raises InvalidRequest where none does."""
    override = f"executor.figure={figure}"
    for path in sorted(EXPERIMENTS.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text) or {} if override in text else {}
        for run in content.get("experiment", {}).get("runs", []):
            if override in run:
                return [f"experiment={path.stem}", *run]
    raise InvalidRequest(f"no experiment computes the figure {figure}", rule="a run with executor.figure")
