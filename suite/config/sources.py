"""Signatures of classes, read from their source without importing them.

The process that starts ranks loads no torch. Classes whose modules load it are checked by their source: their name,
and of a dataclass or a class with `__init__` the names of the arguments and the types int, float, bool and str.
Ranks check the rest when they build the object.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from suite.config.locate import PARTIAL, TARGET, check_source, locate
from suite.config.places import OF_RANKS, values_at
from suite.config.plugins import arguments_of, plugins_in
from suite.config.run import RunConfig
from suite.config.signature import check_names, check_values
from suite.core.errors import MissingDependency, Refused

_TYPES: Mapping[str, Any] = {"int": int, "float": float, "bool": bool, "str": str, "None": None}
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def check_sources(config: RunConfig) -> None:
    """Raises Refused for a class or module of the ranks that does not exist, or that does not take an argument."""
    data = config.plain()
    _file("model.network", config.model.network)
    for pattern, place in OF_RANKS.items():
        for key, value in values_at(data, pattern.split(".")):
            if isinstance(value, str):
                _file(key, *_parts(value))
            elif isinstance(value, Mapping) and TARGET in value and place.names:
                _file(f"{key}.{TARGET}", *_parts(str(value[TARGET])))
            elif isinstance(value, Mapping):
                for at, each in plugins_in(key, value):
                    _check_arguments(at, each)


def argument_names(path: str) -> list[str]:
    """The names of the arguments of a class; empty where its source does not say and it cannot be imported."""
    try:
        target = declared(path) or locate(path)
        return [*inspect.signature(target).parameters]
    except (Refused, MissingDependency, TypeError, ValueError):
        return []


@cache
def declared(path: str) -> Callable[..., Any] | None:
    """A function with the signature of a class; None where its source does not show it. Raises as `check_source`."""
    home, name = _parts(path)
    body = ast.parse(check_source(home, name).read_text(encoding="utf-8")).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    parameters = _parameters(classes[name], classes) if name in classes else None
    if parameters is None:
        return None

    def stand_in() -> None:
        """Never called."""

    each = {one.name: one for one in parameters}  # a dataclass may define a field of its base again
    stand_in.__signature__ = inspect.Signature([*each.values()])  # type: ignore[attr-defined]
    stand_in.__annotations__ = {one.name: one.annotation for one in each.values() if one.annotation is not Any}
    return stand_in


def _check_arguments(key: str, plugin: Mapping[str, Any]) -> None:
    path = str(plugin[TARGET])
    _file(f"{key}.{TARGET}", *_parts(path))
    if (target := declared(path)) is not None:
        arguments = arguments_of(plugin)
        check_names(key, path, target, arguments, later=bool(plugin.get(PARTIAL, False)))
        check_values(key, path, target, arguments)


def _file(key: str, home: str, name: str = "") -> Path:
    try:
        return check_source(home, name)
    except Refused as error:
        error.args = (f"{key}={'.'.join(filter(None, (home, name)))}: {error}",)
        raise


def _parts(path: str) -> tuple[str, str]:
    home, _, name = path.rpartition(".")
    if not home:
        locate(path)  # raises
    return home, name


def _parameters(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> list[inspect.Parameter] | None:
    """The arguments of a class; None where they may come from elsewhere."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            return None if method.args.vararg or method.args.kwarg else [*_of_method(method.args)]
    if not any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        return None
    fields = list[inspect.Parameter]()
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0]
        inherited = _parameters(classes[name], classes) if name in classes else None
        if inherited is None:
            return None
        fields += inherited
    return [*fields, *_of_dataclass(node)]


def _of_method(arguments: ast.arguments) -> Iterator[inspect.Parameter]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    for each, default in [*zip(positional, defaults, strict=True)][1:]:  # without self
        yield _parameter(each.arg, each.annotation, default)
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(each.arg, each.annotation, default)


def _of_dataclass(node: ast.ClassDef) -> Iterator[inspect.Parameter]:
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = ast.unparse(field)
            if "ClassVar" not in text and "init=False" not in text:
                yield _parameter(field.target.id, field.annotation, field.value)


def _parameter(name: str, annotation: ast.expr | None, default: ast.expr | None) -> inspect.Parameter:
    value = inspect.Parameter.empty if default is None else default.value if isinstance(default, ast.Constant) else ...
    return inspect.Parameter(name, _KEYWORD, default=value, annotation=_type(annotation))


def _type(annotation: ast.expr | None) -> Any:
    """The type of an annotation of plain values; Any for others, of which nothing is checked."""
    if isinstance(annotation, ast.BinOp):
        options = [_type(annotation.left), _type(annotation.right)]
        return Any if Any in options else options[0] | options[1]
    return _TYPES.get(ast.unparse(annotation), Any) if annotation else Any
