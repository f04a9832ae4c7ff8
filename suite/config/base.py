"""Base class and value types of the configuration models.

Each key has its type, default, bounds, unit and one line of help in its model, and nowhere else. Values are strict:
text is not read as a number, and a group accepts only the keys of its model. An error message suggests the example of a
field, or its default.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

MAX_SEED = 2**32 - 1  # the largest seed that every random number generator takes
MAX_COUNT = 1_000_000_000
MAX_RANKS = 100_000  # ranks of a grid, which simulators list one by one
MAX_LAYERS = 10_000
YEAR = 366 * 86400  # seconds
_NAME_BYTES = 255  # of one part of a path, on common file systems


class Settings(BaseModel):
    """A group of configuration keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    def plain(self) -> dict[str, Any]:
        """The group as plain data, with the keys that were set."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    @property
    def more(self) -> Mapping[str, Any]:
        """Keys of this group that its model leaves to a plug-in."""
        return self.model_extra or {}


def rule_error(rule: str) -> PydanticCustomError:
    """Error of a value that breaks `rule`."""
    return PydanticCustomError("rule", "{rule}", {"rule": rule})


def _text(value: str) -> str:
    """Text that is also a legal path."""
    if any("\0" in part or len(part.encode(errors="replace")) > _NAME_BYTES for part in value.split("/")):
        raise rule_error(f"text without a null character, each part of a path at most {_NAME_BYTES} bytes")
    return value


def _line(text: str) -> str:
    """A command line whose quotes are closed."""
    try:
        shlex.split(text)
    except ValueError:
        raise rule_error("overrides separated by spaces, with every quote closed") from None
    return text


Rerun = Literal["stale", "failed", "timeout", "all", "keep"]
OnError = Literal["record", "stop"]
Text = Annotated[str, AfterValidator(_text)]  # also a legal path
Name = Annotated[Text, Field(min_length=1)]
Word = Text | int | float
Line = Annotated[str, AfterValidator(_line)]  # overrides of a command line

READ_ONLY = Field(json_schema_extra={"readOnly": True})  # a key that the suite sets, not a configuration

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS)]
Duration = Annotated[float, Field(gt=0, le=YEAR)]  # seconds
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Amount = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Size = Annotated[float, Field(ge=0)]


class Choice(Settings):
    """A group of which a YAML file is chosen."""

    name: Name
    """Name of the choice, in labels and messages."""
