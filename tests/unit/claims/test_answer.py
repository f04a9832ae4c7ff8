"""An answer cannot read the published value of its claim.

An answer that copies the paper would reproduce everything, and say nothing.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from suite.claims import load, printed, trace
from suite.claims.answer import (
    Answer,
    Cases,
    Papers,
    Question,
    answer,
    answers_of_figure,
    function_of,
    metrics_of,
    range_of_setting,
)
from suite.claims.claim import AnswerRow, Claim, Evidence
from suite.claims.claim_text import terms
from suite.claims.figure_executor import find_figure
from suite.cli.claims import main
from suite.config.plugins import check_arguments
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.record import Metric
from suite.simulate.cost.efficiency import Efficiency
from suite.workload import Transformer
from tests.support.refusals import refused

SHAPE = Transformer(1, 4, 2, sequence=3, vocabulary=5)


def claim(name: str, value: float | tuple[float, float] | str, **more: object) -> Claim:
    return Claim(name, "axonn", "Table I", "gpus", "axonn", value, "gpu", "number", "analytic", **more)


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


def test_papers_hold_what_others_publish() -> None:
    assert (PAPERS.ends("b"), PAPERS.setting("a")) == ((1.0, 4.0), {"gpus": 3})
    assert PAPERS.machine("summit")["gpus_per_node"] == 6
    assert PAPERS.training("samo", "all")["x"] == 1
    assert PAPERS.shape("gpt") is SHAPE
    others = PAPERS.without("a")
    assert others.ends("b") == (1.0, 4.0)
    for read in (others.ends, others.setting):
        with refused(UnknownName, "other claim", "a"):
            read("a")
    for name in ("a", "c"):
        with refused(InvalidRequest, rule="a range"):
            PAPERS.ends(name)
    with refused(InvalidRequest, subject="no row of machines has {'id': 'frontier", rule="a published setting"):
        PAPERS.machine("frontier")
    with refused(InvalidRequest, subject="no row of training", rule="a published setting"):
        PAPERS.training("axonn", "all")
    with refused(UnknownName, "model", "gtp", legal="gpt"):
        PAPERS.shape("gtp")


def copies(question: Question, papers: Papers, *, of: str, and_more: float) -> tuple[Cases, str]:
    return [[papers.ends(of)[1]], [and_more]], f"{len(question.terms)} terms"


def row(function: str, evidence: Evidence = Evidence.DERIVED, **arguments: Any) -> AnswerRow:
    return AnswerRow(evidence, figure="formulas", function=f"{__name__}.{function}", arguments=arguments)


def test_answer_never_reads_its_own_claim() -> None:
    ratio = row("copies", of="b", and_more=0.25)
    with refused(UnknownName, "other claim", "b"):
        answer(claim("b", (1.0, 4.0)), ratio, PAPERS)
    answered = answer(claim("a", 7.0, terms=("x",)), ratio, PAPERS)
    assert answered == Answer("gpu", (4.0, 0.25), "1 terms", Evidence.DERIVED, reads=("claim.b",))
    with refused(UnknownName, "answer in tests.unit.claims.test_answer", "copied", legal="copies"):
        answer(claim("b", 7.0), row("copied"), PAPERS)


class Constants:
    """A source with two constants, of which one was fitted to two claims."""

    def constant(self, name: str) -> float:
        trace.read(name)
        return 2.0

    def fitted_to(self, name: str) -> tuple[str, ...]:
        return {"efficiency.fitted": ("c", "b", "c")}.get(name, ())


def area(width: int, height: float, factor: float = 1.0) -> float:
    """Width times height.

    And more.
    """
    assert isinstance(width, int)
    return width * height * factor


def test_a_function_of_numbers_is_called_at_each_point() -> None:
    at = {"width": "w", "height": "h"}
    points = ({"w": 2.0, "h": 0.5}, {"w": 3.0, "h": 1.5})
    scaled = replace(row("area", factor=2.0), at=at)
    assert answer(claim("x", 1.0, points=points), scaled, None) == Answer(
        "gpu", (2.0, 9.0), "Width times height", Evidence.DERIVED
    )
    assert answer(claim("x", 1.0, setting={"w": 4, "h": 2}), replace(row("area"), at=at), None).values == (8.0,)


def constants(question: Question, source: Constants, *, of: Sequence[str]) -> Cases:
    return [[source.constant(name)] for name in of]


def test_metrics_hold_evidence_reads_and_the_claims_of_constants() -> None:
    pairs = [
        (claim("a", 2.0), row("constants", Evidence.SIMULATED, of=["x", "efficiency.fitted", "x"])),
        (claim("b", 2.0), row("constants", Evidence.DERIVED, of=["x"])),
    ]
    metrics = metrics_of(pairs, Constants())
    assert all(metric.seconds is not None and metric.seconds > 0 for metric in metrics.values())
    assert {name: replace(metric, seconds=None) for name, metric in metrics.items()} == {
        "a": Metric("gpu", "", (2.0, 2.0, 2.0), "", "simulated", ("efficiency.fitted", "x"), ("c", "b")),
        "b": Metric("gpu", "", (2.0,), "", "derived", ("x",)),
    }


def test_a_claim_with_several_answers_has_one_per_figure() -> None:
    first, second = AnswerRow(Evidence.DERIVED, figure="f"), AnswerRow(Evidence.SIMULATED, figure="g")
    run = AnswerRow(Evidence.MEASURED, experiment="e", labels=("x",), metric="m")
    both, one = claim("a", 1.0, answers=(run, first, second)), claim("b", 1.0, answers=(second,))
    assert answers_of_figure([both, one], "f") == [(both, first)]
    assert answers_of_figure([both, one], "g") == [(both, second), (one, second)]
    assert answers_of_figure([both, one], "h") == []


def test_every_row_names_a_function_that_takes_its_arguments() -> None:
    rows = [(found, row) for found in load.claims() for row in found.answers if row.function]
    assert len(rows) > 400
    for each_claim, row in rows:
        function = function_of(row)
        anchors = {name: list(each) if isinstance(each, tuple) else each for name, each in row.anchors.items()}
        arguments = {**row.arguments, **anchors}
        assert len(arguments) == len(row.arguments) + len(row.anchors), each_claim.id
        if row.at:
            inspect.signature(function).bind(**arguments, **Question.of(each_claim).places(row.at)[0])
            continue
        check_arguments(each_claim.id, function, arguments, later=True)
        parameters = inspect.signature(function).parameters.values()
        required = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty}
        assert required <= {*arguments}, each_claim.id
        if row.figure == "formulas":  # a formula reads neither ranks nor a machine
            assert row.evidence is Evidence.DERIVED, each_claim.id
        else:
            assert find_figure(row.figure)[0] == each_claim.paper, each_claim.id


def test_command_answers_a_claim_and_judges_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["answer", "samo.eq2.samo_byte*"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("samo.eq2.samo_bytes (samo, Equations 1-2")
    for text in ("reproduced: ", "measured, as published"):
        assert text in printed
    assert main(["answer", "samo.eq2.samo_byte"]) == 2
    assert "'samo.eq2.samo_bytes'" in capsys.readouterr().err
    assert main(["answer"]) == 2


# -- printed numbers against each other

CELLS = {
    name: claim(name, value, printed=("21.29", "21.20"))
    for name, value in {
        "x.a": 65.99,
        "x.b": 60.98,
        "x.c": 2.5,
        "x.bound": (12.91, math.inf),
        "x.word": "similar",
    }.items()
}


def test_expressions_read_printed_numbers() -> None:
    for text, expected in (
        ("x.a", 65.99),
        ("'x.a' - 'x.b'", 5.01),  # in decimals: floats give 5.009999999999998
        ("mean('x.a' - 'x.b', 'x.c')", 3.755),
        ("'x.bound' / 'x.c'", 5.164),
        ("x.c #2", 21.2),
    ):
        row = AnswerRow(Evidence.PRINTED, printed=(("x.c", text),))
        assert printed.values(row, CELLS) == ((2.5, expected),), text
    for text, kind, rule in (
        ("x.word", InvalidRequest, "a number"),
        ("x.d", UnknownName, ""),
        ("x.bound high", InvalidRequest, "a finite number at every point"),
        ("'x.a' if 1 else 2", InvalidRequest, "numbers, symbols"),
    ):
        with pytest.raises(kind) as refusal:
            printed.values(AnswerRow(Evidence.PRINTED, printed=((text,),)), CELLS)
        assert rule in refusal.value.rule, text


def test_every_printed_answer_has_its_values() -> None:
    known = {each.id: each for each in load.claims()}
    rows = [(found, row) for found in known.values() for row in found.answers if row.printed]
    assert len(rows) > 100
    for each_claim, row in rows:
        assert len({len(case) for case in printed.values(row, known)} | {len(terms(each_claim))}) == 1, each_claim.id


# -- reads of an answer: constants, plans and graphs are noted, and cached values repeat their

EFFICIENCY = Efficiency(
    "mine", 0.5, adapters=2, fitted={"products": ("a.x",)}, chosen={"products": ("a.y",), "lane": ("a.z",)}
)


def test_constant_is_noted_when_it_is_read() -> None:
    efficiency = trace.trace_efficiency(EFFICIENCY)
    with trace.record_reads() as reads:
        assert efficiency.products == 0.5
        assert efficiency.adapters == 2
        assert efficiency.name == "mine"
    assert reads == {"efficiency.mine.products", "efficiency.mine.adapters"}
    assert efficiency.network == EFFICIENCY.network
    assert reads == {"efficiency.mine.products", "efficiency.mine.adapters"}
    changed = replace(efficiency, network=0.25)
    with trace.record_reads() as reads:
        assert changed.network == 0.25
    assert reads == {"efficiency.mine.network"}


def test_remembered_value_is_read_with_all_that_it_read() -> None:
    memory: trace.TracedCache[str, float] = trace.TracedCache()
    efficiency, calls = trace.trace_efficiency(EFFICIENCY), []

    def compute() -> float:
        calls.append(1)
        trace.read("plan.axonn")
        return efficiency.products

    with trace.record_reads() as first:
        assert memory.get("a", compute) == 0.5
    with trace.record_reads() as second:
        assert memory.get("a", compute) == 0.5
    assert first == second == {"efficiency.mine.products", "plan.axonn"}
    assert len(calls) == 1


def test_inner_reads_count_for_the_outer_answer() -> None:
    with trace.record_reads() as outer:
        trace.read("a")
        with trace.record_reads() as inner:
            trace.read("b")
        assert inner == {"b"}
    assert outer == {"a", "b"}
    trace.read("c")
    assert outer == {"a", "b"}


def test_failed_answer_leaves_no_recording_behind() -> None:
    with pytest.raises(ValueError, match="broken"), trace.record_reads():
        raise ValueError("broken")
    with trace.record_reads() as reads:
        trace.read("a")
    assert reads == {"a"}


def test_claims_of_a_constant_are_those_fitted_and_chosen() -> None:
    assert trace.fitted_to(EFFICIENCY, "products") == ("a.x", "a.y")
    assert trace.fitted_to(EFFICIENCY, "lane") == ("a.z",)
    assert trace.fitted_to(EFFICIENCY, "network") == ()
