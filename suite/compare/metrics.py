"""Decides what became of each metric and each loss of runs that both sets have.

Times and rates of a clock are judged by chance and size (statistics); what is counted, simulated or computed is the
same every time, so there any difference beyond rounding is a change. Losses are compared batch by batch: seeds are
part of the config, and the same seed trains the same network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from suite.compare import statistics
from suite.compare.pairs import Name, Pair
from suite.compare.sets import Sample
from suite.compare.statistics import Effect, Verdict
from suite.compare.turns import lowest
from suite.core.record import Metric, Outcome, Record, Source

THRESHOLD = 0.05
LOSSES = ("loss", "validation_loss")
_LOSS_ROUNDING = 1e-5  # relative, of float32: what the suite's systems agree within
_FEWEST = 4  # repeats a side: of 3 and 3 no order is rarer than one in ten


@dataclass(frozen=True, slots=True)
class Rule:
    """What counts as a change. metrics: those that are judged, all where it is empty; scale: by the reference workload
    (None: where that lessens the spread)."""

    threshold: float = THRESHOLD
    level: float = statistics.LEVEL
    metrics: tuple[str, ...] = ()
    scale: bool | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of one run. effect: None for what is exact; scaled: whether by the reference workload; other: the
    ratio by the other way, where there is one; quiet: of the quickest quarter of repeats."""

    name: Name
    metric: str
    unit: str
    better: str
    a: float
    b: float
    verdict: Verdict
    why: str = ""
    effect: Effect | None = None
    scaled: bool = False
    other: float | None = None
    quiet: float | None = None

    @property
    def ratio(self) -> float:
        return self.effect.ratio if self.effect else (self.b / self.a if self.a else math.inf)


@dataclass(frozen=True, slots=True)
class Timed:
    """Repeats of one metric on both sides, as they are, and scaled by the reference workload where it was timed."""

    pair: Pair
    metric: str
    kind: Metric
    raw: tuple[list[list[float]], list[list[float]]]
    scaled: tuple[list[list[float]], list[list[float]]] | None

    @property
    def steadier(self) -> bool:
        """Whether scaling lessens the spread of repeats about their side's middle."""
        return self.scaled is not None and _residual(self.scaled) < _residual(self.raw)


def judged(pairs: Sequence[Pair], rule: Rule) -> list[Change]:
    """Every metric that both sides have. Holm's levels are over all that go by chance."""
    found: list[Change | Timed] = []
    for one in pairs:
        first, other = one.a[0].record, one.b[0].record
        for name in [name for name in first.metrics if name in other.metrics]:
            if not rule.metrics or name in rule.metrics:
                found += [item for item in [_metric(one, name)] if item is not None]
        found += [item for name in LOSSES for item in [_loss(one, name)] if item and _wanted(name, rule)]
    tests = [item for item in found if isinstance(item, Timed)]
    results = [_tested(item, rule) for item in tests]
    adjusted = dict(zip(map(id, tests), statistics.holm([effect.p for effect, _, _ in results]), strict=True))
    effects = dict(zip(map(id, tests), results, strict=True))
    return [
        item if isinstance(item, Change) else _decided(item, *effects[id(item)], adjusted[id(item)], rule)
        for item in found
    ]


def _wanted(name: str, rule: Rule) -> bool:
    return not rule.metrics or name in rule.metrics


def _metric(one: Pair, name: str) -> Change | Timed | None:
    kind = one.a[0].record.metrics[name]
    sides = [
        [_finite(s.record.metrics[name].values) for s in side if name in s.record.metrics] for side in (one.a, one.b)
    ]
    if not (kind.unit and all(any(values) for values in sides)):
        return None
    clock = one.a[0].record.source in (Source.MEASURED, Source.EMULATED) and _timed(kind.unit)
    alike = all(map(_constant, sides))
    if alike and (not clock or min(map(len, sides)) > 1):
        return _exact(one, name, kind, sides[0][0], sides[1][0])
    if not kind.better:
        return None
    a, b = (_repeats(side, name) for side in (one.a, one.b))
    if min(*map(min, a), *map(min, b)) <= 0:
        return None  # a ratio of nothing: parts of a batch that a turn has no spans of
    return Timed(one, name, kind, (a, b), _scaled(one, name, kind))


def _timed(unit: str) -> bool:
    return unit == "s" or unit.endswith("/s")


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _constant(repeats: Sequence[Sequence[float]]) -> bool:
    return all(_equal(values, repeats[0], statistics.ROUNDING) for values in repeats)


def _equal(a: Sequence[float], b: Sequence[float], within: float) -> bool:
    return len(a) == len(b) and bool(np.allclose(a, b, rtol=within, atol=0))


def _exact(one: Pair, name: str, kind: Metric, a: Sequence[float], b: Sequence[float]) -> Change:
    ours, theirs = float(np.median(a)), float(np.median(b))
    if _equal(a, b, statistics.ROUNDING):
        return Change(one.name, name, kind.unit, kind.better, ours, theirs, Verdict.SAME, "exact")
    if ours == theirs:  # their order, or how many there are
        return Change(one.name, name, kind.unit, kind.better, ours, theirs, Verdict.CHANGED, "exact: other values")
    found = statistics.directed(math.inf if theirs > ours else 0.0, kind.better)
    return Change(one.name, name, kind.unit, kind.better, ours, theirs, found, "exact")


