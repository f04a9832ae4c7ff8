"""Plug-ins: classes and functions that a configuration names by their path.

    schedule: {_target_: suite.schedule.MessageDriven, cap: 2}

`_target_` is `package.module.Name`. The other keys are its arguments. `_partial_: true` gives a function that is called
later with the remaining arguments. Ranks build plug-ins from plain data, without Hydra.

The signature of a class becomes a strict pydantic model of its arguments. An annotation that is a class requires an
instance, and one that is a protocol requires its members.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    Strict,
    ValidationError,
    create_model,
)
from pydantic_core import core_schema

from suite.config.base import rule_error
from suite.config.locate import PARTIAL, TARGET, locate
from suite.config.refusals import refusal
from suite.core.errors import InvalidRequest
from suite.core.keys import in_config_keys
from suite.core.members import is_protocol, missing_members
from suite.core.reasons import format_traceback, headline, raised_in_user_code
from suite.core.values import format_value

T = TypeVar("T")


def build(config: Any, key: str = "", required_type: Any = Any) -> Any:
    """The object of a configuration, with every plug-in inside it.

    Args:
        config: The configuration.
        key: Its key, for messages.
        required_type: Type that its place requires.

    Raises:
        InvalidRequest: A class is of another type than its place requires, or does not take its arguments.
    """
    if isinstance(config, list | tuple):
        return [build(each, f"{key}.{number}") for number, each in enumerate(config)]
    if not isinstance(config, Mapping):
        return config
    arguments, path = arguments_of(config), str(config.get(TARGET, ""))
    if TARGET not in config:
        return {name: build(value, f"{key}.{name}".lstrip(".")) for name, value in arguments.items()}
    target, built = prepare(config, key, required_type)
    if config.get(PARTIAL, False):
        return partial(target, **built)
    try:
        with in_config_keys(key, arguments if key else ()):
            made = target(**built)
    except (TypeError, ValueError) as error:  # the annotation allows the value and the class does not
        call = ", ".join(f"{name}={format_value(value)}" for name, value in built.items())
        reason = headline(format_traceback(error)) if raised_in_user_code(error) else str(error)
        raise InvalidRequest(f"{path}({call}): {reason}", rule="values of the kinds its docstring gives") from error
    _check_fit(key, path, [made], required_type)  # a function may have no return annotation
    return made


def prepare(config: Mapping[str, Any], key: str, required_type: Any) -> tuple[Any, dict[str, Any]]:
    """The class of a plug-in and its arguments, of which those that are plug-ins are built. Raises as `build`."""
    path, later, at = str(config[TARGET]), bool(config.get(PARTIAL, False)), f"{key}." if key else ""
    target = located(at + TARGET, path)
    hints = _hints_of(target)
    results = [target] if isinstance(target, type) else _kinds(hints.get("return", Any))
    _check_fit(key, path, [partial] if later else results, required_type, later)
    built = {name: build(value, at + name, hints.get(name, Any)) for name, value in arguments_of(config).items()}
    check_arguments(key, target, built, later=later)
    return target, built


def arguments_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a plug-in, by name."""
    return {str(key): value for key, value in config.items() if key not in (TARGET, PARTIAL)}


def plugins_in(config: Any) -> Iterator[Mapping[str, Any]]:
    """Plug-ins in a group of keys, outer ones before inner ones."""
    if isinstance(config, Mapping):
        yield from [config] if TARGET in config else []
        for value in config.values():
            yield from plugins_in(value)


def located(key: str, path: str, find: Callable[[str], Any] = locate) -> Any:
    """The class, function or module that a key of the configuration names. Raises as `find`, with the key."""
    try:
        return find(path)
    except InvalidRequest as error:
        raise InvalidRequest(key, path, error.rule, error.legal) from error


def own_settings(kind: type[T], config: Any) -> T:
    """The further keys of `system` of a RunConfig, as an object of `kind`. Raises InvalidRequest for a wrong one."""
    check_arguments("system", kind, config.system.more)
    return kind(**config.system.more)


# -- types of results ------------------------------------------------------------------------------------------------


def misfit(value: Any, kinds: Sequence[Any]) -> str:
    """Why an object, or the class of an object that is not built yet, is of none of these types; empty if it is."""
    if not kinds:
        return ""
    of_kind = issubclass if isinstance(value, type) else isinstance
    lacking = {kind: missing_members(value, kind) for kind in kinds if is_protocol(kind)}
    if any(not lacking[kind] if kind in lacking else of_kind(value, kind) for kind in kinds):
        return ""
    missing = next(iter(lacking.values()), [])
    return f"a {kinds[0].__name__}" + (f"; it has no {' and no '.join(missing)}" if missing else "")


def _kinds(hint: Any) -> Sequence[Any]:
    """Classes and protocols that an annotation allows; empty if it allows others too."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]
    kinds = [get_origin(each) or each for each in members if each not in (None, NoneType)]
    return kinds if all(isinstance(each, type) for each in kinds) and Any not in kinds else []


def _check_fit(key: str, path: str, results: Sequence[Any], required_type: Any, later: bool = False) -> None:
    """Raises InvalidRequest for objects, or classes of objects to come, all of another type than a place requires."""
    kinds = _kinds(required_type)
    reasons = [misfit(each, kinds) for each in results]
    if reasons and all(reasons):
        legal = f"a class that inherits from {kinds[0].__module__}.{kinds[0].__name__}"
        if later or Callable in kinds:
            legal = f"{key}.{PARTIAL}={str(not later).lower()}"
        raise InvalidRequest(key, path, f"its place requires {reasons[0]}", legal)


def check_class(key: str, path: str, protocol: type, names: Iterable[str]) -> Any:
    """The class at a path. Raises InvalidRequest unless it has a protocol's methods, and takes these arguments."""
    target = located(key, path)
    _check_fit(key, path, [target], protocol)
    check_call(f"{key}={path}", target, names)
    return target


