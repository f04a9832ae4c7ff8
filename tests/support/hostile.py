"""Objects that call something when they are unpickled."""

from __future__ import annotations

from typing import Any


class Hostile:
    """Unpickled, it makes the call."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.given = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.given
