"""Signatures of classes, read from their source without importing them.

The process that starts ranks imports no torch. Classes whose modules import it are checked by their source: the name of
the class, the names of its arguments, and the types int, float, bool and str. Ranks check the other types when they
build the object.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from suite.config.locate import PARTIAL, TARGET, check_source, locate, parse_module
from suite.config.places import OF_RANKS, values_at
from suite.config.plugins import arguments_of, plugins_in
from suite.config.results import lacking_refusal
from suite.config.run import RunConfig
from suite.config.signature import check_names, check_values
from suite.core import bounds
from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.members import missing_members

_TYPES: Mapping[str, Any] = {"int": int, "float": float, "bool": bool, "str": str, "None": None}
_BOUNDED = {name: vars(bounds)[name] for name in ("NonNegative", "Positive", "UnitInterval")}
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def check_sources(config: RunConfig) -> None:
    """Check the classes and modules that only ranks import.

    Raises InvalidRequest if one does not exist, or does not accept its configured arguments.
    """
    data = config.plain()
    _file("model.network", config.model.network)
    for pattern, place in OF_RANKS.items():
        for key, value in values_at(data, pattern.split(".")):
            if isinstance(value, str):
                _file(key, *_parts(value))
            elif isinstance(value, Mapping) and TARGET in value and place.names:
                _check_members(f"{key}.{TARGET}", str(value[TARGET]), place.required_type)
                if key == "system" and (settings := _settings_of(str(value[TARGET]))):
                    _check_call(key, settings, config.system.more)
            elif isinstance(value, Mapping):
                _check_clash(key, value, place.group_keys)
                arguments = {name: each for name, each in value.items() if name not in place.group_keys}
                for at, each in plugins_in(key, arguments):
                    _check_arguments(at, each)


def _check_members(key: str, path: str, protocol: type) -> None:
    """Raises InvalidRequest for a class whose source lacks a method of a protocol."""
    home, name = _parts(path)
    members = _members(name, _source(_file(key, home, name)))
    if members is None:
        return
    shape = type(name, (), dict.fromkeys(members))  # missing_members compares names only
    if missing := missing_members(shape, protocol):
        raise lacking_refusal(f"{key}={path}", missing, protocol)


def _home(name: str, source: _Source) -> _Source | None:
    """The source that defines a class, which may be imported from another module; None if unknown."""
    if name in source.classes:
        return source
    if name not in source.imported:
        return None
    try:
        home = _source(check_source(source.imported[name], name))
    except InvalidRequest:
        return None
    return home if name in home.classes else None


def _members(name: str, source: _Source) -> set[str] | None:
    """Names that a class and its bases define; None if a base is unknown."""
    if name in ("Protocol", "Generic", "object"):
        return set()
    home = _home(name, source)
    if home is None:
        return None
    source, node = home, home.classes[name]
    members = {
        line.name for line in node.body if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    for line in node.body:
        targets = (
            line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
        )
        members |= {target.id for target in targets if isinstance(target, ast.Name)}
    for base in node.bases:
        inherited = _members(ast.unparse(base).partition("[")[0].rpartition(".")[2], source)
        if inherited is None:
            return None
        members |= inherited
    return members


def _check_clash(key: str, group: Mapping[str, Any], group_keys: Sequence[str]) -> None:
    """Raises InvalidRequest for a class with an argument of the same name as a key of its group."""
    path = str(group.get(TARGET, ""))
    if clash := next((name for name in group_keys if path and name in argument_names(path)), None):
        rule = f"{key}.{clash} is a key of every {key}, so no argument of its class may have this name"
        raise InvalidRequest(
            f"{key}.{TARGET}={path} with an argument {clash}", rule=rule, legal=f"an argument {clash}_of_mine"
        )


def argument_names(path: str) -> list[str]:
    """Argument names of a class; empty if neither its source nor an import gives them."""
    try:
        target = declared(path) or locate(path)
        return [*inspect.signature(target).parameters]
    except (InvalidRequest, MissingDependency, TypeError, ValueError):
        return []


@cache
def declared(path: str) -> Callable[..., Any] | None:
    """A function with the signature of a class; None if its source does not show it. Raises as `check_source` does."""
    home, name = _parts(path)
    source = _source(check_source(home, name))
    parameters = _parameters(source.classes[name], source) if name in source.classes else None
    if parameters is None:
        return None

    def stand_in() -> None:
        """Carry the signature; this function is never called."""

    by_name = {
        parameter.name: parameter for parameter in parameters
    }  # a dataclass may define a field of its base again
    stand_in.__signature__ = inspect.Signature([*by_name.values()])  # type: ignore[attr-defined]
    stand_in.__annotations__ = {
        name: parameter.annotation for name, parameter in by_name.items() if parameter.annotation is not Any
    }
    return stand_in


def _check_arguments(key: str, plugin: Mapping[str, Any]) -> None:
    path = str(plugin[TARGET])
    _file(f"{key}.{TARGET}", *_parts(path))
    _check_call(key, path, arguments_of(plugin), later=bool(plugin.get(PARTIAL, False)))


def _check_call(key: str, path: str, arguments: Mapping[str, Any], *, later: bool = False) -> None:
    """Raises InvalidRequest for an argument that the source of a class does not have."""
    if (target := declared(path)) is not None:
        check_names(key, path, target, arguments, later=later)
        check_values(key, path, target, arguments)


def _settings_of(path: str) -> str:
    """Class of the keys that a system adds to its group, `settings = NAME` in its body; empty without one."""
    home, name = _parts(path)
    node = _source(check_source(home, name)).classes.get(name)
    for line in node.body if node else ():
        if (
            isinstance(line, ast.Assign)
            and isinstance(line.value, ast.Name)
            and "settings" in map(ast.unparse, line.targets)
        ):
            return f"{home}.{line.value.id}"
    return ""


def _file(key: str, home: str, name: str = "") -> Path:
    try:
        return check_source(home, name)
    except InvalidRequest as error:
        error.args = (f"{key}={'.'.join(filter(None, (home, name)))}: {error}",)
        raise


def _parts(path: str) -> tuple[str, str]:
    home, _, name = path.rpartition(".")
    if not home:
        locate(path)  # raises
    return home, name


@dataclass(frozen=True, slots=True)
class _Source:
    """The classes of a module, and the modules that it imports other names from."""

    classes: Mapping[str, ast.ClassDef]
    imported: Mapping[str, str]


@cache
def _source(file: Path) -> _Source:
    body = parse_module(file)
    imported = {
        alias.asname or alias.name: node.module
        for node in body
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }
    return _Source({node.name: node for node in body if isinstance(node, ast.ClassDef)}, imported)


def _parameters(node: ast.ClassDef, source: _Source) -> list[inspect.Parameter] | None:
    """Arguments of a class; None if the source does not list them all."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            return None if method.args.vararg or method.args.kwarg else [*_of_method(method.args)]
    if not _is_dataclass(node):
        return None
    fields = list[inspect.Parameter]()
    for base in node.bases:
        inherited = _inherited(ast.unparse(base).partition("[")[0], source)
        if inherited is None:
            return None
        fields += inherited
    return [*fields, *_of_dataclass(node)]


def _inherited(name: str, source: _Source) -> list[inspect.Parameter] | None:
    """Fields that a dataclass inherits from a base; None if the base is from another library.

    A base that is not a dataclass only contributes the fields of its own bases.
    """
    if name in ("Protocol", "Generic", "object"):
        return []
    home = _home(name, source)
    if home is None:
        return None
    source, node = home, home.classes[name]
    if _is_dataclass(node):
        return _parameters(node, source)
    base_members = [_inherited(ast.unparse(base).partition("[")[0], source) for base in node.bases]
    return None if any(each is None or each for each in base_members) else []


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(each) for each in node.decorator_list)


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
    """Type of an annotation of plain values. Any for all other annotations, which are not checked."""
    if isinstance(annotation, ast.BinOp):
        options = [_type(annotation.left), _type(annotation.right)]
        return Any if Any in options else options[0] | options[1]
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        try:
            return Literal[ast.literal_eval(annotation.slice)]
        except ValueError:  # members of an enumeration
            return Any
    return {**_TYPES, **_BOUNDED}.get(ast.unparse(annotation), Any) if annotation else Any
