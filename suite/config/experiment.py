"""Keys of an experiment and of a scale.

Panels, study and expectations are models of their own. Records hold them as plain data, which the report reads with
`read_panel`, `read_study` and `read_expectation`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from suite.config.base import Choice, Duration, Line, Positive, Settings, rule_error
from suite.config.refusals import kind_of, validated
from suite.core.errors import UnknownName
from suite.core.values import MAX_CHARACTERS

BATCHES, RANKS, GRID = "batches", "ranks", "grid"  # points that are no configuration keys
SYSTEM = "system"  # curve of a run that is named by its system alone
PERPLEXITY = "perplexity"
PREDICTED = {"batch_time": "simulated_time", "payload_bytes": "simulated_bytes"}  # the prediction of a metric
NULL_NAMES = ("null", "None", "none", "")  # spellings of the point of a key without a value

Words = Annotated[str, AfterValidator(lambda text: text.strip()[:MAX_CHARACTERS])]
Label = Annotated[Words, Field(min_length=1)]
AsList = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)  # of older records
Labels = Annotated[list[Label], AsList]
Text = Annotated[Words, BeforeValidator(lambda value: str(value) if isinstance(value, int | float) else value)]
Names = Annotated[dict[Text, Label], Field(default_factory=dict)]
StudyTable = Literal["scores", "times", "tests", "settings"]
S = TypeVar("S", bound=Settings)


class PanelSpec(Settings):
    """A sweep panel: one metric over the runs of an experiment, a curve per system.

    Attributes:
        title: Title of the panel.
        unit: Unit of the values; empty for the unit of the metric.
        axis: Label of the x axis; empty for `key`.
        key: Configuration key whose value is a run's point, or "ranks", "grid" or "batches".
        metric: Metric of each run at its point.
        metrics: Metric by point, instead of `key` and `metric`.
        names: Label of a point by the text of its value.
        curve: Configuration key whose value names a run's curve, "system", or "grid" for the system on its grid.
        relative: Point by whose value each curve is divided.
        share: Whether each value is a percentage of the sum over the curve's metrics.
    """

    title: Label
    unit: Words = ""
    axis: Words = ""
    key: Words = ""
    metric: Words = ""
    metrics: Annotated[Names, Field(max_length=64)]
    names: Names
    curve: Words = SYSTEM
    relative: Words | None = None
    share: bool = False

    @model_validator(mode="after")
    def _fields_fit(self) -> PanelSpec:
        both = bool(self.key) != bool(self.metric) or bool(self.metric) == bool(self.metrics)
        for wrong, rule in (
            (both, "key and metric, or metrics alone, such as key=ranks metric=batch_time"),
            (self.share and not self.metrics, "share=false for a panel without metrics"),
            (self.share and self.relative is not None, "relative=null for a panel with share=true"),
            (self.key == BATCHES and self.metric != PERPLEXITY, f"metric={PERPLEXITY} with key={BATCHES}"),
        ):
            if wrong:
                raise rule_error(rule)
        return self

    @property
    def axis_label(self) -> str:
        return self.axis or self.key

    @property
    def metric_by_point(self) -> Mapping[str, str]:
        """Metric by point. The point "" represents the value of `key`."""
        return self.metrics or {"": self.metric}

    @property
    def divisor(self) -> str:
        """Label of the point by which each curve is divided; empty for none."""
        return "" if self.relative is None else self.label(self.relative)

    @property
    def normalized(self) -> bool:
        """Whether values are ratios or percentages of their own curve, without the unit of the samples."""
        return bool(self.divisor or self.share)

    def label(self, name: str) -> str:
        """Label of a point. `name` is the text of the point's value, or already its label."""
        if name in NULL_NAMES:
            return next((self.names[text] for text in NULL_NAMES if text in self.names), "none")
        return self.names.get(name) or self.names.get(name.capitalize()) or name  # a key `true` may be read as True


