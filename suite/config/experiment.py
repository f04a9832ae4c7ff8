"""Keys of an experiment and of a scale."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from suite.config.base import Duration, Name, Settings, rule_error
from suite.core import experiment as specs
from suite.core.errors import InvalidRequest
from suite.core.experiment import ExpectationSpec, PanelSpec, StudySpec

Limit = Annotated[float, Field(examples=[1.0])]
AboveZero = Annotated[float, Field(gt=0, examples=[1.0])]


def _runs(value: Any) -> Any:
    lists = isinstance(value, list) and all(isinstance(entry, list) for entry in value)
    if not lists or not all(isinstance(word, str) for entry in value for word in entry):
        raise rule_error("a list of lists of overrides")
    return value


class Specification(Settings):
    """A group that is converted to a specification of suite.core.experiment, which checks the rules between keys."""

    def spec(self) -> Any:
        """The specification."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _keeps_rules(self) -> Specification:
        try:
            self.spec()
        except InvalidRequest as error:
            raise rule_error(f"{error.key.rpartition('.')[2]}: {error.rule}", error.legal) from error
        return self


class Panel(Specification):
    """A panel over the runs of an experiment, one point per run."""

    title: str
    """Title of the panel."""
    unit: str = ""
    """Unit of the values; empty for the unit of the metric."""
    axis: str = ""
    """Label of the x axis; empty for `key`."""
    key: str = ""
    """Configuration key whose value is the point of a run, or `ranks`, `grid` or `batches`."""
    metric: str = ""
    """Metric of each run at its point."""
    metrics: Annotated[dict[str, str], Field(default_factory=dict)]
    """Metric by point, instead of `key` and `metric`."""
    names: Annotated[dict[str, str], Field(default_factory=dict)]
    """Label of a point by the text of its value."""
    curve: Name = specs.SYSTEM
    """Configuration key whose value names the curve of a run, or `system`, or `grid` for the system on its grid."""
    relative: str | None = None
    """Point by whose value each curve is divided."""
    share: bool = False
    """Whether values are percentages of the sum over `metrics`."""
    paper: Annotated[dict[str, dict[str, str]], Field(default_factory=dict)]
    """Id of the claim with the published value, by curve and point."""

    def spec(self) -> PanelSpec:
        return specs.read_panel(self.plain())


class Study(Specification):
    """Learning curves over seeds, with their tables and rank tests."""

    scores: list[str]
    """Series with a value per epoch, higher is better; tests and targets use the first one that a task has."""
    ours: str = ""
    """System that is compared with every other one."""
    like: str = ""
    """System that `ours` is meant to match."""
    names: Annotated[dict[str, str], Field(default_factory=dict)]
    """Label of a system by its name; systems with equal labels are one."""
    of: Annotated[list[str], Field(default_factory=list)]
    """Experiments whose runs are shown; empty for the experiment itself."""
    target: AboveZero | None = None
    """Difference between the median final score of `like` and the target score, in the unit of the score."""
    samples: AboveZero | None = None
    """Samples per epoch of the published data set, for simulated times."""
    stands_for: Annotated[dict[str, str], Field(default_factory=dict)]
    """Published network by the name of ours."""
    curves: bool = True
    """Whether learning curves are drawn."""
    tables: Annotated[list[Literal["scores", "times", "tests", "settings"]], Field(default_factory=list)]
    """Tables to show; empty to derive them from the other keys."""

    def spec(self) -> StudySpec:
        return specs.read_study(self.plain())


class _Expectation(Specification):
    """An expectation on the runs of an experiment, which the report judges."""

    what: str
    """Quantity, in words."""
    at_most: Limit
    """Largest value that meets the expectation."""

    def spec(self) -> ExpectationSpec:
        return specs.read_expectation(self.plain())


class RatioExpectation(_Expectation):
    """Median batch time relative to the quickest of other runs."""

    kind: Literal["ratio"]
    """Ratio of batch times."""
    system: Name
    """Label of the run."""
    versus: list[str]
    """Labels of the runs to compare with, of which the quickest counts."""


class LossExpectation(_Expectation):
    """Largest relative difference of the losses of two runs."""

    kind: Literal["loss"]
    """Difference of losses."""
    system: str = ""
    """Label of the run; empty for every run."""
    versus: str = ""
    """Label of the run to compare with; empty for the reference."""


class PredictionExpectation(_Expectation):
    """Relative error of a simulated metric."""

    kind: Literal["prediction"]
    """Error of a prediction."""
    system: str = ""
    """Label of the run; empty for every run."""
    of: Literal["batch_time", "payload_bytes"] = "batch_time"
    """Metric that is predicted."""


class ShareExpectation(_Expectation):
    """Sum of some metrics of a run as a fraction of the sum of others."""

    kind: Literal["share"]
    """Share of a sum."""
    system: Name
    """Label of the run."""
    of: list[str]
    """Metrics to add."""
    over: Annotated[list[str], Field(default_factory=lambda: ["batch_time"])]
    """Metrics to add and divide by, in the same unit; the batch time by default."""


Expectation = Annotated[
    RatioExpectation | LossExpectation | PredictionExpectation | ShareExpectation, Field(discriminator="kind")
]
Runs = Annotated[list[list[str]], BeforeValidator(_runs)]


class Experiment(Settings):
    """Runs to compare, expectations on them, and their panels on the page of the report."""

    name: Name
    """Name of the experiment."""
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
    vendor_peak: AboveZero | None = None
    """Peak flop/s of the device by its vendor."""
    expect: Annotated[list[Expectation], Field(default_factory=list)]
    """Expectations that the report judges."""
    panels: Annotated[list[Panel], Field(default_factory=list)]
    """Panels over the runs."""
    study: Study | None = None
    """Accuracy study over seeds."""
    runs: Annotated[Runs, Field(default_factory=list)]
    """Overrides of each run."""


class Scale(Settings):
    """Experiments of one `make reproduce`."""

    name: Name
    reproduce: list[Any]
    """Experiments with their overrides, in order."""
    league: bool = False
    """Whether the simulator is scored on public measurements before the page is written."""