def check_call(what: str, target: Callable[..., Any], names: Iterable[str]) -> None:
    """Raises InvalidRequest unless `target` takes arguments of these names and requires no others."""
    try:
        inspect.signature(target).bind(**dict.fromkeys(names))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{what}: {error}", rule=f"it is called with {', '.join(names)}") from error


# -- arguments -------------------------------------------------------------------------------------------------------


def check_arguments(key: str, target: Callable[..., Any], arguments: Mapping[str, Any], *, later: bool = False) -> None:
    """Raises InvalidRequest for the first argument that a class or function does not take or lacks.

    Args:
        key: Key of the arguments in the configuration.
        target: The class or function.
        arguments: Its arguments; those that are plug-ins are built.
        later: Whether more arguments follow when it is called.
    """
    model = _model_of(target)
    if model is None:
        return
    try:
        model.model_validate(arguments)
    except ValidationError as error:
        faults = [each for each in error.errors(include_url=False) if not later or each["type"] != "missing"]
        if faults:
            raise refusal(faults, model, arguments, key) from None


def argument_names(path: str) -> list[str]:
    """Argument names of the class or function at a path; empty if there is none."""
    try:
        model = _model_of(locate(path))
    except InvalidRequest:
        return []
    return [str(info.alias) for info in model.model_fields.values()] if model else []


@cache
def _hints_of(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Types of the arguments by name, and of the result; empty if an annotation does not exist at run time."""
    try:
        call = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
        return typing.get_type_hints(call, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


@cache
def _model_of(target: Callable[..., Any]) -> type[BaseModel] | None:
    """The arguments of a class or function; None if its signature is unknown, as for a class written in C."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return None
    hints, fields = _hints_of(target), dict[str, Any]()
    for each in parameters:
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            default = ... if each.default is each.empty else each.default
            fields[f"argument_{each.name}"] = (_strict(hints.get(each.name, Any)), Field(default, alias=each.name))
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters)
    config = ConfigDict(
        extra="allow" if open_ended else "forbid", strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )
    model: type[BaseModel] = create_model(target.__name__, __config__=config, **fields)
    return model


def _strict(hint: Any) -> Any:
    """An annotation as pydantic checks it. A list of a configuration serves as a tuple."""
    origin, inner = get_origin(hint), get_args(hint)
    if typing.is_typeddict(hint):
        return dict[str, Any]
    if isinstance(hint, type) and origin is None and hint.__module__ not in ("builtins", "typing"):
        return Annotated[Any, AfterValidator(partial(_of_kind, hint))]
    if origin is Annotated:
        return Annotated[(_strict(inner[0]), *inner[1:])]
    if origin in (Union, UnionType):
        return Union[tuple(map(_strict, inner))]  # noqa: UP007 - of a tuple
    if tuple in (hint, origin):
        return Annotated[tuple[tuple(map(_strict, inner))] if inner else tuple, Strict(False)]  # type: ignore[misc]
    if isinstance(origin, type) and issubclass(origin, Sequence | Mapping):
        return origin[tuple(map(_strict, inner))]  # type: ignore[index]
    return hint


def _of_kind(kind: type, value: Any) -> Any:
    if reason := misfit(value, [kind]):
        raise rule_error(reason)
    return value


# -- keys of a configuration -----------------------------------------------------------------------------------------


class Plugin(Generic[T]):
    """A class or function by its path, and its arguments, as a configuration names them. `build` makes the T.

    Attributes:
        later: Whether what is built is the function itself, to be called with the remaining arguments.
        required_type: T, at run time.
        place: The key of the configuration, for messages.
    """

    def __init__(
        self, target: str, arguments: Mapping[str, Any], later: bool = False, required_type: Any = Any, place: str = ""
    ) -> None:
        self.target, self.arguments, self.later = target, arguments, later
        self.required_type, self.place = required_type, place

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plugin) and self.data() == other.data()

    __hash__ = None  # type: ignore[assignment]  # arguments may be lists

    def build(self) -> T:
        """The object. Raises InvalidRequest if it is of another type than its place requires, or an argument is."""
        built: T = build(self.data(), self.place, self.required_type)
        return built

    def check(self) -> None:
        """Check the class and its arguments without a call. Raises as `build`."""
        prepare(self.data(), self.place, self.required_type)

    def data(self) -> dict[str, Any]:
        """As the configuration holds it."""
        later = {PARTIAL: True} if self.later else {}
        return {TARGET: self.target, **later, **self.arguments}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        annotation = get_args(source)[0] if get_args(source) else Any

        def read(value: Any, info: core_schema.ValidationInfo) -> Plugin[Any]:
            if isinstance(value, Plugin):
                return value
            if not isinstance(value, Mapping) or not isinstance(value.get(TARGET), str):
                raise rule_error("a group of keys with a class path in _target_")
            later = bool(value.get(PARTIAL, False))
            return cls(value[TARGET], arguments_of(value), later, annotation, info.field_name or "")

        return core_schema.with_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(Plugin.data)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        target = {"type": "string", "description": "package.module.Name of a class or function"}
        return {"type": "object", "properties": {TARGET: target, PARTIAL: {"type": "boolean"}}, "required": [TARGET]}
