"""Change of each metric and each loss of runs that both sets have.

Times and rates of a clock are judged by chance and size (suite.stats), of several records a side: what drifts between
two calls is in every turn of a call alike. Counted, simulated or computed numbers are the same every time, so any
difference beyond rounding is a change. Losses are compared batch by batch: seeds are part of the config, and the
same seed trains the same network. Metrics that cannot be compared are listed with the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from suite.core.record import Metric, Outcome, Source
from suite.regression.compare.matching import Name, Pair
from suite.regression.compare.record_sets import Sample
from suite.regression.compare.rounds import lowest
from suite.stats import inference
from suite.stats.inference import ChangeVerdict, Effect

THRESHOLD = 0.05
LOSSES = ("loss", "validation_loss")
_LOSS_ROUNDING = 1e-5  # relative, of float32: what the suite's systems agree within
_BOUNDS = (1e-30, 1e30)  # of what has a ratio: beyond, a quotient may be no number
ALONE = "one record on a side: machines drift from call to call by more than code does"


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """Criteria of a change.

    Attributes:
        metrics: The judged metrics, all where it is empty.
        scale: By the reference workload (None: where that lessens the spread).
    """

    threshold: float = THRESHOLD
    level: float = inference.LEVEL
    metrics: tuple[str, ...] = ()
    scale: bool | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of one run.

    Attributes:
        effect: None for an exact metric.
        scaled: Whether by the reference workload.
        other: The ratio by the other way, where there is one.
        quiet: Of the quickest quarter of repeats.
        config: Names the run where labels are alike.
    """

    name: Name
    metric: str
    unit: str
    better: str
    a: float
    b: float
    verdict: ChangeVerdict
    why: str = ""
    effect: Effect | None = None
    scaled: bool = False
    other: float | None = None
    quiet: float | None = None
    config: str = ""

    @property
    def ratio(self) -> float:
        return self.effect.ratio if self.effect else (self.b / self.a if self.a else math.inf)


@dataclass(frozen=True, slots=True)
class Left:
    """A metric that is not compared, or not all of it. lost: whether A has it and B does not."""

    name: Name
    metric: str
    why: str
    lost: bool = False

    def __str__(self) -> str:
        return f"{self.name} · {self.metric} {self.why}"


@dataclass(frozen=True, slots=True)
class RepeatPair:
    """Repeats of one metric on both sides, as they are, and scaled by the reference workload where it was timed.
    alone: whether a side has one record, so that the repeats are turns of one call, or no repeats at all."""

    pair: Pair
    metric: str
    kind: Metric
    raw: tuple[list[list[float]], list[list[float]]]
    scaled: tuple[list[list[float]], list[list[float]]] | None
    alone: bool = False

    @property
    def steadier(self) -> bool:
        """Whether scaling lessens the spread of repeats about their side's middle."""
        return self.scaled is not None and _residual(self.scaled) < _residual(self.raw)


def judged(pairs: Sequence[Pair], rule: ChangeRule) -> tuple[list[Change], list[Left]]:
    """Every metric that both sides have, and the metrics that are left out. Holm's levels are over all that go by
    chance.
    """
    outcomes: list[Change | RepeatPair | Left] = []
    for one in pairs:
        names = dict.fromkeys(name for sample in (*one.a, *one.b) for name in sample.record.metrics)
        outcome_list = [outcome for name in names if _wanted(name, rule) for outcome in _metric(one, name)]
        outcome_list += [outcome for name in LOSSES if _wanted(name, rule) for outcome in _loss(one, name)]
        outcomes += [
            replace(outcome, config=one.config) if isinstance(outcome, Change) else outcome for outcome in outcome_list
        ]
    tests = [outcome for outcome in outcomes if isinstance(outcome, RepeatPair)]
    effects = {id(outcome): _tested(outcome, rule) for outcome in tests}
    several = [outcome for outcome in tests if not outcome.alone]
    p = inference.holm([effects[id(outcome)][0].p for outcome in several])
    adjusted = dict(zip(map(id, several), p, strict=True))
    changes = [
        _decided(outcome, *effects[id(outcome)], adjusted.get(id(outcome), 1.0), rule)
        if isinstance(outcome, RepeatPair)
        else outcome
        for outcome in outcomes
        if not isinstance(outcome, Left)
    ]
    return changes, [outcome for outcome in outcomes if isinstance(outcome, Left)]


def _wanted(name: str, rule: ChangeRule) -> bool:
    return not rule.metrics or name in rule.metrics


