"""Answers give the kept values and verdicts (tests/answers.py), a drawn answer of each kind in each run."""

from __future__ import annotations

import csv
from ast import literal_eval
from functools import cache

import pytest

from suite.claims import load
from suite.claims.claim import Answered, Evidence
from suite.claims.verdicts_now import judge_with_records
from tests.answers import KEPT
from tests.support.drawn import drawn, generator

# figures that are searched, partitioned or simulated on hundreds of GPUs
SLOW = ("axonn_table2", "axonn_fig6", "axonn_fig9", "axonn_fig11", "axonn_memory", "pipeoptim_table5")


@cache
def kept() -> dict[Answered, list[str]]:
    """Verdict and values of each answer by a function or from printed numbers; a measured one has no values."""
    with KEPT.open(newline="", encoding="utf-8") as file:
        return {(name, Evidence(kind)): rest for name, kind, *rest in csv.reader(file) if kind != "None"}


def one_of_each_function(slow: bool) -> list[Answered]:
    """A drawn answer of each function, and one from printed numbers of each paper."""
    rows = [(claim, row) for claim in load.claims() for row in claim.answers if row.computed]
    mixed = generator("answers").sample(rows, len(rows))
    chosen = {
        row.function or claim.paper: (claim.id, row.evidence) for claim, row in mixed if is_slow(row.figure) is slow
    }
    return sorted(chosen.values())


def is_slow(figure: str) -> bool:
    return figure in SLOW or figure.startswith("gnn_")


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        *drawn(one_of_each_function(slow=False), n=20),
        *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in one_of_each_function(slow=True)),
    ],
)
def test_an_answer_has_its_kept_value_and_verdict(name: str, evidence: Evidence) -> None:
    """Where a change is right: python -m tests.answers write."""
    judged = judge_with_records([name])[name]
    (ours,) = (each for each in (judged, *judged.others) if each.evidence is evidence)
    verdict, values = kept()[name, evidence]
    assert ours.verdict == verdict, ours.why
    if values:
        assert list(ours.ours) == [pytest.approx(case, rel=1e-6) for case in literal_eval(values)]
