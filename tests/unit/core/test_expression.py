"""Formulas in data files: arithmetic only."""

from __future__ import annotations

import math

import pytest

from suite.core.errors import InvalidRequest
from suite.core.expression import LONGEST, evaluate, symbols
from tests.support.refusals import refused


@pytest.mark.parametrize(
    ("expression", "values", "expected"),
    [
        ("20 * phi", {"phi": 500.0}, 10000.0),
        ("4*phi + 16*bsize", {"phi": 3, "bsize": 2}, 44.0),
        ("-2 ** 2", {}, -4.0),
        ("2 ** 3 ** 2", {}, 512.0),
        ("(a - b) - c", {"a": 9, "b": 4, "c": 2}, 3.0),
        ("a - (b - c)", {"a": 9, "b": 4, "c": 2}, 7.0),
        ("a / b / c", {"a": 12, "b": 3, "c": 2}, 2.0),
        ("+a * 1.5e3", {"a": 2}, 3000.0),
        ("min(a, b, 2) + max(a, b)", {"a": 5, "b": 3}, 7.0),
        ("sqrt(n) + abs(-3)", {"n": 48 * 48}, 51.0),
        ("log(x)", {"x": math.e}, 1.0),
        (" a ", {"a": 1, "unused": 2}, 1.0),
    ],
)
def test_arithmetic(expression: str, values: dict[str, float], expected: float) -> None:
    assert evaluate(expression, values) == pytest.approx(expected, rel=1e-15)


def test_the_symbols_are_the_names_that_need_a_value() -> None:
    assert symbols("24*f*phi + 2*phi - min(p, 1)") == {"f", "phi", "p"}
    assert symbols("1 + 2") == frozenset()


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "20 *",
        "phi = 2",
        "a; b",
        "__import__('os').system('true')",
        "open('x')",
        "a.real",
        "a[0]",
        "[1, 2]",
        "(1, 2)",
        "{1: 2}",
        "lambda: 1",
        "a if b else c",
        "a and b",
        "not a",
        "a < b",
        "a // b",
        "a % b",
        "~a",
        "a | b",
        "'text'",
        "True",
        "None",
        "1j",
        "f'{a}'",
        "(a := 2)",
        "[a for a in b]",
        "sqrt",
        "sqrt * 2",
        "sqrt()",
        "sqrt(1, 2)",
        "min(1)",
        "log(x=2)",
        "log(2, x=3)",
        "min(*a)",
        "pow(2, 3)",
        "1" + "+1" * LONGEST,
        "(" * 250 + "1" + ")" * 250,
        "a\x00b",
    ],
)
def test_everything_else_is_refused(expression: str) -> None:
    counts = {"sqrt()": "1 to 1", "sqrt(1, 2)": "1 to 1", "min(1)": "2 to inf", "min(*a)": "2 to inf"}
    rule = "at most 1000" if len(expression) > LONGEST else counts.get(expression, "numbers, symbols, + - * / **")
    with refused(InvalidRequest, rule=rule):
        symbols(expression)
    with refused(InvalidRequest, rule=rule):
        evaluate(expression, {"a": 1, "b": 2, "c": 3})


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        ("1 / a", {"a": 0}),
        ("log(a)", {"a": 0}),
        ("sqrt(a)", {"a": -1}),
        ("a ** 0.5", {"a": -2}),
        ("sqrt(a ** 0.5)", {"a": -2}),
        ("10 ** a", {"a": 400}),
        ("9 ** 9 ** 9 ** 9", {}),
        ("a * 10", {"a": 1e308}),
        ("a", {"a": math.nan}),
    ],
)
def test_what_is_no_finite_number_is_refused_with_the_point(expression: str, values: dict[str, float]) -> None:
    with refused(InvalidRequest, rule="finite number"):
        evaluate(expression, values)


def test_a_symbol_without_a_value_is_named() -> None:
    with refused(InvalidRequest, subject="has no value for bsize, phi", rule="all symbols"):
        evaluate("4*phi + 16*bsize", {"n": 1.0})