def _metric(one: Pair, name: str) -> list[Change | RepeatPair | Left]:
    sides = [[s.record.metrics[name] for s in side if name in s.record.metrics] for side in (one.a, one.b)]
    kind = (sides[0] or sides[1])[0]
    values = [[finite for metric in side if (finite := _finite(metric.values))] for side in sides]
    if not (kind.unit and one.went_well):  # what a run that ended otherwise has left says nothing of the code
        return [] if not (kind.unit and all(values)) else _compared(one, name, kind, values)
    has_values = [any(metric.values for metric in side) for side in sides]
    if not all(has_values):
        return (
            [Left(one.name, name, f"is only in {'AB'[has_values[1]]}", lost=has_values[0])] if any(has_values) else []
        )
    odd = [sum(len(metric.values) for metric in side) - sum(map(len, v)) for side, v in zip(sides, values, strict=True)]
    if not values[0]:
        return [Left(one.name, name, "has no finite number in A")] if values[1] else []
    if not values[1]:
        a = float(np.median(inference.medians(values[0])))
        why = f"none of {odd[1]} values in B is a finite number"
        return [Change(one.name, name, kind.unit, kind.better, a, math.nan, ChangeVerdict.WORSE, why)]
    more = f"has {odd[0]} values in A and {odd[1]} in B that are no finite numbers"
    return [*_compared(one, name, kind, values), *([Left(one.name, name, more)] if odd[0] != odd[1] else [])]


def _compared(one: Pair, name: str, kind: Metric, sides: list[list[list[float]]]) -> list[Change | RepeatPair | Left]:
    clock = one.a[0].record.source in (Source.MEASURED, Source.EMULATED) and _timed(kind.unit)
    if all(map(_constant, sides)) and (not clock or min(map(len, sides)) > 1):
        return [_exact(one, name, kind, sides[0][0], sides[1][0])]
    if not kind.better or not any(value for side in sides for values in side for value in values):
        return []  # neither better nor worse, or never anything: a part of a batch that this system has not
    alone = min(map(len, sides)) < 2
    a, b = (_repeats(side, name, alone=max(map(len, sides)) == 1) for side in (one.a, one.b))
    if not all(_BOUNDS[0] < middle < _BOUNDS[1] for side in (a, b) for middle in inference.medians(side)):
        return [Left(one.name, name, "is not compared: there is no ratio to a repeat whose middle is 0")]
    return [RepeatPair(one, name, kind, (a, b), None if alone else _scaled(one, name, kind), alone)]


def _timed(unit: str) -> bool:
    return unit == "s" or unit.endswith("/s")


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _constant(repeats: Sequence[Sequence[float]]) -> bool:
    return all(_equal(values, repeats[0], inference.ROUNDING) for values in repeats)


def _equal(a: Sequence[float], b: Sequence[float], within: float) -> bool:
    return len(a) == len(b) and bool(np.allclose(a, b, rtol=within, atol=0))


def _exact(one: Pair, name: str, kind: Metric, a: Sequence[float], b: Sequence[float]) -> Change:
    ours, theirs = float(np.median(a)), float(np.median(b))
    if _equal(a, b, inference.ROUNDING):
        return Change(one.name, name, kind.unit, kind.better, ours, theirs, ChangeVerdict.SAME, "exact")
    if ours == theirs:  # their order, or how many there are
        return Change(
            one.name, name, kind.unit, kind.better, ours, theirs, ChangeVerdict.CHANGED, "exact: other values"
        )
    effect = inference.directed(math.inf if theirs > ours else 0.0, kind.better)
    return Change(one.name, name, kind.unit, kind.better, ours, theirs, effect, "exact")


def _repeats(side: Sequence[Sample], name: str, *, alone: bool = False) -> list[list[float]]:
    """Units of resampling: records or, for one record per side, its rounds, as the config describes them."""
    values_by_sample = {id(s): values for s in side if name in s.record.metrics and (values := _of(s, name))}
    only = next((s for s in side if id(s) in values_by_sample), None)
    return (
        inference.rounds(only.record, values_by_sample[id(only)]) if alone and only else list(values_by_sample.values())
    )


def _of(sample: Sample, name: str) -> list[float]:
    return _finite(sample.record.metrics[name].values)


def _scaled(one: Pair, name: str, kind: Metric) -> tuple[list[list[float]], list[list[float]]] | None:
    """Divided by how slow the machine was around each repeat, against its middle over both sides."""
    samples = [s for s in (*one.a, *one.b) if name in s.record.metrics and _of(s, name)]
    parts = set.intersection(*(set(s.reference) for s in samples))
    if not parts:
        return None
    slow = {id(s): math.exp(sum(math.log(s.reference[part]) for part in parts) / len(parts)) for s in samples}
    middle = float(np.median(list(slow.values())))

    def side(which: Sequence[Sample]) -> list[list[float]]:
        factors = [middle / slow[id(s)] if kind.unit == "s" else slow[id(s)] / middle for s in which if id(s) in slow]
        return [[value * factor for value in v] for v, factor in zip(_repeats(which, name), factors, strict=True)]

    return side(one.a), side(one.b)


def _residual(sides: tuple[list[list[float]], list[list[float]]]) -> float:
    centred = [np.log(middles) - np.median(np.log(middles)) for middles in map(inference.medians, sides)]
    return inference.spread(np.exp(np.concatenate(centred)).tolist())


