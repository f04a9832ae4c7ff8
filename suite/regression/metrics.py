"""Change of each metric and each loss of the runs that both sets have.

Measured times and rates are compared statistically over several records per side, because rounds of one call share its
drift. Counted, simulated and computed values repeat exactly, so any difference beyond rounding is a change. Losses are
compared batch by batch: seeds are part of the config, and the same seed trains the same network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from suite.core.record import Metric, Outcome, Source
from suite.regression.decide import ChangeRule, ChangeVerdict, decide_repeats, direction
from suite.regression.matching import RunName, RunPair
from suite.report.load import StoredRecord
from suite.stats import inference
from suite.stats.inference import Effect

LOSSES = ("loss", "validation_loss")
_LOSS_ROUNDING = 1e-5  # relative, in float32: the suite's systems agree within it
_RATIO_RANGE = (1e-30, 1e30)  # of medians that have a finite ratio
SINGLE_RECORD = "one record on a side: machines drift from call to call by more than code does"

Repeats = list[list[float]]  # samples of each repeat


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of one run.

    Attributes:
        name: Name of the run.
        metric: Name of the metric.
        unit: Unit of the metric.
        better: "lower", "higher" or "".
        a: Median in A.
        b: Median in B.
        verdict: Whether B changed.
        why: Reason of the verdict.
        effect: Effect over repeats; None for an exact metric.
        config: Hash of the config, which distinguishes runs of one label.
    """

    name: RunName
    metric: str
    unit: str
    better: str
    a: float
    b: float
    verdict: ChangeVerdict
    why: str = ""
    effect: Effect | None = None
    config: str = ""

    @property
    def ratio(self) -> float:
        """B divided by A."""
        return self.effect.ratio if self.effect else (self.b / self.a if self.a else math.inf)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A metric that is not compared, or not completely. lost: A has it and B does not."""

    name: RunName
    metric: str
    why: str
    lost: bool = False

    def __str__(self) -> str:
        return f"{self.name} · {self.metric} {self.why}"


def compare_metrics(pairs: Sequence[RunPair], rule: ChangeRule) -> tuple[list[Change], list[Skipped]]:
    """Compare every judged metric of comparable runs. Holm's adjustment is over all metrics with several records."""
    rows: list[Change | Skipped] = []
    for pair in pairs:
        names = dict.fromkeys(name for sample in (*pair.a, *pair.b) for name in sample.record.metrics)
        rows += [row for name in names if rule.judges(name) for row in _pair_metric(pair, name, rule)]
        rows += [row for name in LOSSES if rule.judges(name) for row in _compare_losses(pair, name)]
    changes = [row for row in rows if isinstance(row, Change)]
    p = iter(inference.holm([change.effect.p for change in changes if change.effect and not change.why]))
    decided = [
        _decide(change, change.effect, next(p), rule) if change.effect and not change.why else change
        for change in changes
    ]
    return decided, [row for row in rows if isinstance(row, Skipped)]


def _pair_metric(pair: RunPair, name: str, rule: ChangeRule) -> list[Change | Skipped]:
    sides = [[s.record.metrics[name] for s in side if name in s.record.metrics] for side in (pair.a, pair.b)]
    kind = (sides[0] or sides[1])[0]
    values = [[finite for metric in side if (finite := _finite(metric.values))] for side in sides]
    if not (kind.unit and pair.both_succeeded):  # the metrics of a run that failed say nothing about the code
        return [] if not (kind.unit and all(values)) else _pair_values(pair, name, kind, values, rule)
    present = [any(metric.values for metric in side) for side in sides]
    if not all(present):
        return [Skipped(pair.name, name, f"is only in {'AB'[present[1]]}", lost=present[0])] if any(present) else []
    not_finite = [
        sum(len(metric.values) for metric in side) - sum(map(len, v)) for side, v in zip(sides, values, strict=True)
    ]
    if not values[0]:
        return [Skipped(pair.name, name, "has no finite number in A")] if values[1] else []
    if not values[1]:
        a = float(np.median(inference.medians(values[0])))
        why = f"none of {not_finite[1]} values in B is a finite number"
        return [_change(pair, name, kind, a, math.nan, ChangeVerdict.WORSE, why)]
    why = f"has {not_finite[0]} values in A and {not_finite[1]} in B that are no finite numbers"
    skipped = [Skipped(pair.name, name, why)] if not_finite[0] != not_finite[1] else []
    return [*_pair_values(pair, name, kind, values, rule), *skipped]


def _pair_values(
    pair: RunPair, name: str, kind: Metric, sides: list[Repeats], rule: ChangeRule
) -> list[Change | Skipped]:
    """The change of a metric. One with several records a side has no reason yet, as Holm's adjustment is over all."""
    measured = pair.a[0].record.source in (Source.MEASURED, Source.EMULATED) and _is_time_or_rate(kind.unit)
    if all(map(_is_constant, sides)) and (not measured or min(map(len, sides)) > 1):
        return [_compare_exact(pair, name, kind, sides[0][0], sides[1][0])]
    if not kind.better or not any(value for side in sides for values in side for value in values):
        return []  # without a better direction, or always zero: a part of a batch that this system does not have
    a, b = (_repeats(side, name, by_round=max(map(len, sides)) == 1) for side in (pair.a, pair.b))
    low, high = _RATIO_RANGE
    if not all(low < median < high for side in (a, b) for median in inference.medians(side)):
        return [Skipped(pair.name, name, "is not compared: there is no ratio to a repeat whose median is 0")]
    median_a, median_b = (float(np.median(inference.medians(side))) for side in (a, b))
    effect = inference.estimate_effect(a, b, level=rule.level)
    why = SINGLE_RECORD if min(map(len, sides)) < 2 else ""
    return [_change(pair, name, kind, median_a, median_b, ChangeVerdict.INCONCLUSIVE, why, effect)]


