"""Typed data from YAML files that are no run configurations: tables of constants and of measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from suite.core.errors import InvalidRequest

try:
    from yaml import CSafeLoader as Loader  # ten times faster
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeLoader as Loader


def read_typed(kind: Any, path: Path, key: str = "") -> Any:
    """Content of a YAML file as `kind`: a dataclass, or a list or mapping of them. Other keys are left out.

    Errors name an entry of a list by its value of `key`, where it has one.

    Raises InvalidRequest for a file that cannot be read, that lacks a field, or that has a value of another type.
    """
    content: Any = None
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
        return TypeAdapter(kind).validate_python(content)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequest(f"{path} cannot be read: {' '.join(str(error).split())}", rule="a YAML file") from error
    except ValidationError as error:
        first = error.errors()[0]
        head, *rest = first["loc"] or ("",)
        entry = content[head] if key and isinstance(head, int) else None
        place = ".".join(map(str, [entry.get(key, head) if isinstance(entry, dict) else head, *rest]))
        what = ": ".join(filter(None, [path.name, place]))
        raise InvalidRequest(f"{what}={first['input']!r:.80}", rule=first["msg"]) from error