def _tested(item: RepeatPair, rule: ChangeRule) -> tuple[Effect, bool, float | None]:
    """The effect, whether it is scaled, and the ratio by the other way."""
    use = item.steadier if rule.scale is None else rule.scale and item.scaled is not None
    chosen, spare = (item.scaled, item.raw) if use else (item.raw, item.scaled)
    assert chosen is not None
    other = np.median(inference.medians(spare[1])) / np.median(inference.medians(spare[0])) if spare else None
    return inference.effect(*chosen, level=rule.level), use, None if other is None else float(other)


def _decided(
    item: RepeatPair, found: Effect, scaled: bool, other: float | None, adjusted: float, rule: ChangeRule
) -> Change:
    verdict = inference.verdict(found, adjusted, item.kind.better, threshold=rule.threshold, level=rule.level)
    why = ""
    if item.alone:
        verdict, why = ChangeVerdict.UNDECIDED, ALONE
    elif min(found.repeats) < inference.FEWEST:
        why = f"{found.repeats[0]} and {found.repeats[1]} repeats decide little: p is {found.least:.2g} at least"
    elif verdict is ChangeVerdict.UNDECIDED:
        why = f"p {adjusted:.2g} after Holm, delta {found.delta:+.2f}"
    a, b = (float(np.median(inference.medians(side))) for side in item.raw)
    arguments = (
        item.pair.name,
        item.metric,
        item.kind.unit,
        item.kind.better,
        a,
        b,
        verdict,
        why,
        found,
        scaled,
        other,
    )
    return Change(*arguments, _quiet(item), item.pair.config)


def _quiet(item: RepeatPair) -> float | None:
    """Speed of a machine in its quiet moments: the fastest quarter of repeats, each side separately."""
    sign, quick = (1.0, 0.25) if item.kind.better == "lower" else (-1.0, 0.75)
    sides = [np.array([np.quantile(values, quick) for values in side]) for side in item.raw]
    if min(side.min() for side in sides) <= 0:  # parts of a batch that most turns have no spans of
        return None
    a, b = (lowest(sign * np.log(side)) for side in sides)
    return math.exp(sign * float(b - a))


# -- losses ---------------------------------------------------------------------------------------------------------


def _loss(one: Pair, name: str) -> list[Change | Left]:
    """Batch by batch, over as many as all repeats have; what repeats of one side differ by is no change."""
    ran = [[s.record.series.get(name) for s in side if s.record.outcome is Outcome.OK] for side in (one.a, one.b)]
    curves = [[curve for curve in side if curve] for side in ran]
    if not all(curves):
        comparable = all(ran) and any(curves)
        return [Left(one.name, name, f"is only in {'AB'[bool(curves[1])]}", bool(curves[0]))] if comparable else []
    lengths = [min(map(len, side)) for side in curves]
    length = min(lengths)
    skipped = []
    if lengths[0] != lengths[1]:
        skipped = [Left(one.name, name, f"has {lengths[0]} batches in A, {lengths[1]} in B", lengths[1] < lengths[0])]
    a, b = (np.array([curve[:length] for curve in side], float) for side in curves)
    if not np.isfinite(a).all():
        return [*skipped, Left(one.name, name, "is not compared: not all of A is finite")]
    return [_curves(one.name, name, a, b), *skipped]


def _curves(run: Name, name: str, a: Any, b: Any) -> Change:
    """Of repeats of curves, of which A's are finite. One repeat of several that is not is a suspicion."""
    middle, other = np.median(a, axis=0), np.median(b, axis=0)
    last = (float(middle[-1]), float(other[-1]))
    finite = np.isfinite(b)
    if not finite.all():
        odd = int((~finite).any(axis=1).sum())
        verdict = ChangeVerdict.WORSE if odd > 1 or odd == len(b) else ChangeVerdict.UNDECIDED
        why = f"from batch {int(np.argmin(finite.all(axis=0)))} on no finite number, in {odd} of {len(b)} repeats of B"
        return Change(run, name, "nat", "lower", *last, verdict, why)
    spread = max(float(np.ptp(side, axis=0).max()) for side in (a, b))
    apart = np.abs(other - middle)
    if (apart <= _LOSS_ROUNDING * np.abs(middle) + 2 * spread).all():
        return Change(run, name, "nat", "lower", *last, ChangeVerdict.SAME, f"{len(middle)} batches")
    batch = int(np.argmax(apart > _LOSS_ROUNDING * np.abs(middle) + 2 * spread))
    why = f"from batch {batch} on: {middle[batch]:.6g} -> {other[batch]:.6g}"
    worse = last[1] - last[0] > _LOSS_ROUNDING * abs(last[0]) + 2 * spread
    return Change(run, name, "nat", "lower", *last, ChangeVerdict.WORSE if worse else ChangeVerdict.CHANGED, why)
