"""Plug-ins: classes and functions that a configuration names by their path.

    schedule: {_target_: suite.schedule.MessageDriven, cap: 2}

`_target_` is `package.module.Name`. The other keys are its arguments. `_partial_: true` gives a function that is called
later with the remaining arguments. Ranks build plug-ins from plain data, without Hydra.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Generic, TypeVar, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from suite.config.base import rule_error
from suite.config.locate import PARTIAL, TARGET, locate
from suite.config.results import object_mismatch, result_refusal
from suite.config.signature import check_names, check_values, fits
from suite.core.errors import InvalidRequest
from suite.core.keys import in_config_keys, in_keys_of
from suite.core.reasons import format_traceback, headline, raised_in_user_code
from suite.core.values import format_value

T = TypeVar("T")


def build(config: Any, **extra: Any) -> Any:
    """The object of a configuration, with everything inside it. `extra` is passed to the outermost class.

    Raises InvalidRequest if an argument does not fit the class, with the arguments that it takes.
    """
    return _built("", config, extra)


def build_at(key: str, config: Mapping[str, Any]) -> Any:
    """Build the plug-in at a key of the configuration. Errors of its class name the keys below this key."""
    return _built(key, config, {})


def own_settings(kind: type[T], config: Any) -> T:
    """The further keys of `system` as an object of `kind`, which the class of the system names as its `settings`.

    They are checked before ranks start. Raises InvalidRequest for an unknown key or a value of another type.

    Args:
        kind: Class of the settings.
        config: A RunConfig.
    """
    arguments, path = dict(config.system.more), f"{kind.__module__}.{kind.__qualname__}"
    check_names("system", path, kind, arguments)
    check_values("system", path, kind, arguments)
    return kind(**arguments)


def _built(key: str, config: Any, extra: Mapping[str, Any]) -> Any:
    if isinstance(config, list | tuple):
        return [build(element) for element in config]
    if not isinstance(config, Mapping):
        return config
    arguments = arguments_of(config)
    if TARGET not in config:
        return {**{key: build(value) for key, value in arguments.items()}, **extra}
    path, later = str(config[TARGET]), bool(config.get(PARTIAL, False))
    target = locate(path)
    check_names(key, path, target, {**arguments, **extra}, later=later)
    check_values(key, path, target, arguments)  # plug-ins are checked by their return type before they are built
    built = {**{key: build(value) for key, value in arguments.items()}, **extra}
    changed = {name: value for name, value in built.items() if value is not arguments.get(name)}
    check_values(key, path, target, changed)
    if later:
        return partial(target, **built)
    try:
        with in_config_keys(), in_keys_of(key, arguments) if key else nullcontext():
            return target(**built)
    except (TypeError, ValueError) as error:  # the annotation allows the value and the class does not
        call = ", ".join(f"{key}={format_value(value)}" for key, value in built.items() if key not in extra)
        reason = headline(format_traceback(error)) if raised_in_user_code(error) else str(error)
        raise InvalidRequest(f"{path}({call}): {reason}", rule="values of the kinds its docstring gives") from error


def arguments_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a plug-in, by name."""
    return {str(key): value for key, value in config.items() if key not in (TARGET, PARTIAL)}


def check(key: str, config: Any, required_type: Any = Any) -> None:
    """Raises InvalidRequest for the first plug-in of a configuration that cannot be built. Nothing is built.

    Args:
        key: Key of the configuration, for messages.
        config: The configuration.
        required_type: Type of the outermost object.
    """
    for at, each in plugins_in(key, config):
        located(f"{at}.{TARGET}", str(each[TARGET]))
    for at, each in plugins_in(key, config):
        path, later, arguments = str(each[TARGET]), bool(each.get(PARTIAL, False)), arguments_of(each)
        target = locate(path)
        if each is config and (refused := result_refusal(at, each, required_type)):
            raise refused
        check_names(at, path, target, arguments, later=later)
        check_values(at, path, target, arguments)


def plugins_in(key: str, config: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Keys and plug-ins of a configuration, outer ones before inner ones."""
    if isinstance(config, list | tuple):
        for number, each in enumerate(config):
            yield from plugins_in(f"{key}[{number}]", each)
    elif isinstance(config, Mapping):
        if TARGET in config:
            yield key, config
        for name, value in config.items():
            yield from plugins_in(f"{key}.{name}", value)


def located(key: str, path: str) -> Any:
    """The class or function that a key of the configuration names. Raises as `locate`, with the key."""
    try:
        return locate(path)
    except InvalidRequest as error:
        error.args = (f"{key}={path}: {error}",)
        raise


class Plugin(Generic[T]):
    """A class or function by its path, and its arguments, as a configuration names them. `build` makes the T.

    Attributes:
        later: Whether what is built is the function itself, to be called with the remaining arguments.
        required_type: T, at run time.
        place: The key of the configuration, for messages.
    """

    __slots__ = ("arguments", "later", "place", "required_type", "target")

    def __init__(
        self,
        target: str,
        arguments: Mapping[str, Any],
        *,
        later: bool = False,
        required_type: Any = Any,
        place: str = "",
    ) -> None:
        self.target, self.arguments, self.later = target, arguments, later
        self.required_type, self.place = required_type, place

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plugin) and self.data() == other.data()

    __hash__ = None  # type: ignore[assignment]  # arguments may be lists

    def __repr__(self) -> str:
        return f"Plugin({self.data()})"

    def build(self, **more: Any) -> T:
        """The object. more: arguments that the configuration does not hold.

        Raises InvalidRequest if the object is of another type than its place requires, or an argument does not fit.
        """
        if refused := result_refusal(self.place, self.data(), self.required_type):
            raise refused
        built: T = build(self.data(), **more)
        if not fits(built, self.required_type):  # a function may have no return annotation
            rule = f"its place requires {object_mismatch(built, self.required_type)}"
            raise InvalidRequest(f"{self.place}={self.target}, which returns {format_value(built)}", rule=rule)
        return built

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
            return cls(
                value[TARGET], arguments_of(value), later=later, required_type=annotation, place=info.field_name or ""
            )

        return core_schema.with_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(Plugin.data)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        target = {"type": "string", "description": "package.module.Name of a class or function"}
        return {"type": "object", "properties": {TARGET: target, PARTIAL: {"type": "boolean"}}, "required": [TARGET]}
