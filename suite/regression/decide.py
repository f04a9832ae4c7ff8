"""Verdicts on changes: every rule that calls a difference a change stands here.

A comparison of two sets of records decides by repeats (`decide_repeats`). A nightly run decides its judged times by
interleaved rounds of old and new code (`decide_rounds`), or by a larger, unpaired threshold if old code cannot run
(`exceeds_unpaired_threshold`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from suite.stats.inference import LEVEL, Effect

THRESHOLD = 0.05
MIN_ROUNDS = 6  # before a regression can be ruled out, or a time be better
LARGE_DELTA = 0.474  # Cliff's delta of a large effect (Romano and others, 2006)


class ChangeVerdict(StrEnum):
    """Verdict on one metric. CHANGED: another value of a metric without a better direction."""

    WORSE = "worse"
    BETTER = "better"
    CHANGED = "changed"
    INCONCLUSIVE = "inconclusive"
    SAME = "no change"


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """Criteria of a change.

    Attributes:
        threshold: Smallest relative change that matters.
        level: Familywise probability of a false alarm.
        metrics: Names of the judged metrics; empty for all.
    """

    threshold: float = THRESHOLD
    level: float = LEVEL
    metrics: tuple[str, ...] = ()

    def judges(self, metric: str) -> bool:
        """Whether the metric is judged."""
        return not self.metrics or metric in self.metrics


def direction(ratio: float, better: str) -> ChangeVerdict:
    """Verdict on a change by `ratio` (B over A) of a metric whose better direction is "lower", "higher" or ""."""
    if better not in ("lower", "higher"):
        return ChangeVerdict.CHANGED
    return ChangeVerdict.WORSE if (ratio > 1) == (better == "lower") else ChangeVerdict.BETTER


def decide_repeats(effect: Effect, adjusted_p: float, better: str, rule: ChangeRule) -> ChangeVerdict:
    """Verdict on the effect over repeats.

    A change satisfies four conditions: the adjusted p-value is below the level, the interval excludes 1, the ratio is
    beyond the threshold, and Cliff's delta is large. There is no change if the interval lies within the threshold.
    """
    limit = math.log1p(rule.threshold)
    matters = abs(math.log(effect.ratio)) >= limit
    excludes_equal = effect.low > 1 or effect.high < 1
    if matters and excludes_equal and adjusted_p < rule.level and abs(effect.delta) >= LARGE_DELTA:
        return direction(effect.ratio, better)
    within = math.log(effect.low) >= -limit and math.log(effect.high) <= limit
    return ChangeVerdict.SAME if within and min(effect.repeats) > 1 else ChangeVerdict.INCONCLUSIVE


def decide_rounds(rounds: Effect, adjusted_p: float, better: str, rule: ChangeRule) -> ChangeVerdict:
    """Verdict on interleaved rounds.

    Args:
        rounds: Effect of the rounds.
        adjusted_p: Its p-value, adjusted for the family of candidates.
        better: "lower" or "higher".
        rule: Threshold and level.

    Returns:
        WORSE: a regression that matters. BETTER: enough rounds, whose whole interval is better and whose ratio is
        better by the threshold. SAME: a regression is ruled out, or certain but smaller than the threshold.
        INCONCLUSIVE otherwise.
    """
    ends, ratio = [worsening(end, better) for end in (rounds.low, rounds.high)], worsening(rounds.ratio, better)
    if rounds.repeats[0] >= MIN_ROUNDS and max(ends) < 1 and ratio * (1 + rule.threshold) <= 1:
        return ChangeVerdict.BETTER
    certain = adjusted_p < rule.level and min(ends) > 1
    if certain and ratio >= 1 + rule.threshold:
        return ChangeVerdict.WORSE
    return ChangeVerdict.SAME if certain or rules_out(rounds, better, rule) else ChangeVerdict.INCONCLUSIVE


def rules_out(rounds: Effect, better: str, rule: ChangeRule) -> bool:
    """Whether rounds exclude a worsening as large as the threshold. Stopping for this raises no false alarm."""
    largest = max(worsening(end, better) for end in (rounds.low, rounds.high))
    return rounds.repeats[0] >= MIN_ROUNDS and largest < 1 + rule.threshold


def planned_rounds(family: int, level: float, minimum: int) -> int:
    """Rounds whose rarest order passes Holm's level for `family` candidates with one round to spare."""
    return max(minimum, math.ceil(math.log2(max(1, family) / level)) + 1)


def worsening(ratio: float, better: str) -> float:
    """The ratio (B over A), above 1 if B is worse."""
    return ratio if better == "lower" else 1 / ratio


def exceeds_unpaired_threshold(effect: Effect, better: str, unpaired_threshold: float) -> ChangeVerdict:
    """Verdict without interleaved rounds: WORSE if a large effect exceeds the threshold, by which machines drift."""
    beyond = worsening(effect.ratio, better) >= 1 + unpaired_threshold
    return ChangeVerdict.WORSE if beyond and abs(effect.delta) >= LARGE_DELTA else ChangeVerdict.SAME
