"""Check that an object has the members of a protocol."""

from __future__ import annotations

import inspect
from typing import Any


def is_protocol(kind: Any) -> bool:
    return bool(vars(kind).get("_is_protocol", False))


def _has(value: Any, name: str) -> bool:
    """Whether an object has a member. Does not call its properties or `__getattr__`."""
    try:
        inspect.getattr_static(value, name)
    except AttributeError:
        return False
    return True


def missing_members(value: Any, protocol: type) -> list[str]:
    """Members of a protocol that an object lacks. A class is checked for methods only, as `__init__` may set others."""
    missing = []
    for part in (each for each in protocol.__mro__ if is_protocol(each)):
        names = [*vars(part), *vars(part).get("__annotations__", {})]
        for name in dict.fromkeys(names):
            if name.startswith("_") and name != "__call__":
                continue
            method, of_class = callable(getattr(part, name, None)), isinstance(value, type)
            # every class has the `__call__` of its metaclass
            present = any(name in vars(each) for each in value.__mro__) if of_class else _has(value, name)
            if (method or not of_class) and not present:
                missing.append(f"{name}()" if method else name)
    return missing


def attributes(value: object) -> dict[str, Any]:
    """The attributes of an object in its `__dict__`; empty for an object without one."""
    state = object.__getstate__(value)
    plain_state = state[0] if isinstance(state, tuple) else state  # a class with slots gives (attributes, slots)
    return plain_state if isinstance(plain_state, dict) else {}
