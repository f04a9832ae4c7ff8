"""Plug-ins: classes and functions that a configuration names by their path.

    schedule: {_target_: suite.schedule.MessageDriven, cap: 2}

`_target_` is `package.module.Name`, the other keys are its arguments, and `_partial_: true` asks for a function that is
called later with the remaining arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from suite.config.base import broken
from suite.core.build import PARTIAL, TARGET, build

T = TypeVar("T")


class Plugin(Generic[T]):
    """A class or function by its path, and its arguments, as a configuration names them. `build` makes the T.

    later: whether what is built is the function itself, to be called with the remaining arguments
    wanted: T, at run time; place: the key of the configuration, for messages
    """

    __slots__ = ("arguments", "later", "place", "target", "wanted")

    def __init__(
        self, target: str, arguments: Mapping[str, Any], *, later: bool = False, wanted: Any = Any, place: str = ""
    ) -> None:
        self.target, self.arguments, self.later = target, arguments, later
        self.wanted, self.place = wanted, place

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plugin) and self.data() == other.data()

    __hash__ = None  # type: ignore[assignment]  # arguments may be lists

    def __repr__(self) -> str:
        return f"Plugin({self.data()})"

    def build(self, **more: Any) -> T:
        """The object. `more` are arguments that the configuration does not hold. Raises as suite.core.build.build."""
        return build(self.data(), **more)  # type: ignore[no-any-return]

    def data(self) -> dict[str, Any]:
        """As the configuration holds it."""
        later = {PARTIAL: True} if self.later else {}
        return {TARGET: self.target, **later, **self.arguments}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        wanted = get_args(source)[0] if get_args(source) else Any

        def read(value: Any, info: core_schema.ValidationInfo) -> Plugin[Any]:
            if isinstance(value, Plugin):
                return value
            if not isinstance(value, Mapping) or not isinstance(value.get(TARGET), str):
                raise broken("a group of keys with a class path in _target_")
            arguments = {str(key): each for key, each in value.items() if key not in (TARGET, PARTIAL)}
            later = bool(value.get(PARTIAL, False))
            return cls(value[TARGET], arguments, later=later, wanted=wanted, place=info.field_name or "")

        return core_schema.with_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(Plugin.data)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        target = {"type": "string", "description": "package.module.Name of a class or function"}
        return {"type": "object", "properties": {TARGET: target, PARTIAL: {"type": "boolean"}}, "required": [TARGET]}