def _repeats(side: Sequence[Sample], name: str) -> list[list[float]]:
    """What is resampled: records; of one record its turns, as the config tells them."""
    found = [values for s in side if name in s.record.metrics and (values := _finite(s.record.metrics[name].values))]
    return found if len(side) > 1 else turns(side[0].record, found[0])


def turns(record: Record, values: list[float]) -> list[list[float]]:
    plan: Any = record.config.get("measure", {})
    count = plan.get("turns") if isinstance(plan, dict) else None
    if not isinstance(count, int) or not 0 < count <= len(values) or len(values) % count:
        return [values]
    size = len(values) // count
    return [values[start : start + size] for start in range(0, len(values), size)]


def _scaled(one: Pair, name: str, kind: Metric) -> tuple[list[list[float]], list[list[float]]] | None:
    """Divided by how slow the machine was around each repeat, against its middle over both sides."""
    samples = [s for s in (*one.a, *one.b) if name in s.record.metrics and _finite(s.record.metrics[name].values)]
    parts = set.intersection(*(set(s.reference) for s in samples))
    if not parts or min(len(one.a), len(one.b)) < 2:
        return None
    slow = {id(s): math.exp(sum(math.log(s.reference[part]) for part in parts) / len(parts)) for s in samples}
    middle = float(np.median(list(slow.values())))

    def side(which: Sequence[Sample]) -> list[list[float]]:
        factors = [middle / slow[id(s)] if kind.unit == "s" else slow[id(s)] / middle for s in which if id(s) in slow]
        return [[value * factor for value in v] for v, factor in zip(_repeats(which, name), factors, strict=True)]

    return side(one.a), side(one.b)


def _residual(sides: tuple[list[list[float]], list[list[float]]]) -> float:
    centred = [np.log(middles) - np.median(np.log(middles)) for middles in map(statistics.medians, sides)]
    return statistics.spread(np.exp(np.concatenate(centred)).tolist())


def _tested(item: Timed, rule: Rule) -> tuple[Effect, bool, float | None]:
    """The effect, whether it is scaled, and the ratio by the other way."""
    use = item.steadier if rule.scale is None else rule.scale and item.scaled is not None
    chosen, spare = (item.scaled, item.raw) if use else (item.raw, item.scaled)
    assert chosen is not None
    other = np.median(statistics.medians(spare[1])) / np.median(statistics.medians(spare[0])) if spare else None
    return statistics.effect(*chosen, level=rule.level), use, None if other is None else float(other)


def _decided(item: Timed, found: Effect, scaled: bool, other: float | None, adjusted: float, rule: Rule) -> Change:
    verdict = statistics.verdict(found, adjusted, item.kind.better, threshold=rule.threshold, level=rule.level)
    why = ""
    if min(found.repeats) < _FEWEST:
        why = f"{found.repeats[0]} and {found.repeats[1]} repeats decide little: p is {found.least:.2g} at least"
    elif verdict is Verdict.UNDECIDED:
        why = f"p {adjusted:.2g} after Holm, delta {found.delta:+.2f}"
    a, b = (float(np.median(statistics.medians(side))) for side in item.raw)
    kind = item.kind
    return Change(
        item.pair.name, item.metric, kind.unit, kind.better, a, b, verdict, why, found, scaled, other, _quiet(item)
    )


def _quiet(item: Timed) -> float:
    """What is left of a machine in its quiet moments: the quickest quarter of repeats, each by its own."""
    sign = 1.0 if item.kind.better == "lower" else -1.0
    a, b = (lowest([np.quantile(sign * np.log(values), 0.25) for values in side]) for side in item.raw)
    return math.exp(sign * float(b - a))


# -- losses ---------------------------------------------------------------------------------------------------------


def _loss(one: Pair, name: str) -> Change | None:
    """Batch by batch, over as many as all repeats have; what repeats of one side differ by is no change."""
    sides = [
        [s.record.series.get(name) or [] for s in side if s.record.outcome is Outcome.OK] for side in (one.a, one.b)
    ]
    length = min((len(curve) for side in sides for curve in side), default=0)
    if not length or not all(sides):
        return None
    a, b = (np.array([curve[:length] for curve in side], float) for side in sides)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    own = max(float(np.ptp(side, axis=0).max()) for side in (a, b))
    middle, other = np.median(a, axis=0), np.median(b, axis=0)
    apart = np.abs(other - middle)
    last = (float(middle[-1]), float(other[-1]))
    if (apart <= _LOSS_ROUNDING * np.abs(middle) + 2 * own).all():
        return Change(one.name, name, "nat", "lower", *last, Verdict.SAME, f"{length} batches")
    batch = int(np.argmax(apart > _LOSS_ROUNDING * np.abs(middle) + 2 * own))
    why = f"from batch {batch} on: {middle[batch]:.6g} -> {other[batch]:.6g}"
    worse = last[1] - last[0] > _LOSS_ROUNDING * abs(last[0]) + 2 * own
    return Change(one.name, name, "nat", "lower", *last, Verdict.WORSE if worse else Verdict.CHANGED, why)
