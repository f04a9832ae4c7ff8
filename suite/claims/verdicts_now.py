"""Verdicts on selected claims, computed in this process without records.

Mutation tests and sensitivities use it to answer the same claims many times.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from suite.claims import judge, load
from suite.claims.answer import Papers, metrics_of
from suite.claims.claim import Answered, AnswerRow, Claim, Evidence, Judged
from suite.claims.formula_executor import FIGURE, FormulaExecutor
from suite.config.compose import combinations, resolve
from suite.config.families import content, groups
from suite.core.errors import InvalidRequest
from suite.core.record import Metric, Outcome, Record, Source
from suite.report.load import ReportStore, StoredRecord
from suite.runner.executors.registry import without_ranks


def judge_claims(names: Sequence[str]) -> dict[str, Judged]:
    """Judge claims with newly computed values.

    Args:
        names: Ids of claims, and patterns of ids or papers, whose claims without a function are left out.

    Returns:
        The judged claims by id.

    Raises:
        UnknownName: No claim matches.
        InvalidRequest: No function answers the claim.
    """
    claims_by_id, verdicts = {claim.id: claim for claim in load.claims()}, judge_with_records(names)
    return {claim.id: verdicts[claim.id] for name in names for claim in _named(name, claims_by_id)}


def judge_with_records(names: Sequence[str], records: Sequence[StoredRecord] = ()) -> dict[str, Judged]:
    """Judge all claims with newly computed values of `names` and the values of `records`.

    Args:
        names: Ids of claims, or patterns of ids with *.
        records: Stored records.

    Returns:
        All claims by id.

    Raises:
        UnknownName: No claim matches.
        InvalidRequest: No function answers the claim.
    """
    claims_by_id = {claim.id: claim for claim in load.claims()}
    chosen = [claim for name in names for claim in _named(name, claims_by_id)]
    if unanswered := [claim.id for claim in chosen if not any(row.computed for row in claim.answers)]:
        raise InvalidRequest(f"no function answers {', '.join(unanswered)}", rule="a claim with a function")
    controls = dict.fromkeys(claim.control for claim in chosen if claim.control)  # a contradiction needs one that holds
    chosen += [claims_by_id[name] for name in controls if claims_by_id[name] not in chosen]
    verdicts = judge.judge(claims_by_id.values(), ReportStore(Path("none"), (*records, *_entries(chosen))))
    return {judged.claim.id: judged for judged in verdicts}


def compose_sources(answers: Iterable[Answered]) -> None:
    """Compose the sources of these answers in advance, without computing any answer."""
    claims_by_id = {claim.id: claim for claim in load.claims()}
    for name, kind in answers:
        source_of(claims_by_id[name].paper, _answer_row(claims_by_id[name], kind).figure)


def verdict_alone(answered: Answered, failed: str) -> tuple[str, float]:
    """Verdict on an answer by itself, whether or not a mutation is registered for it, and its CPU seconds.

    Args:
        answered: The answer.
        failed: Text in place of the verdict if the function raises.
    """
    name, kind = answered
    claims_by_id = {claim.id: replace(claim, answers=()) if claim.id != name else claim for claim in load.claims()}
    claim, row = claims_by_id[name], _answer_row(claims_by_id[name], kind)
    start = _cpu_seconds()
    try:
        entry = _entry("now", metrics_of([(claim, row)], source_of(claim.paper, row.figure)))
    except Exception:  # mutated code may raise anything
        return failed, _cpu_seconds() - start
    claims_by_id[name] = replace(claim, answers=(row,))
    verdicts = judge.judge(claims_by_id.values(), ReportStore(Path("none"), (entry,)), hold=False)
    return next(one.verdict.value for one in verdicts if one.claim.id == name), _cpu_seconds() - start


def _cpu_seconds() -> float:
    """CPU time of this process and its finished children; less affected by other load than wall-clock time."""
    return sum(os.times()[:4])


def _answer_row(claim: Claim, kind: Evidence) -> AnswerRow:
    """Answer of a claim by a function with this evidence. Raises InvalidRequest if there is none."""
    for row in claim.answers:
        if row.evidence is kind and row.function:
            return row
    raise InvalidRequest(f"no function gives the {kind} answer of {claim.id}", rule="an answer with a function")


def judge_metrics(metrics: Mapping[str, Metric]) -> dict[str, Judged]:
    """Judge the claims of these metrics. Returns the judged claims by id."""
    claims_by_id = {claim.id: claim for claim in load.claims()}
    verdicts = judge.judge(claims_by_id.values(), ReportStore(Path("none"), (_entry("varied", metrics),)))
    return {judged.claim.id: judged for judged in verdicts if judged.claim.id in metrics}


def _named(name: str, known: Mapping[str, Claim]) -> list[Claim]:
    """The claim with this id, or the claims of a pattern or a paper that a function answers."""
    return [claim for claim in load.named(name, known) if name in known or any(row.computed for row in claim.answers)]


def _entries(chosen: Sequence[Claim]) -> list[StoredRecord]:
    """One record per answer by a function."""
    pairs = [(claim, row) for claim in chosen for row in claim.answers if row.function]
    return [
        _entry(
            f"{row.figure} {claim.id} {row.evidence}", metrics_of([(claim, row)], source_of(claim.paper, row.figure))
        )
        for claim, row in pairs
    ]


def _entry(label: str, metrics: Mapping[str, Metric]) -> StoredRecord:
    record = Record(label, "now", "suite", label, Outcome.OK, Source.SIMULATED, metrics=dict(metrics))
    return StoredRecord(record, f"{label}.json")


@cache
def source_of(paper: str, figure: str) -> Any:
    """Source for the answers of a figure: simulated runs, graphs, or printed values."""
    overrides = ["executor=analytic", f"executor.paper={paper}"] if figure == FIGURE else _run_of(figure)
    executor: Any = without_ranks(resolve(overrides).executor)
    if isinstance(executor, FormulaExecutor):
        return Papers({claim.id: claim for claim in load.claims()}, load.settings(), executor.shapes)
    return executor.lab


def _run_of(figure: str) -> list[str]:
    """Config overrides of an experiment's run that computes a figure. Raises InvalidRequest if there is none."""
    override = f"executor.figure={figure}"
    for name in groups()["experiment"]:
        lines = content("experiment", name).keys["experiment"].get("runs", [])
        for run in chain.from_iterable(combinations(shlex.split(line)) for line in lines if figure in line):
            if override in run:
                return [f"experiment={name}", *run]
    raise InvalidRequest(f"no experiment computes the figure {figure}", rule="a run with executor.figure")
