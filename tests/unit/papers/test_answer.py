"""An answer cannot read the published value of its claim.

An answer that copies the paper would reproduce everything, and say nothing.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest

from suite.cli.claims import main
from suite.config.signature import check_names, check_values
from suite.core.claim import AnswerRow, Check, Claim, Evidence
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.record import Metric
from suite.papers.common import claims, trace
from suite.papers.common.answer import (
    Answer,
    Cases,
    Papers,
    Question,
    answer,
    answers_of_figure,
    distinct_cases,
    function_of,
    metrics_of,
    range_of_setting,
)
from suite.papers.common.figure_executor import find_figure
from suite.workload import Transformer
from tests.support.refusals import refused

SHAPE = Transformer(1, 4, 2, sequence=3, vocabulary=5)


def claim(name: str, value: float | tuple[float, float] | str, **more: object) -> Claim:
    return Claim(name, "axonn", "Table I", "gpus", "axonn", value, "gpu", "number", "analytic", **more)  # type: ignore[arg-type]


PAPERS = Papers(
    {"a": claim("a", 12.0, setting={"gpus": 3}), "b": claim("b", (1.0, 4.0)), "c": claim("c", "similar")},
    {"machines": [{"id": "summit", "gpus_per_node": 6}], "training": [{"paper": "samo", "experiment": "all", "x": 1}]},
    {"gpt": SHAPE},
)


def test_a_setting_goes_from_and_to() -> None:
    assert range_of_setting(Question({"sparsity": "0.8..0.9"}), "sparsity") == ("0.8", "0.9")
    for value in ("0.8", "0.8..", "..0.9", 0.8):
        with refused(InvalidRequest, subject="the setting sparsity is", rule="from and to", legal="0.8..0.9"):
            range_of_setting(Question({"sparsity": value}), "sparsity")


def test_a_question_holds_no_answer() -> None:
    assert {field.name for field in fields(Question)} == {"setting", "points", "terms"}
    query = Question.of(
        claim("d", 7.0, setting={"g": 2}, points=({"p": 0.5},), expression="7", terms=("t",), check=Check.FORMULA)
    )
    assert query == Question({"g": 2}, ({"p": 0.5},), ("t",))


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
        with refused(UnknownName, "other claim", "a"):
            ask("a")
    assert others.ends("b") == (1.0, 4.0)
    assert PAPERS.value("a") == 12.0


def test_what_the_papers_do_not_say_is_refused() -> None:
    with refused(InvalidRequest, rule="a number"):
        PAPERS.value("b")
    with refused(InvalidRequest, rule="a range"):
        PAPERS.ends("a")
    with refused(InvalidRequest, rule="a number"):
        PAPERS.value("c")
    with refused(InvalidRequest, subject="no row of machines has {'id': 'frontier", rule="a published setting"):
        PAPERS.machine("frontier")
    with refused(InvalidRequest, subject="no row of training", rule="a published setting"):
        PAPERS.training("axonn", "all")
    with refused(UnknownName, "model", "gtp", legal="did you mean 'gpt'?"):
        PAPERS.shape("gtp")


def copies(question: Question, papers: Papers, *, of: str, and_more: float) -> tuple[Cases, str]:
    return [[papers.value(of)], [and_more]], f"{len(question.terms)} terms"


def row(function: str, evidence: Evidence = Evidence.PRINTED, **arguments: Any) -> AnswerRow:
    return AnswerRow(evidence, figure="formulas", function=f"{__name__}.{function}", arguments=arguments)


def test_answer_never_reads_its_own_claim() -> None:
    ratio = row("copies", of="a", and_more=0.25)
    with refused(UnknownName, "other claim", "a"):
        answer(claim("a", 12.0), ratio, PAPERS)
    answered = answer(claim("b", 7.0, terms=("x",)), ratio, PAPERS)
    assert answered == Answer("gpu", (12.0, 0.25), "1 terms", Evidence.PRINTED, reads=("claim.a",))


def test_answer_needs_a_function_that_exists() -> None:
    with refused(UnknownName, "answer in tests.unit.papers.test_answer", "copied", legal="did you mean 'copies'?"):
        answer(claim("b", 7.0), row("copied"), PAPERS)


class Constants:
    """A source with two constants, of which one was fitted to two claims."""

    def constant(self, name: str) -> float:
        trace.read(name)
        return 2.0

    def fitted_to(self, name: str) -> tuple[str, ...]:
        return {"efficiency.fitted": ("c", "b", "c")}.get(name, ())


def constants(question: Question, source: Constants, *, of: Sequence[str]) -> tuple[Cases, str]:
    return [[source.constant(name)] for name in of], ""


def test_answer_tells_what_it_read_and_what_fed_that() -> None:
    one, both = (row("constants", Evidence.SIMULATED, of=of) for of in (["x"], ["x", "efficiency.fitted", "x"]))
    answered = answer(claim("a", 2.0), one, Constants())
    assert (answered.reads, answered.fed_by) == (("x",), ())
    answered = answer(claim("a", 2.0), both, Constants())
    assert (answered.reads, answered.fed_by) == (("efficiency.fitted", "x"), ("c", "b"))


def test_metrics_bear_the_evidence_of_their_answer() -> None:
    """A record contains how a value came about, and the claims of its constants."""
    pairs = [
        (claim("a", 2.0), row("constants", Evidence.SIMULATED, of=["efficiency.fitted"])),
        (claim("b", 2.0), row("constants", Evidence.DERIVED, of=["x"])),
    ]
    metrics = metrics_of(pairs, Constants())
    assert metrics == {
        "a": Metric("gpu", "", (2.0,), "", "simulated", ("efficiency.fitted",), ("c", "b")),
        "b": Metric("gpu", "", (2.0,), "", "derived", ("x",)),
    }


def slow(question: Question, source: Constants) -> tuple[Cases, str]:
    time.sleep(0.05)
    return [[1.0]], ""


def test_metric_of_an_answer_holds_the_seconds_of_its_function() -> None:
    metrics = metrics_of([(claim("a", 2.0), row("slow")), (claim("b", 2.0), row("constants", of=["x"]))], Constants())
    first, second = metrics["a"].seconds, metrics["b"].seconds
    assert first is not None
    assert second is not None
    assert first >= 0.05 > second > 0


def test_a_claim_of_several_answers_is_asked_by_figure() -> None:
    first, second = AnswerRow(Evidence.DERIVED, figure="f"), AnswerRow(Evidence.SIMULATED, figure="g")
    run = AnswerRow(Evidence.MEASURED, experiment="e", labels=("x",), metric="m")
    both, one = claim("a", 1.0, answers=(run, first, second)), claim("b", 1.0, answers=(second,))
    assert answers_of_figure([both, one], "f") == [(both, first)]
    assert answers_of_figure([both, one], "g") == [(both, second), (one, second)]
    assert answers_of_figure([both, one], "h") == []


ROWS = [(found, row) for found in claims.load() for row in found.answers if row.function]


def test_every_row_names_a_function_that_takes_its_arguments() -> None:
    assert len(ROWS) > 400
    for each_claim, row in ROWS:
        function = function_of(row)
        arguments = {
            **row.arguments,
            **{name: list(each) if isinstance(each, tuple) else each for name, each in row.anchors.items()},
        }
        assert len(arguments) == len(row.arguments) + len(row.anchors), each_claim.id
        check_names(each_claim.id, row.function, function, arguments, later=True)
        check_values(each_claim.id, row.function, function, arguments)
        required = {
            name
            for name, each in inspect.signature(function).parameters.items()
            if each.kind is each.KEYWORD_ONLY and each.default is each.empty
        }
        assert required <= {*arguments}, each_claim.id


def test_figures_of_rows_are_drawn_or_computed() -> None:
    for figure in {row.figure for _, row in ROWS} - {"formulas"}:
        paper, _ = find_figure(figure)
        assert all(each.paper == paper for each, _ in answers_of_figure(claims.load(), figure))


def test_the_formulas_hold_no_run_and_no_model() -> None:
    """A formula reads published settings and printed numbers; it sees neither ranks nor a machine."""
    computed = {row.evidence for _, row in ROWS if row.figure == "formulas"}
    assert computed == {Evidence.DERIVED, Evidence.PRINTED}


def test_equal_cases_are_told_once() -> None:
    assert distinct_cases([[1, 2], (1, 2), [2, 1], [1.0, 2.0]]) == [(1, 2), (2, 1)]


def test_command_answers_a_claim_and_judges_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["answer", "samo.eq2.samo_byte*"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("samo.eq2.samo_bytes (samo, Equations 1-2")
    assert "reproduced: our code gives what 24 * f * phi + 2 * phi gives" in printed
    assert "measured, as published" in printed
    assert "derived, as published" in printed
    assert main(["answer", "samo.eq2.samo_byte"]) == 2
    assert "did you mean 'samo.eq2.samo_bytes'" in capsys.readouterr().err
    assert main(["answer"]) == 2