def _change(
    pair: RunPair,
    metric: str,
    kind: Metric,
    a: float,
    b: float,
    verdict: ChangeVerdict,
    why: str,
    effect: Effect | None = None,
) -> Change:
    return Change(pair.name, metric, kind.unit, kind.better, a, b, verdict, why, effect, pair.config)


def _is_time_or_rate(unit: str) -> bool:
    return unit == "s" or unit.endswith("/s")


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _is_constant(repeats: Sequence[Sequence[float]]) -> bool:
    return all(_equal(values, repeats[0]) for values in repeats)


def _equal(a: Sequence[float], b: Sequence[float]) -> bool:
    return len(a) == len(b) and bool(np.allclose(a, b, rtol=inference.ROUNDING, atol=0))


def _compare_exact(pair: RunPair, name: str, kind: Metric, a: Sequence[float], b: Sequence[float]) -> Change:
    median_a, median_b = float(np.median(a)), float(np.median(b))
    verdict, why = direction(math.inf if median_b > median_a else 0.0, kind.better), "exact"
    if _equal(a, b):
        verdict = ChangeVerdict.SAME
    elif median_a == median_b:  # another order, or another number of values
        verdict, why = ChangeVerdict.CHANGED, "exact: other values"
    return _change(pair, name, kind, median_a, median_b, verdict, why)


def _repeats(side: Sequence[StoredRecord], name: str, *, by_round: bool = False) -> Repeats:
    """Samples of each record or, with `by_round`, of each round of the only record."""
    samples = [s for s in side if name in s.record.metrics and _finite(s.record.metrics[name].values)]
    values = [_finite(s.record.metrics[name].values) for s in samples]
    return inference.samples_by_round(samples[0].record, values[0]) if by_round and samples else values


def _decide(change: Change, effect: Effect, adjusted_p: float, rule: ChangeRule) -> Change:
    verdict, why = decide_repeats(effect, adjusted_p, change.better, rule), ""
    if min(effect.repeats) < inference.MIN_REPEATS:
        why = f"{effect.repeats[0]} and {effect.repeats[1]} repeats decide little: p is {effect.min_p:.2g} at least"
    elif verdict is ChangeVerdict.INCONCLUSIVE:
        why = f"p {adjusted_p:.2g} after Holm, delta {effect.delta:+.2f}"
    return replace(change, verdict=verdict, why=why)


# Losses


def _compare_losses(pair: RunPair, name: str) -> list[Change | Skipped]:
    """Compare losses batch by batch, up to the shortest repeat. Differences between repeats of a side are tolerated."""
    ran = [[s.record.series.get(name) for s in side if s.record.outcome is Outcome.OK] for side in (pair.a, pair.b)]
    curves = [[curve for curve in side if curve] for side in ran]
    if not all(curves):
        only_one = all(ran) and any(curves)
        return [Skipped(pair.name, name, f"is only in {'AB'[bool(curves[1])]}", bool(curves[0]))] if only_one else []
    lengths = [min(map(len, side)) for side in curves]
    skipped = []
    if lengths[0] != lengths[1]:
        why = f"has {lengths[0]} batches in A, {lengths[1]} in B"
        skipped = [Skipped(pair.name, name, why, lengths[1] < lengths[0])]
    a, b = (np.array([curve[: min(lengths)] for curve in side], float) for side in curves)
    if not np.isfinite(a).all():
        return [*skipped, Skipped(pair.name, name, "is not compared: not all of A is finite")]
    return [replace(_compare_curves(pair.name, name, a, b), config=pair.config), *skipped]


def _compare_curves(run: RunName, name: str, a: Any, b: Any) -> Change:
    """Compare arrays of shape (repeats, batches); `a` is finite. A single diverged repeat of several is
    inconclusive."""
    median_a, median_b = np.median(a, axis=0), np.median(b, axis=0)
    last = (float(median_a[-1]), float(median_b[-1]))
    finite = np.isfinite(b)
    if not finite.all():
        diverged = int((~finite).any(axis=1).sum())
        verdict = ChangeVerdict.WORSE if diverged > 1 or diverged == len(b) else ChangeVerdict.INCONCLUSIVE
        batch = int(np.argmin(finite.all(axis=0)))
        why = f"from batch {batch} on no finite number, in {diverged} of {len(b)} repeats of B"
        return Change(run, name, "nat", "lower", *last, verdict, why)
    spread = max(float(np.ptp(side, axis=0).max()) for side in (a, b))
    tolerance = _LOSS_ROUNDING * np.abs(median_a) + 2 * spread
    differs = np.abs(median_b - median_a) > tolerance
    if not differs.any():
        return Change(run, name, "nat", "lower", *last, ChangeVerdict.SAME, f"{len(median_a)} batches")
    batch = int(np.argmax(differs))
    why = f"from batch {batch} on: {median_a[batch]:.6g} -> {median_b[batch]:.6g}"
    worse = last[1] - last[0] > tolerance[-1]
    return Change(run, name, "nat", "lower", *last, ChangeVerdict.WORSE if worse else ChangeVerdict.CHANGED, why)
