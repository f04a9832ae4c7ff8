"""Keys of an experiment and of a scale."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from suite.config.base import Duration, Name, Settings, broken


def _runs(value: Any) -> Any:
    lists = isinstance(value, list) and all(isinstance(entry, list) for entry in value)
    if not lists or not all(isinstance(word, str) for entry in value for word in entry):
        raise broken("a list of lists of overrides")
    return value


class Experiment(Settings):
    """Runs to compare, and expectations on them. The report reads further keys."""

    model_config = ConfigDict(extra="allow")

    name: Name
    expected_seconds: Duration
    """Seconds that the experiment is expected to take."""
    expect: Annotated[list[Any], Field(default_factory=list)]
    """Expectations that the report's page checks."""


class Scale(Settings):
    """Experiments of one `make reproduce`."""

    name: Name
    reproduce: list[Any]
    """Experiments with their overrides, in order."""


Runs = Annotated[Any, BeforeValidator(_runs)]
