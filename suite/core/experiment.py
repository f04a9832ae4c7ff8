"""Specifications of an experiment: sweep panels, accuracy study and expectations.

They are keys of `experiment` in a configuration (suite.config.experiment). A record holds the configuration as plain
JSON, from which the report reads them with the `read_*` functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.plain_data import read_dataclass

BATCHES, RANKS, GRID = "batches", "ranks", "grid"  # points that are no configuration keys
SYSTEM = "system"  # curve of a run that is named by its system alone
PERPLEXITY = "perplexity"
PREDICTED = {"batch_time": "simulated_time", "payload_bytes": "simulated_bytes"}  # the prediction of a metric
STUDY_TABLES = ("scores", "times", "tests", "settings")
MAX_METRICS, MAX_SCORES, MAX_EXPERIMENTS = 64, 4, 24
NULL_NAMES = ("null", "None", "none", "")  # spellings of the point of a key without a value


@dataclass(frozen=True, slots=True)
class PanelSpec:
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
        paper: Ids of claims by curve and point. The panel draws the published value of each claim at its point.
    """

    title: str
    unit: str = ""
    axis: str = ""
    key: str = ""
    metric: str = ""
    metrics: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    curve: str = SYSTEM
    relative: str | None = None
    share: bool = False
    paper: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.title:
            raise InvalidRequest("panel.title", "", rule="text that is not empty")
        if bool(self.key) != bool(self.metric) or bool(self.metric) == bool(self.metrics):
            raise InvalidRequest(
                "panel.metric",
                self.metric,
                rule="key and metric, or metrics alone",
                legal="key=ranks metric=batch_time",
            )
        if len(self.metrics) > MAX_METRICS:
            raise InvalidRequest("panel.metrics", len(self.metrics), rule=f"at most {MAX_METRICS} metrics")
        if not all((*self.names.values(), *self.metrics.values())):
            raise InvalidRequest("panel.names", "", rule="text that is not empty")
        if self.share and not self.metrics:
            raise InvalidRequest("panel.share", True, rule="only a panel with metrics has shares", legal="share=false")
        if self.share and self.relative is not None:
            raise InvalidRequest("panel.relative", self.relative, rule="a panel has share or relative, not both")
        if self.key == BATCHES and self.metric != PERPLEXITY:
            raise InvalidRequest(
                "panel.metric",
                self.metric,
                rule="key=batches has one value per validation",
                legal=f"metric={PERPLEXITY}",
            )

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


@dataclass(frozen=True, slots=True)
class StudySpec:
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

    scores: tuple[str, ...]
    ours: str = ""
    like: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    of: tuple[str, ...] = ()
    target: float = math.nan
    samples: float = math.nan
    stands_for: Mapping[str, str] = field(default_factory=dict)
    curves: bool = True
    tables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.scores) <= MAX_SCORES or not all(self.scores):
            raise InvalidRequest(
                "study.scores",
                list(self.scores),
                rule=f"1 to {MAX_SCORES} names of series",
                legal="study.scores=[top_1]",
            )
        if len(self.of) > MAX_EXPERIMENTS:
            raise InvalidRequest("study.of", len(self.of), rule=f"at most {MAX_EXPERIMENTS} experiments")
        if not all((*self.names.values(), *self.stands_for.values())):
            raise InvalidRequest("study.names", "", rule="text that is not empty")
        for name, value in (("target", self.target), ("samples", self.samples)):
            if value <= 0:
                raise InvalidRequest(f"study.{name}", value, rule="above 0")
        for table in self.tables:
            if table not in STUDY_TABLES:
                raise UnknownName("table of a study", table, STUDY_TABLES)

    @property
    def shown_tables(self) -> tuple[str, ...]:
        called_for = {
            "scores": True,
            "times": math.isfinite(self.target),
            "tests": bool(self.ours),
            "settings": bool(self.stands_for),
        }
        return self.tables or tuple(name for name in STUDY_TABLES if called_for[name])

    def label(self, system: str) -> str:
        return self.names.get(system, system)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioSpec:
    """Median batch time of `system` divided by that of the quickest system of `versus`; at most `at_most`."""

    kind: ClassVar[str] = "ratio"
    what: str = ""
    system: str
    versus: tuple[str, ...]
    at_most: float

    def __post_init__(self) -> None:
        if not self.versus:
            raise InvalidRequest("expect.versus", [], rule="at least one label of a run")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    """Largest relative difference of the losses of two runs; without `system`, of any run to the reference."""

    kind: ClassVar[str] = "loss"
    what: str = ""
    at_most: float
    system: str = ""
    versus: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionSpec:
    """Relative error of a simulated metric; without `system`, the largest over all runs."""

    kind: ClassVar[str] = "prediction"
    what: str = ""
    at_most: float
    system: str = ""
    of: str = "batch_time"

    def __post_init__(self) -> None:
        if self.of not in PREDICTED:
            raise InvalidRequest("expect.of", self.of, rule=f"one of {', '.join(PREDICTED)}", legal="of=batch_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSpec:
    """Sum of the metrics `of` a run as a fraction of the sum of its metrics `over`, all in one unit."""

    kind: ClassVar[str] = "share"
    what: str = ""
    system: str
    of: tuple[str, ...]
    over: tuple[str, ...] = ("batch_time",)
    at_most: float

    def __post_init__(self) -> None:
        for name, metrics in (("of", self.of), ("over", self.over)):
            if not metrics:
                raise InvalidRequest(f"expect.{name}", [], rule="at least one metric", legal=f"{name}=[update_time]")


ExpectationSpec = RatioSpec | LossSpec | PredictionSpec | ShareSpec
EXPECTATIONS: Mapping[str, type[ExpectationSpec]] = {
    each.kind: each for each in (RatioSpec, LossSpec, PredictionSpec, ShareSpec)
}


def read_panel(row: Any) -> PanelSpec:
    """An entry of `experiment.panels`. Raises InvalidRequest for a malformed one."""
    return read_dataclass(PanelSpec, row, "panel")


def read_study(row: Any) -> StudySpec:
    """The value of `experiment.study`. Raises InvalidRequest for a malformed one."""
    return read_dataclass(StudySpec, row, "study")


def read_expectation(row: Any) -> ExpectationSpec:
    """An entry of `experiment.expect`. Raises InvalidRequest for a malformed one."""
    if not isinstance(row, Mapping):
        raise InvalidRequest("expect", row, rule="a mapping")
    kind = row.get("kind")
    if kind not in list(EXPECTATIONS):
        raise UnknownName("expect.kind", kind, EXPECTATIONS)
    return read_dataclass(EXPECTATIONS[kind], {name: value for name, value in row.items() if name != "kind"}, "expect")
