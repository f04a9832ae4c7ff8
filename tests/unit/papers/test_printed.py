"""Printed numbers against each other, exact to the last printed digit."""

from __future__ import annotations

from fractions import Fraction

from suite.core.claim import Claim
from suite.core.errors import InvalidRequest
from suite.papers.common import printed
from suite.papers.common.answer import Papers, Question
from tests.support.refusals import refused

NONE = Question({})


def claim(name: str, value: float) -> Claim:
    return Claim(name, "pipeoptim", "Table IV", "accuracy", "x", value, "percent", "number", "data")


PAPERS = Papers(
    {name: claim(name, value) for name, value in {"a": 65.99, "b": 60.98, "c": 2.5, "d": 0.1}.items()}, {}, {}
)


def test_differences_are_exact_in_decimals() -> None:
    computed, _ = printed.difference(NONE, PAPERS, of=["a", "c"], less=["b", "d"])
    assert computed == [[Fraction("5.01")], [Fraction("2.4")]]
    for statistic, value in (("maximum", "5.01"), ("minimum", "2.4"), ("average", "3.705")):
        computed, note = printed.difference(NONE, PAPERS, of=["a", "c"], less=["b", "d"], statistic=statistic)
        assert computed == [[Fraction(value)]]
        assert note == f"{statistic} of 2 differences of printed values"


def test_ratios_products_and_sums() -> None:
    assert printed.ratio(NONE, PAPERS, of=["c"], over=["d"])[0] == [[25]]
    assert printed.product(NONE, PAPERS, of=["c", "d"], times=0.5)[0] == [[Fraction("0.125")]]
    assert printed.total(NONE, PAPERS, of=["a", "b"])[0] == [[Fraction("126.97")]]


def test_values_keep_the_order_of_the_terms() -> None:
    assert printed.values(NONE, PAPERS, of=["b", "a"])[0] == [[60.98, 65.99]]
    assert printed.cases(NONE, PAPERS, of=[["b", "a"], ["d", "c"]])[0] == [[60.98, 65.99], [0.1, 2.5]]


def test_unequal_lists_and_unknown_statistics_are_refused() -> None:
    with refused(InvalidRequest, subject="2 claims with 1 partners", rule="one partner for each claim"):
        printed.difference(NONE, PAPERS, of=["a", "b"], less=["c"])
    with refused(InvalidRequest, "statistic", "median"):
        printed.ratio(NONE, PAPERS, of=["a"], over=["b"], statistic="median")
