"""Answers from printed numbers alone: differences, ratios, products and orders of a paper's cells.

Such an answer tests whether a paper is consistent with itself and tests no code. Its row holds the expressions
(`AnswerRow.printed`). They read numbers of other claims, never the value of their own claim."""

from __future__ import annotations

import re
from collections.abc import Mapping

from suite.claims.claim import AnswerRow, Claim
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.expression import evaluate, symbols

_SYMBOL = re.compile(r"[a-z]\w*(\.\w+)+( high| #\d+)?")


def quoted(text: str) -> str:
    """An expression of a row, as suite.core.expression reads it."""
    return f"'{text}'" if _SYMBOL.fullmatch(text) else text


def values(row: AnswerRow, claims: Mapping[str, Claim]) -> tuple[tuple[float, ...], ...]:
    """Values of each case of an answer from printed numbers.

    Raises:
        UnknownName: An expression names no claim.
        InvalidRequest: A claim has no such number, or an expression has no finite value.
    """
    return tuple(tuple(_value(quoted(text), claims) for text in case) for case in row.printed)


def _value(expression: str, claims: Mapping[str, Claim]) -> float:
    """Value of an expression, rounded to the twelve digits that printed decimals leave exact."""
    numbers = {symbol: _number(symbol, claims) for symbol in symbols(expression)}
    return float(f"{evaluate(expression, numbers):.12g}")


def _number(symbol: str, claims: Mapping[str, Claim]) -> float:
    name, _, part = symbol.partition(" ")
    if name not in claims:
        raise UnknownName("claim", name, claims)
    claim = claims[name]
    if part.startswith("#"):
        return float(claim.printed[int(part[1:]) - 1])
    value = claim.value[part == "high"] if isinstance(claim.value, tuple) else claim.value
    if isinstance(value, str):
        raise InvalidRequest(f"claim {name} is {value!r}", rule="a number")
    return value
