"""Keys of an experiment and of a scale."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from suite.config.base import Choice, Duration, Positive, rule_error
from suite.core.experiment import read_expectation, read_panel, read_study


def _line(text: str) -> str:
    """A command line whose quotes are closed."""
    try:
        shlex.split(text)
    except ValueError:
        raise rule_error("overrides separated by spaces, with every quote closed") from None
    return text


class Experiment(Choice):
    """Runs to compare, expectations on them, and their panels on the page of the report."""

    title: str = ""
    """Title of its section on the page."""
    question: str = ""
    """Question that the runs answer."""
    paper: str = ""
    """Paper that it reproduces."""
    paper_ref: str = ""
    """Figures, tables and sections of the paper."""
    reference: str = ""
    """Label of the run that the others are compared with."""
    expected_seconds: Duration
    """Seconds that the experiment is expected to take."""
    together: bool = True
    """Whether the ranks of all runs are up at the same time; false: one run after the other, each with all memory."""
    vendor_peak: Positive | None = None
    """Peak flop/s of the device by its vendor."""
    expect: Annotated[list[Any], Field(default_factory=list)]
    """Expectations that the report judges."""
    panels: Annotated[list[Any], Field(default_factory=list)]
    """Panels over the runs."""
    study: dict[str, Any] | None = None
    """Accuracy study over seeds."""
    runs: Annotated[list[Annotated[str, AfterValidator(_line)]], Field(default_factory=list)]
    """Lines of overrides, each a run; a line with comma-separated values is a run per combination, as in a sweep."""

    @model_validator(mode="after")
    def _has_specifications(self) -> Experiment:
        """The report can read the expectations, the panels and the study (suite.core.experiment)."""
        for key, rows, read in (("expect", self.expect, read_expectation), ("panels", self.panels, read_panel)):
            for place, row in enumerate(rows):
                read(row, f"experiment.{key}.{place}")
        if self.study is not None:
            read_study(self.study, "experiment.study")
        return self


class Scale(Choice):
    """Experiments of one `make reproduce`."""

    reproduce: list[Any]
    """Experiments with their overrides, in order."""
    accuracy: bool = False
    """Whether the simulator is scored on public measurements before the page is written."""
