"""Evaluate published formulas: arithmetic over named symbols. A symbol that is no Python name stands in quotes.

Formulas come from data files, so only arithmetic is evaluated: Python's parser reads a formula, and every node of its
syntax tree must be one of a few kinds.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from suite.core.errors import InvalidRequest

LONGEST = 1000  # characters; a longer formula could exceed the recursion limit
_RULE = "numbers, symbols, + - * / **, parentheses and min max mean sqrt log abs"
_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    **{each.__name__: each for each in (min, max, math.sqrt, math.log, abs)},
    "mean": lambda *values: math.fsum(values) / len(values),
}
_OPERATORS: Mapping[type, Callable[..., float]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.Pow: operator.pow, ast.UAdd: operator.pos, ast.USub: operator.neg},
}


def symbols(expression: str) -> frozenset[str]:
    """Names of the symbols in `expression`. Raises InvalidRequest if it does not parse."""
    nodes = list(ast.walk(_parse(expression)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)} - _FUNCTIONS.keys()
    return frozenset(
        names | {node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is str}
    )


def evaluate(expression: str, values: Mapping[str, float]) -> float:
    """Value of `expression` for these values of its symbols. Raises InvalidRequest if it is not a finite number, or not
    plain arithmetic.
    """
    tree, rule = _parse(expression), "a finite number at every point"
    if missing := sorted(symbols(expression) - set(values)):
        raise InvalidRequest(f"{expression!r} at {dict(values)}", rule=f"a value for {', '.join(missing)}")
    try:
        outcome: Any = _value(tree.body, values)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise InvalidRequest(f"{expression!r} at {dict(values)}: {error}", rule=rule) from error
    if isinstance(outcome, complex) or not math.isfinite(outcome):
        raise InvalidRequest(f"{expression!r} at {dict(values)} is {outcome}", rule=rule)
    return float(outcome)


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    """Value of a part of a formula. Its numbers are floats: powers of large integers could fill the memory."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Constant(value=str() as name) | ast.Name(id=name) if name not in _FUNCTIONS:
            return float(values[name])
        case ast.UnaryOp(op=sign, operand=part) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(part, values))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(each, values) for each in arguments))
    raise InvalidRequest(f"{ast.unparse(node)!r} in a formula", rule=_RULE, legal="20*phi")


def _parse(expression: str) -> ast.Expression:
    if len(expression) > LONGEST:
        raise InvalidRequest(f"a formula of {len(expression)} characters", rule=f"at most {LONGEST}")
    try:
        return ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidRequest(f"{expression!r} does not parse: {error}", rule=_RULE, legal="20*phi") from error
