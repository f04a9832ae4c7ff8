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
from suite.stats.interleaved import LOOKS, InterleavedResult, rules_out

THRESHOLD = 0.05
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


def decide_rounds(result: InterleavedResult, adjusted_p: float, better: str, rule: ChangeRule) -> ChangeVerdict:
    """Verdict on interleaved rounds.

    Args:
        result: The test of the rounds.
        adjusted_p: Its p-value, adjusted for the family of candidates and for all looks (`rounds_p`).
        better: "lower" or "higher".
        rule: Threshold and level.

    Returns:
        WORSE: a regression that matters. SAME: ruled out, or certain but smaller than the threshold. INCONCLUSIVE
        otherwise.
    """
    certain = adjusted_p < rule.level and result.is_worse(better)
    if certain and result.worsening(better) >= 1 + rule.threshold:
        return ChangeVerdict.WORSE
    return ChangeVerdict.SAME if certain or rules_out(result, rule.threshold) else ChangeVerdict.INCONCLUSIVE


def rounds_p(p: float) -> float:
    """A p-value of interleaved rounds, adjusted for the number of looks."""
    return min(1.0, LOOKS * p)


def exceeds_unpaired_threshold(effect: Effect, better: str, unpaired_threshold: float) -> ChangeVerdict:
    """Verdict without interleaved rounds: WORSE if a large effect exceeds the unpaired threshold, else SAME.

    Args:
        effect: Effect of the candidate.
        better: "lower" or "higher".
        unpaired_threshold: Relative change by which machines drift between nightly runs.
    """
    beyond = (effect.ratio if better == "lower" else 1 / effect.ratio) >= 1 + unpaired_threshold
    return ChangeVerdict.WORSE if beyond and abs(effect.delta) >= LARGE_DELTA else ChangeVerdict.SAME
