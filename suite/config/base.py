"""Base class and value types of the configuration models.

Each key has its type, default, bounds, unit and one line of help in its model, and nowhere else. Values are strict:
text is not read as a number, and a group accepts only the keys of its model. The examples of a field are legal values
that an error message may suggest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from suite.core.values import is_number

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


def rule_error(rule: str, legal: str | None = None) -> PydanticCustomError:
    """Error of a value that breaks `rule`. legal: a legal value, if the type of the key gives none."""
    context = {"rule": rule} if legal is None else {"rule": rule, "legal": legal}
    return PydanticCustomError("rule", "{rule}", context)


def _text(value: str) -> str:
    """Text that is also a legal path."""
    if any("\0" in part or len(part.encode(errors="replace")) > _NAME_BYTES for part in value.split("/")):
        raise rule_error(f"text without a null character, each part of a path at most {_NAME_BYTES} bytes")
    return value


def _name(value: str) -> str:
    if not value:
        raise rule_error("text that is not empty")
    return _text(value)


def _word(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if not is_number(value):
        raise rule_error("text or a number")
    return value


Rerun = Literal["stale", "failed", "timeout", "all", "keep"]
OnError = Literal["record", "stop"]
Text = Annotated[str, AfterValidator(_text)]
Name = Annotated[str, AfterValidator(_name), Field(examples=["text"])]


READ_ONLY = Field(json_schema_extra={"readOnly": True})  # a key that the suite sets, not a configuration


def name_like(example: str | None) -> Any:
    """A Name with a legal value that error messages suggest."""
    return Field(examples=[example])


Word = Annotated[Any, BeforeValidator(_word), Field(examples=["text"])]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT, examples=[1])]
Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS, examples=[1])]
Duration = Annotated[float, Field(gt=0, le=YEAR, examples=[120])]  # seconds
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, examples=[1.0])]
