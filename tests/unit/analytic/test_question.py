"""Decides whether an answer can see the published value that it answers for: it must not, however it asks.

An answer that copies the paper would reproduce everything, and say nothing.
"""

from __future__ import annotations

from dataclasses import fields

import pytest

from suite.analytic import question
from suite.analytic.question import Answer, Papers, Question, answer, answers, distinct
from suite.core.claim import Check, Claim
from suite.core.errors import Refused, UnknownName
from suite.workload import Transformer

SHAPE = Transformer(1, 4, 2, sequence=3, vocabulary=5)


def claim(name: str, value: float | tuple[float, float] | str, **more: object) -> Claim:
    return Claim(name, "axonn", "Table I", "gpus", "axonn", value, "gpu", "number", "analytic", **more)  # type: ignore[arg-type]


PAPERS = Papers(
    {"a": claim("a", 12.0, setting={"gpus": 3}), "b": claim("b", (1.0, 4.0)), "c": claim("c", "similar")},
    {"machines": [{"id": "summit", "gpus_per_node": 6}], "training": [{"paper": "samo", "experiment": "all", "x": 1}]},
    {"gpt": SHAPE},
)


def test_a_question_holds_no_answer() -> None:
    assert {field.name for field in fields(Question)} == {"id", "setting", "points", "terms"}
    asked = Question.of(
        claim("d", 7.0, setting={"g": 2}, points=({"p": 0.5},), expression="7", terms=("t",), check=Check.FORMULA)
    )
    assert asked == Question("d", {"g": 2}, ({"p": 0.5},), ("t",))


def test_papers_say_what_others_publish() -> None:
    assert PAPERS.value("a") == 12.0
    assert PAPERS.ends("b") == (1.0, 4.0)
    assert PAPERS.setting("a") == {"gpus": 3}
    assert PAPERS.machine("summit")["gpus_per_node"] == 6
    assert PAPERS.training("samo", "all")["x"] == 1
    assert PAPERS.shape("gpt") is SHAPE


def test_papers_without_a_claim_do_not_know_it() -> None:
    others = PAPERS.without("a")
    for ask in (others.value, others.ends, others.setting):
        with pytest.raises(UnknownName, match="no other claim named 'a'"):
            ask("a")
    assert others.ends("b") == (1.0, 4.0)
    assert PAPERS.value("a") == 12.0


def test_what_the_papers_do_not_say_is_refused() -> None:
    with pytest.raises(Refused, match="rule: a number"):
        PAPERS.value("b")
    with pytest.raises(Refused, match="rule: a range"):
        PAPERS.ends("a")
    with pytest.raises(Refused, match="rule: a number"):
        PAPERS.value("c")
    with pytest.raises(Refused, match=r"no row of machines.*frontier"):
        PAPERS.machine("frontier")
    with pytest.raises(Refused, match="no row of training"):
        PAPERS.training("axonn", "all")
    with pytest.raises(UnknownName, match="did you mean 'gpt'"):
        PAPERS.shape("gtp")


def test_an_answer_is_asked_without_its_own_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question.answers, "_known", {})

    @answers("a", "b", unit="gpu")
    def copy(asked: Question, papers: Papers) -> tuple[question.Cases, str]:
        return [[papers.value("a")], [0.25]], f"of {asked.id}"

    with pytest.raises(UnknownName, match="no other claim named 'a'"):
        answer(Question("a", {}), PAPERS)
    assert answer(Question("b", {}), PAPERS) == Answer("gpu", (12.0, 0.25), "of b")
    assert question.ids() == ("a", "b")
    with pytest.raises(UnknownName, match="no answer to a claim named 'bb'"):
        answer(Question("bb", {}), PAPERS)
    with pytest.raises(Refused, match="two answers to b"):
        answers("b", unit="gpu")(copy)


def test_equal_cases_are_told_once() -> None:
    assert distinct([[1, 2], (1, 2), [2, 1], [1.0, 2.0]]) == [(1, 2), (2, 1)]
