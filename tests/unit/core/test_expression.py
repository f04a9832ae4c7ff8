"""Formulas in data files: arithmetic only."""

from __future__ import annotations

import math

import pytest

from suite.core.errors import InvalidRequest
from suite.core.expression import LONGEST, evaluate, symbols
from tests.support.refusals import refused


def test_arithmetic() -> None:
    for expression, values, expected in (
        ("20 * phi", {"phi": 500.0}, 10000.0),
        ("4*phi + 16*bsize", {"phi": 3, "bsize": 2}, 44.0),
        ("-2 ** 2", {}, -4.0),
        ("2 ** 3 ** 2", {}, 512.0),
        ("a - (b - c)", {"a": 9, "b": 4, "c": 2}, 7.0),
        ("min(a, b, 2) + max(a, b)", {"a": 5, "b": 3}, 7.0),
        ("sqrt(n) + abs(-3)", {"n": 48 * 48}, 51.0),
        ("log(x)", {"x": math.e}, 1.0),
        ("mean('a.1', 'a.2 high') / 'a.1'", {"a.1": 2, "a.2 high": 4}, 1.5),
        ("1" + "+1" * ((LONGEST - 1) // 2), {}, 1 + (LONGEST - 1) // 2),
    ):
        assert evaluate(expression, values) == pytest.approx(expected, rel=1e-15)
    assert symbols("24*f*phi + 2*phi - min(p, 1)") == {"f", "phi", "p"}
    assert symbols("1 + 2") == frozenset()


def test_everything_else_is_refused() -> None:
    rows = {
        "numbers, symbols, + - * / **": [
            *("", "20 *", "phi = 2", "a; b", "__import__(b).system(c)", "open(x)", "a.real", "a[0]"),
            *("[1, 2]", "(1, 2)", "{1: 2}", "lambda: 1", "a if b else c", "a and b", "not a", "a < b", "a // b"),
            *("a % b", "~a", "a | b", "True", "None", "1j", "f'{a}'", "(a := 2)", "[a for a in b]", "sqrt"),
            *("sqrt * 2", "log(x=2)", "log(2, x=3)", "pow(2, 3)", "min(*a)", "(" * 250 + "1" + ")" * 250, "a\x00b"),
        ],
        "a finite number": ["sqrt()", "sqrt(1, 2)", "min(1)"],
        "at most 1000": ["1" + "+1" * LONGEST],
    }
    named = dict.fromkeys(("a", "b", "c", "x", "__import__", "open", "pow"), 1.0)
    for rule, expressions in rows.items():
        for expression in expressions:
            with refused(InvalidRequest, rule=rule):
                evaluate(expression, named)


def test_what_is_no_finite_number_is_refused() -> None:
    for expression, a in (
        *(("1 / a", 0), ("log(a)", 0), ("sqrt(a)", -1), ("a ** 0.5", -2), ("sqrt(a ** 0.5)", -2), ("10 ** a", 400)),
        *(("9 ** 9 ** 9 ** 9", 1), ("a * 10", 1e308), ("a", math.nan)),
    ):
        with refused(InvalidRequest, rule="finite number"):
            evaluate(expression, {"a": a})
    with refused(InvalidRequest, rule="a value for bsize, phi"):
        evaluate("4*phi + 16*bsize", {"n": 1.0})