class StudySpec(Settings):
    """An accuracy study: learning curves over seeds, their tables and rank tests.

    Attributes:
        scores: Series with a value per epoch, higher is better. Tests and targets use the first one that a task has.
        ours: System that is compared with every other one.
        like: System that `ours` is meant to match.
        names: Label of a system by its name; systems with equal labels are one.
        of: Experiments whose runs are shown; empty for the experiment itself.
        target: Difference between the median final score of `like` and the target score, in the unit of the score.
        samples: Samples per epoch of the published data set, for simulated times.
        stands_for: Published network by the name of ours.
        curves: Whether learning curves are drawn.
        tables: Tables to show; empty to derive them from the other fields.
    """

    scores: Annotated[Labels, Field(min_length=1, max_length=4, examples=[["top_1"]])]
    ours: Words = ""
    like: Words = ""
    names: Names
    of: Annotated[Labels, Field(max_length=24, default_factory=list)]
    target: Positive = math.nan
    samples: Positive = math.nan
    stands_for: Names
    curves: bool = True
    tables: Annotated[list[StudyTable], AsList, Field(default_factory=list)]

    @property
    def shown_tables(self) -> list[StudyTable]:
        called_for = (True, math.isfinite(self.target), self.ours, self.stands_for)
        return self.tables or [name for name, shown in zip(get_args(StudyTable), called_for, strict=True) if shown]

    def label(self, system: str) -> str:
        return self.names.get(system, system)


class ExpectationSpec(Settings):
    """An expectation on the runs of an experiment, which the report judges.

    Attributes:
        kind: Kind of the expectation: ratio, loss, prediction or share.
        what: Quantity, in words.
        at_most: Largest value that meets the expectation.
    """

    kind: str
    what: Words
    at_most: float


class RatioSpec(ExpectationSpec):
    """kind=ratio: median batch time relative to the quickest of other runs.

    Attributes:
        system: Label of the run.
        versus: Labels of the runs to compare with, of which the quickest counts.
    """

    kind: Literal["ratio"]
    system: Words
    versus: Annotated[Labels, Field(min_length=1)]


class LossSpec(ExpectationSpec):
    """kind=loss: largest relative difference of the losses of two runs.

    Attributes:
        system: Label of the run; empty for every run.
        versus: Label of the run to compare with; empty for the reference.
    """

    kind: Literal["loss"]
    system: Words = ""
    versus: Words = ""


class PredictionSpec(ExpectationSpec):
    """kind=prediction: relative error of a simulated metric.

    Attributes:
        system: Label of the run; empty for the largest error of every run.
        of: Metric that is predicted: batch_time or payload_bytes.
    """

    kind: Literal["prediction"]
    system: Words = ""
    of: Literal["batch_time", "payload_bytes"] = "batch_time"


class ShareSpec(ExpectationSpec):
    """kind=share: sum of some metrics of a run as a fraction of the sum of others, all in one unit.

    Attributes:
        system: Label of the run.
        of: Metrics to add.
        over: Metrics to add and divide by; the batch time by default.
    """

    kind: Literal["share"]
    system: Words
    of: Annotated[Labels, Field(min_length=1)]
    over: Annotated[Labels, Field(min_length=1, default_factory=lambda: ["batch_time"])]


EXPECTATIONS: Mapping[str, type[ExpectationSpec]] = {
    kind_of(each): each for each in (RatioSpec, LossSpec, PredictionSpec, ShareSpec)
}


def read_panel(row: Any, path: str = "panel") -> PanelSpec:
    """An entry of `experiment.panels`. Raises InvalidRequest for a malformed one."""
    return _read(PanelSpec, row, path)


def read_study(row: Any, path: str = "study") -> StudySpec:
    """The value of `experiment.study`. Raises InvalidRequest for a malformed one."""
    return _read(StudySpec, row, path)


def read_expectation(row: Any, path: str = "expect") -> ExpectationSpec:
    """An entry of `experiment.expect`. Raises InvalidRequest for a malformed one."""
    kind = row.get("kind") if isinstance(row, Mapping) else "ratio"
    if kind not in list(EXPECTATIONS):
        raise UnknownName(f"{path}.kind", kind, EXPECTATIONS)
    return _read(EXPECTATIONS[kind], row, path)


def _read(kind: type[S], row: Any, path: str) -> S:
    """A key that is null takes its default."""
    given = {key: value for key, value in row.items() if value is not None} if isinstance(row, Mapping) else row
    return validated(kind, given, path)


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
    runs: Annotated[list[Line], Field(default_factory=list)]
    """Lines of overrides, each a run; a line with comma-separated values is a run per combination, as in a sweep."""

    @model_validator(mode="after")
    def _has_specifications(self) -> Experiment:
        """The report can read the expectations, the panels and the study."""
        for key, rows, read in (("expect", self.expect, read_expectation), ("panels", self.panels, read_panel)):
            for place, row in enumerate(rows):
                read(row, f"experiment.{key}.{place}")
        if self.study is not None:
            read_study(self.study, "experiment.study")
        return self


class Scale(Choice):
    """Experiments of one `make reproduce`."""

    reproduce: list[Line]
    """Experiments with their overrides, in order."""
    accuracy: bool = False
    """Whether the simulator is scored on public measurements before the page is written."""
