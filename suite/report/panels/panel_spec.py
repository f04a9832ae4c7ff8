"""Specification of a sweep panel, parsed from the configuration of an experiment.

An entry of `experiment.panels` reaches the report through records that may come from elsewhere, so it may hold
anything: it is checked here once, and what is wrong with it becomes a sentence on the page.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from suite.core.claim import Claim
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.values import Json
from suite.report import derive

FIELDS = ("title", "unit", "axis", "key", "names", "metric", "metrics", "curve", "relative", "share", "paper")
MOST_METRICS = 64
LONG = 80  # characters of a name
BATCHES = "batches"
SECONDS = {"s": 1.0, "second": 1.0, "hour": 3600.0, "day": 86400.0}  # the units of records and of claims
_BYTES = {"B": 1.0, "byte": 1.0, "megabyte": 1e6, "gigabyte": 1e9}
_NOTHING = ("null", "None", "none", "")  # how a config, and the key of a mapping in it, says that there is no value


@dataclass(frozen=True, slots=True)
class PanelSpec:
    """One panel; `parse` says what its fields mean. metrics: by point, of the point '' where key tells it."""

    title: str
    unit: str
    axis: str
    key: str
    names: Mapping[str, str]
    metrics: Mapping[str, str]
    curve: str
    relative: str
    share: bool
    paper: Mapping[str, Mapping[str, Json]]

    @property
    def divided(self) -> bool:
        """Whether curves are shown in parts of themselves, and in no unit of the samples."""
        return bool(self.relative or self.share)

    def shown(self, name: str) -> str:
        """A point as it is drawn, from its value's text or from the name that it is drawn by."""
        if name in _NOTHING:
            return next((self.names[text] for text in _NOTHING if text in self.names), "none")
        return self.names.get(name) or self.names.get(name.capitalize()) or name  # true is True where it is a key

    def order(self, name: str) -> tuple[int, float, list[tuple[int, str]]]:
        """Sorts points as they are drawn: no value, then numbers, then text in natural order."""
        value = next((key for key, shown_name in self.names.items() if shown_name == name), name)
        if value in _NOTHING:
            return 0, 0.0, []
        try:
            least = float(value)
        except ValueError:
            least = math.nan
        return (1, least, []) if math.isfinite(least) else (2, 0.0, derive.natural(name))


def parse(row: Any) -> PanelSpec:
    """An entry of `experiment.panels`. Raises InvalidRequest for what is malformed.

    key, metric: what tells a run's point, as a path into its config, `ranks` or `grid`; and what is drawn there. With
        `batches` a run has a point per validation, by the batches before it, of the metric `perplexity`
    metrics: instead of both, a metric by point; share: these in percent of their sum, curve by curve
    names: how a value of key is drawn; axis: what the points count; unit: of the values, as in the metric if left out
    curve: what names a run's curve, a path into its config, `system`, or `grid`: the system on its grid
    relative: each curve is divided by its own value at this point
    paper: ids of claims by curve and point; their values are divided likewise
    """
    if not isinstance(row, dict):
        raise InvalidRequest(
            f"a panel is {told(row)}", rule="a mapping", legal="{title: T, key: grid, metric: batch_time}"
        )
    for name in row:
        if name not in FIELDS:
            raise UnknownName("field of a panel", str(name)[:LONG], FIELDS)
    texts = {name: _text(row, name) for name in ("title", "unit", "axis", "key", "metric", "curve")}
    key, metric = texts["key"], texts["metric"]
    names, metrics, share, relative = (
        _texts(row, "names"),
        _texts(row, "metrics"),
        row.get("share"),
        row.get("relative"),
    )
    if not texts["title"]:
        raise InvalidRequest("a panel has no title", rule="a text")
    if bool(key) != bool(metric) or bool(metric) == bool(metrics):
        raise InvalidRequest(
            "what is drawn is not told", rule="key and metric, or metrics", legal="{pipeline: pipeline_time}"
        )
    if len(metrics) > MOST_METRICS:
        raise InvalidRequest(f"a panel has {len(metrics)} metrics", rule=f"at most {MOST_METRICS}")
    if not (share is None or isinstance(share, bool)) or (share and not metrics):
        raise InvalidRequest(f"share is {told(share)}", rule="true or false, and true beside metrics alone")
    if relative is not None and not word(relative):
        raise InvalidRequest(f"relative is {told(relative)}", rule="the name of a point")
    if key == BATCHES and metric != derive.PERPLEXITY:
        raise InvalidRequest(
            f"{metric} over {BATCHES}", rule="a value per validation", legal=f"metric: {derive.PERPLEXITY}"
        )
    if share and relative is not None:
        raise InvalidRequest("a panel has both share and relative", rule="one of the two")
    spec = PanelSpec(
        title=texts["title"],
        unit=texts["unit"],
        axis=texts["axis"] or key,
        key=key,
        names=names,
        metrics=metrics or {"": metric},
        curve=texts["curve"] or "system",
        relative="",
        share=bool(share),
        paper=_paper(row),
    )
    return spec if relative is None else replace(spec, relative=spec.shown(word(relative)))


