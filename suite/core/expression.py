"""Evaluate published formulas: arithmetic over named symbols.

Formulas come from data files, so only arithmetic is evaluated: Python's parser reads a formula, and every node of its
syntax tree must be one of a few kinds.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping

from suite.core.errors import InvalidRequest

LONGEST = 1000  # characters; a longer formula could exceed the recursion limit
_RULE = "numbers, symbols, + - * / **, parentheses and min max sqrt log abs"
_FUNCTIONS = {"min": min, "max": max, "sqrt": math.sqrt, "log": math.log, "abs": abs}
_LEAST = {"min": 2, "max": 2}  # arguments; the others take one
_NODES = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Load, ast.Constant),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub),
)


def symbols(expression: str) -> frozenset[str]:
    """Names of the symbols in `expression`. Raises InvalidRequest if it is not plain arithmetic."""
    names = {node.id for node in ast.walk(_parse(expression)) if isinstance(node, ast.Name)}
    return frozenset(names - _FUNCTIONS.keys())


def evaluate(expression: str, values: Mapping[str, float]) -> float:
    """Value of `expression` for these values of its symbols. Raises InvalidRequest if it is not a finite number."""
    missing = sorted(symbols(expression) - set(values))
    if missing:
        raise InvalidRequest(
            f"{expression!r} at {dict(values)} has no value for {', '.join(missing)}", rule="all symbols"
        )
    names = {**{name: float(value) for name, value in values.items()}, **_FUNCTIONS, "__builtins__": {}}
    try:
        outcome = eval(compile(_parse(expression), "formula", "eval"), names)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise InvalidRequest(
            f"{expression!r} at {dict(values)}: {error}", rule="a finite number at every point"
        ) from error
    if isinstance(outcome, complex) or not math.isfinite(outcome):
        raise InvalidRequest(f"{expression!r} at {dict(values)} is {outcome}", rule="a finite number at every point")
    return float(outcome)


def _parse(expression: str) -> ast.Expression:
    """The tree of a formula, with its numbers as floats: powers of large integers could fill the memory."""
    if len(expression) > LONGEST:
        raise InvalidRequest(f"a formula of {len(expression)} characters", rule=f"at most {LONGEST}")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidRequest(f"{expression!r} does not parse: {error}", rule=_RULE, legal="20*phi") from error
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        is_number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
        is_function = isinstance(node, ast.Name) and node.id in _FUNCTIONS
        legal = isinstance(node, _NODES) and (is_number or not isinstance(node, ast.Constant))
        if not legal or is_function != (id(node) in called) or (isinstance(node, ast.Call) and node.keywords):
            raise InvalidRequest(f"{ast.unparse(node)!r} in the formula {expression!r}", rule=_RULE, legal="20*phi")
        if is_number:
            node.value = float(node.value)  # type: ignore[attr-defined]
    for name, call in ((ast.unparse(node.func), node) for node in called.values()):
        least, most = _LEAST.get(name, 1), math.inf if name in _LEAST else 1
        if not least <= len(call.args) <= most:
            raise InvalidRequest(f"{name} with {len(call.args)} arguments in {expression!r}", rule=f"{least} to {most}")
    return tree
