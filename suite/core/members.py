"""Members that a protocol requires and an object lacks."""

from __future__ import annotations

from typing import Any

from suite.core.errors import Refused
from suite.core.values import shown


def is_protocol(kind: Any) -> bool:
    return bool(vars(kind).get("_is_protocol", False))


def lacking(value: Any, protocol: type) -> list[str]:
    """The members of a protocol that an object lacks; for a class only methods, as `__init__` may set the rest."""
    missing = []
    for part in (each for each in protocol.__mro__ if is_protocol(each)):
        names = [*vars(part), *vars(part).get("__annotations__", {})]
        for name in dict.fromkeys(names):
            if name.startswith("_") and name != "__call__":
                continue
            method, of_class = callable(getattr(part, name, None)), isinstance(value, type)
            # hasattr(SomeClass, "__call__") is true for every class: its metaclass has it
            present = any(name in vars(each) for each in value.__mro__) if of_class else hasattr(value, name)
            if (method or not of_class) and not present:
                missing.append(f"{name}()" if method else name)
    return missing


def check_protocol(name: str, value: Any, protocol: type, legal: str) -> None:
    """Raises Refused unless the argument `name` is an object with every member of a protocol."""
    if isinstance(value, type):
        raise Refused(f"{name}={value.__name__}, a class", rule="an object of it", legal=f"{name}={value.__name__}()")
    if missing := lacking(value, protocol):
        rule = f"an object with {', '.join(missing)}, as {protocol.__module__}.{protocol.__name__} has"
        raise Refused(f"{name}={shown(value)}", rule=rule, legal=f"{name}={legal}")