def _paper(row: Mapping[str, Json]) -> dict[str, dict[str, Json]]:
    mapping = {} if row.get("paper") is None else row["paper"]
    if not isinstance(mapping, dict) or not all(isinstance(points, dict) for points in mapping.values()):
        raise InvalidRequest(
            f"paper is {told(mapping)}", rule="ids of claims by curve and point", legal='{axonn: {"2": CLAIM}}'
        )
    return {
        str(curve)[:LONG]: {str(point)[:LONG]: claim for point, claim in points.items()}
        for curve, points in mapping.items()
    }


def _text(row: Mapping[str, Json], name: str) -> str:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{name} is {told(value)}", rule="a text")
    return (value or "").strip()[:200]


def _texts(row: Mapping[str, Json], name: str) -> dict[str, str]:
    texts = {} if row.get(name) is None else row[name]
    if not isinstance(texts, dict) or not all(isinstance(text, str) and text.strip() for text in texts.values()):
        raise InvalidRequest(f"{name} is {told(texts)}", rule="a mapping to texts")
    return {str(key)[:LONG]: text.strip()[:LONG] for key, text in texts.items()}


def told(value: Any) -> str:
    """Anything, as a few words of a sentence."""
    return reprlib.repr(value)[:LONG]


def word(value: Any) -> str:
    """A single value as the name of a point or a curve; empty for any other value."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value.strip()[:LONG] or "none"
    if not isinstance(value, int | float):
        return ""
    try:
        return str(value)[:LONG] if math.isfinite(value) else ""
    except OverflowError:
        return ""


@dataclass(frozen=True, slots=True)
class Printed:
    """A published value as the panel shows it, and whose it is."""

    value: float
    claim: Claim


Paper = Mapping[str, Mapping[str, Printed]]  # by curve and point


def factor(unit: str, own: str) -> float:
    """The factor from `unit` to `own`; nan for another quantity."""
    if unit == own:
        return 1.0
    return next((sizes[unit] / sizes[own] for sizes in (SECONDS, _BYTES) if {unit, own} <= sizes.keys()), math.nan)


def published(asked: PanelSpec, own: str, unit: str, claims: Mapping[str, Claim]) -> tuple[Paper, list[str]]:
    """The published values by curve and point, as the panel shows them, and the problems of the other values."""
    printed: dict[str, dict[str, Printed]] = {}
    faults: list[str] = []
    for curve, points in asked.paper.items():
        raw: dict[str, Printed] = {}
        done: dict[str, Printed] = {}  # a claim that counts in what the panel shows is not divided once more
        for spelled, name in points.items():
            point, where = asked.shown(spelled), f"paper, {curve} at {spelled}"
            claim = claims.get(name) if isinstance(name, str) else None
            if not isinstance(name, str):
                faults.append(f"{where}: {told(name)} is the id of no claim; rule: published values stand in claims")
            elif claim is None:
                faults.append(f"{where}: there is no claim {name[:LONG]!r}")
            elif not isinstance(claim.value, float):
                faults.append(f"{where}: claim {claim.id} is no number")
            elif point in raw or point in done:
                faults.append(f"{where}: the point has a claim already")
            elif math.isfinite(times := factor(claim.unit, own)):
                raw[point] = Printed(claim.value * times, claim)
            elif claim.unit == unit:
                done[point] = Printed(claim.value, claim)
            else:
                faults.append(f"{where}: claim {claim.id} is in {claim.unit!r}, the panel in {own!r}")
        whole = {asked.shown(name) for name in asked.metrics} <= raw.keys()
        below, size = 1.0, 1.0
        if asked.relative:
            below = raw[asked.relative].value if asked.relative in raw else math.nan
        elif asked.share:
            below, size = sum(one.value for one in raw.values()) if whole else math.nan, 100.0
        if raw and not below > 0:
            faults.append(f"paper, {curve}: there is nothing to divide by")
            raw = {}
        done |= {point: replace(one, value=size * one.value / below) for point, one in raw.items()}
        if done:
            printed[curve] = done
    return printed, faults
