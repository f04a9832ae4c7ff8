"""Evaluate published formulas: arithmetic over named symbols.

Formulas come from data files, so they are not executed as Python code. The module parses a formula with Python's
parser, refuses every node of the syntax tree that is not arithmetic, and evaluates the tree itself.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from suite.core.errors import InvalidRequest

LONGEST = 1000  # characters; a longer formula could exceed the recursion limit
_RULE = "numbers, symbols, + - * / **, parentheses and min max sqrt log abs"
_OPERATORS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_SIGNS: dict[type[ast.AST], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
# least and most arguments; log is the natural one
_FUNCTIONS: dict[str, tuple[Callable[..., float], int, float]] = {
    "min": (min, 2, math.inf),
    "max": (max, 2, math.inf),
    "sqrt": (math.sqrt, 1, 1),
    "log": (math.log, 1, 1),
    "abs": (abs, 1, 1),
}


def symbols(expression: str) -> frozenset[str]:
    """Names of the symbols in `expression`. Raises InvalidRequest if it is not plain arithmetic."""
    names: set[str] = set()
    _walk(_parse(expression), expression, names)
    return frozenset(names)


def evaluate(expression: str, values: Mapping[str, float]) -> float:
    """Value of `expression` for these values of its symbols. Raises InvalidRequest if it is not a finite number."""
    missing = sorted(symbols(expression) - set(values))
    if missing:
        raise InvalidRequest(
            f"{expression!r} at {dict(values)} has no value for {', '.join(missing)}", rule="all symbols"
        )
    try:
        outcome = _value(_parse(expression), values)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise InvalidRequest(
            f"{expression!r} at {dict(values)}: {error}", rule="a finite number at every point"
        ) from error
    if isinstance(outcome, complex) or not math.isfinite(outcome):
        raise InvalidRequest(f"{expression!r} at {dict(values)} is {outcome}", rule="a finite number at every point")
    return outcome


def _parse(expression: str) -> ast.expr:
    if len(expression) > LONGEST:
        raise InvalidRequest(f"a formula of {len(expression)} characters", rule=f"at most {LONGEST}")
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidRequest(f"{expression!r} does not parse: {error}", rule=_RULE, legal="20*phi") from error


def _walk(node: ast.expr, expression: str, found: set[str]) -> None:
    """Collect the symbols below `node`. Raises InvalidRequest for a node that is not arithmetic."""
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return
        case ast.Name(id=name) if name not in _FUNCTIONS:
            found.add(name)
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _SIGNS:
            _walk(operand, expression, found)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            _walk(left, expression, found)
            _walk(right, expression, found)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            _, least, most = _FUNCTIONS[name]
            if not least <= len(arguments) <= most:
                raise InvalidRequest(
                    f"{name} with {len(arguments)} arguments in {expression!r}", rule=f"{least} to {most}"
                )
            for argument in arguments:
                _walk(argument, expression, found)
        case _:
            raise InvalidRequest(f"{ast.unparse(node)!r} in the formula {expression!r}", rule=_RULE, legal="20*phi")


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    """The value of a tree that `_walk` has accepted, in floats: powers of large integers could fill the memory."""
    match node:
        case ast.Constant(value=value):
            return float(value)  # type: ignore[arg-type]
        case ast.Name(id=name):
            return float(values[name])
        case ast.UnaryOp(op=sign, operand=operand):
            return _SIGNS[type(sign)](_value(operand, values))
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name][0](*(_value(argument, values) for argument in arguments))
    raise AssertionError(f"{ast.dump(node)} passed the check")
