"""Specifications of an experiment: sweep panels, accuracy study and expectations.

They are keys of `experiment` in a configuration, which holds them as plain data, as records do. The `read_*`
functions make specifications of them, for a configuration that is validated and for the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.plain_data import read_dataclass

BATCHES, RANKS, GRID = "batches", "ranks", "grid"  # points that are no configuration keys
SYSTEM = "system"  # curve of a run that is named by its system alone
PERPLEXITY = "perplexity"
PREDICTED = {"batch_time": "simulated_time", "payload_bytes": "simulated_bytes"}  # the prediction of a metric
STUDY_TABLES = ("scores", "times", "tests", "settings")
MAX_METRICS, MAX_SCORES, MAX_EXPERIMENTS = 64, 4, 24
TEXT = "text that is not empty"
NULL_NAMES = ("null", "None", "none", "")  # spellings of the point of a key without a value


class Specification:
    """Keys of an experiment that are set together."""

    __slots__ = ()

    def rules(self) -> Iterable[tuple[str, object, str]]:
        """Rules of the fields: the name of a field, whether its value is wrong, and the rule."""
        return ()

    def check(self, path: str) -> None:
        """Raises InvalidRequest for the first rule that the fields break. path: key of the specification."""
        for name, wrong, rule in self.rules():
            if wrong:
                value = getattr(self, name)
                raise InvalidRequest(f"{path}.{name}", [*value] if isinstance(value, tuple) else value, rule)


S = TypeVar("S", bound=Specification)


@dataclass(frozen=True, slots=True)
class PanelSpec(Specification):
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

    def rules(self) -> Iterable[tuple[str, object, str]]:
        both = bool(self.key) != bool(self.metric) or bool(self.metric) == bool(self.metrics)
        yield "title", not self.title, TEXT
        yield "metric", both, "key and metric, or metrics alone, such as key=ranks metric=batch_time"
        yield "metrics", len(self.metrics) > MAX_METRICS, f"at most {MAX_METRICS} metrics"
        yield "names", not all((*self.names.values(), *self.metrics.values())), TEXT
        yield "share", self.share and not self.metrics, "false for a panel without metrics"
        yield "relative", self.share and self.relative is not None, "null for a panel with share=true"
        yield "metric", self.key == BATCHES and self.metric != PERPLEXITY, f"{PERPLEXITY} with key={BATCHES}"

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
class StudySpec(Specification):
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

    def rules(self) -> Iterable[tuple[str, object, str]]:
        few = 1 <= len(self.scores) <= MAX_SCORES and all(self.scores)
        yield "scores", not few, f"1 to {MAX_SCORES} names of series, such as [top_1]"
        yield "of", len(self.of) > MAX_EXPERIMENTS, f"at most {MAX_EXPERIMENTS} experiments"
        yield "names", not all((*self.names.values(), *self.stands_for.values())), TEXT
        yield "target", self.target <= 0, "above 0"
        yield "samples", self.samples <= 0, "above 0"
        yield "tables", not {*self.tables} <= {*STUDY_TABLES}, f"some of {', '.join(STUDY_TABLES)}"

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
class ExpectationSpec(Specification):
    """An expectation on the runs of an experiment, which the report judges.

    Attributes:
        kind: Kind of the expectation: ratio, loss, prediction or share.
        what: Quantity, in words.
        at_most: Largest value that meets the expectation.
    """

    kind: ClassVar[str]
    what: str
    at_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioSpec(ExpectationSpec):
    """kind=ratio: median batch time relative to the quickest of other runs.

    Attributes:
        system: Label of the run.
        versus: Labels of the runs to compare with, of which the quickest counts.
    """

    kind: ClassVar[str] = "ratio"
    system: str
    versus: tuple[str, ...]

    def rules(self) -> Iterable[tuple[str, object, str]]:
        yield "versus", not self.versus, "at least one label of a run"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec(ExpectationSpec):
    """kind=loss: largest relative difference of the losses of two runs.

    Attributes:
        system: Label of the run; empty for every run.
        versus: Label of the run to compare with; empty for the reference.
    """

    kind: ClassVar[str] = "loss"
    system: str = ""
    versus: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionSpec(ExpectationSpec):
    """kind=prediction: relative error of a simulated metric.

    Attributes:
        system: Label of the run; empty for the largest error of every run.
        of: Metric that is predicted: batch_time or payload_bytes.
    """

    kind: ClassVar[str] = "prediction"
    system: str = ""
    of: str = "batch_time"

    def rules(self) -> Iterable[tuple[str, object, str]]:
        yield "of", self.of not in PREDICTED, f"one of {', '.join(PREDICTED)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSpec(ExpectationSpec):
    """kind=share: sum of some metrics of a run as a fraction of the sum of others, all in one unit.

    Attributes:
        system: Label of the run.
        of: Metrics to add.
        over: Metrics to add and divide by; the batch time by default.
    """

    kind: ClassVar[str] = "share"
    system: str
    of: tuple[str, ...]
    over: tuple[str, ...] = ("batch_time",)

    def rules(self) -> Iterable[tuple[str, object, str]]:
        yield "of", not self.of, "at least one metric, such as [update_time]"
        yield "over", not self.over, "at least one metric, such as [batch_time]"


EXPECTATIONS: Mapping[str, type[ExpectationSpec]] = {
    each.kind: each for each in (RatioSpec, LossSpec, PredictionSpec, ShareSpec)
}


def read_panel(row: Any, path: str = "panel") -> PanelSpec:
    """An entry of `experiment.panels`. Raises InvalidRequest for a malformed one."""
    return _read(PanelSpec, row, path)


def read_study(row: Any, path: str = "study") -> StudySpec:
    """The value of `experiment.study`. Raises InvalidRequest for a malformed one."""
    return _read(StudySpec, row, path)


def read_expectation(row: Any, path: str = "expect") -> ExpectationSpec:
    """An entry of `experiment.expect`. Raises InvalidRequest for a malformed one."""
    if not isinstance(row, Mapping):
        raise InvalidRequest(path, row, rule="a mapping")
    fields = dict(row)
    kind = fields.pop("kind", None)
    if kind not in list(EXPECTATIONS):
        raise UnknownName(f"{path}.kind", kind, EXPECTATIONS)
    return _read(EXPECTATIONS[kind], fields, path)


def _read(kind: type[S], row: Any, path: str) -> S:
    spec = read_dataclass(kind, row, path)
    spec.check(path)
    return spec
