"""Text and JSON of a comparison: regressions first, each with its interval."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from suite.core.reasons import headline
from suite.core.units import si
from suite.regression.comparison import Comparison, OutcomeChange
from suite.regression.decide import ChangeVerdict
from suite.regression.metrics import SINGLE_RECORD, Change

_UNREMARKABLE = (ChangeVerdict.INCONCLUSIVE, ChangeVerdict.SAME)


def verdict_word(change: Change) -> str:
    """The verdict, as "slower" or "faster" for times and rates."""
    if change.unit == "s" or change.unit.endswith("/s"):
        words = {ChangeVerdict.WORSE: "slower", ChangeVerdict.BETTER: "faster"}
        return words.get(change.verdict, change.verdict.value)
    return change.verdict.value


def percent(ratio: float) -> str:
    """A ratio as a change in percent."""
    if math.isnan(ratio):
        return "to no number"
    if not math.isfinite(ratio):
        return "from nothing"
    digits = 1 if abs(ratio - 1) >= 0.001 or ratio == 1 else 4
    return f"{100 * (ratio - 1):+.{digits}f} %"


def interval(change: Change) -> str:
    """The interval in percent; empty for an exact metric."""
    effect = change.effect
    return f"{percent(effect.low)} to {percent(effect.high)}" if effect else ""


def delta(change: Change) -> str:
    """Cliff's delta; empty for an exact metric."""
    return f"{change.effect.delta:+.2f}" if change.effect else ""


def reason(change: Change) -> str:
    """The reason of a verdict; empty for an exact metric."""
    return "" if change.why == "exact" else change.why


def sentence(change: Change) -> str:
    """One change in words, with run, metric, size and interval."""
    bounds = f" (interval {interval(change)}, delta {delta(change)})" if change.effect else ""
    values = f"{quantity(change.a, change.unit)} -> {quantity(change.b, change.unit)}"
    text = f"{change.name} · {change.metric} is {verdict_word(change)}: {percent(change.ratio)}{bounds}, {values}"
    return "; ".join(filter(None, (text, reason(change))))


def quantity(value: float, unit: str) -> str:
    """A value with its unit."""
    return f"{value:.6g}" if unit in ("nat", "percent", "BLEU") else si(value, unit, 4)


def text(comparison: Comparison, *, everything: bool = False) -> str:
    """The comparison as lines of text. everything: inconclusive and unchanged metrics too."""
    return "\n".join(_lines(comparison, everything))


def _lines(comparison: Comparison, everything: bool) -> Iterator[str]:
    yield f"A {comparison.a}  {comparison.commits[0] or 'no commit'}"
    yield f"B {comparison.b}  {comparison.commits[1] or 'no commit'}"
    yield from outcome_lines(comparison)
    listed = [c for c in comparison.sorted_changes if everything or c.verdict not in _UNREMARKABLE]
    if listed:
        yield ""
        yield from _table(listed)
    yield ""
    yield summary(comparison)
    yield from lost_lines(comparison)
    yield from (f"only in {comparison.b}: {name}" for name in comparison.only_b)
    yield from comparison.notes
    if comparison.is_regression:
        yield f"REGRESSION {commit_range(comparison.commits)}"


def commit_range(commits: tuple[str, str]) -> str:
    """Where a change was made, between two commits."""
    if not all(commits):
        return "between A and B, of which one has no commit"
    return f"in {commits[0]}..{commits[1]}" if commits[0] != commits[1] else f"within {commits[0]}"


def outcome_lines(comparison: Comparison) -> Iterator[str]:
    """A line per changed outcome."""
    return (f"{change.verdict.value}: {outcome_text(change)}" for change in comparison.outcomes)


def outcome_text(change: OutcomeChange) -> str:
    """A changed outcome, with the reason of the failure."""
    why = f": {headline(change.reason)}" if change.reason.strip() else ""
    return f"{change.name}: {change.a} -> {change.b}{why}"


def lost_lines(comparison: Comparison) -> Iterator[str]:
    """A line per run and metric of A that B lacks or changed."""
    for name, differences in comparison.not_comparable:
        yield f"not comparable: {name}: {'; '.join(map(str, differences))}"
    yield from (f"only in {comparison.a}: {name}" for name in comparison.only_a)
    yield from comparison.lost


def regressions(comparison: Comparison) -> list[str]:
    """A sentence per metric and outcome that is worse, with its range of commits."""
    worse = [*map(sentence, comparison.select(ChangeVerdict.WORSE))]
    worse += [outcome_text(change) for change in comparison.outcomes if change.verdict is ChangeVerdict.WORSE]
    return [f"{text} ({commit_range(comparison.commits)})" for text in worse]


def summary(comparison: Comparison) -> str:
    """Number of metrics by verdict."""
    counts = Counter(change.verdict for change in comparison.changes)
    if not counts:
        return "nothing could be compared"
    text = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in ChangeVerdict if counts[verdict])
    inconclusive = comparison.select(ChangeVerdict.INCONCLUSIVE)
    few = sum(change.why == SINGLE_RECORD or change.why.endswith("at least") for change in inconclusive)
    return f"{len(comparison.changes)} metrics compared: {text}{f' ({few} for too few repeats)' if few else ''}"


_HEADER = ("verdict", "run", "metric", "A", "B", "change", "interval", "delta", "")


def _table(changes: Sequence[Change]) -> Iterator[str]:
    rows = [_HEADER, *(cells(change) for change in changes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def cells(change: Change) -> tuple[str, ...]:
    """Verdict, run, metric, A, B, change, interval, delta and reason."""
    return (
        verdict_word(change),
        str(change.name),
        change.metric,
        quantity(change.a, change.unit),
        quantity(change.b, change.unit),
        percent(change.ratio),
        interval(change) or "exact",
        delta(change),
        reason(change),
    )


def as_data(comparison: Comparison) -> Any:
    """The comparison for JSON, with null for numbers that are not finite."""
    data = asdict(comparison)
    data |= {"exit": int(comparison.exit), "range": commit_range(comparison.commits)}
    for row, change in zip(data["changes"], comparison.changes, strict=True):
        row["ratio"] = change.ratio
    return _plain(data)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(element) for key, element in value.items()}
    return [_plain(element) for element in value] if isinstance(value, list | tuple) else value
