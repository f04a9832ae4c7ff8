"""Text and JSON of a comparison: regressions first, each with its interval."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from suite.core.reasons import headline
from suite.core.units import si
from suite.regression.compare.changes import Comparison
from suite.regression.compare.metrics import ALONE, Change
from suite.stats.inference import ChangeVerdict

_ORDER = (ChangeVerdict.WORSE, ChangeVerdict.BETTER, ChangeVerdict.CHANGED, ChangeVerdict.UNDECIDED, ChangeVerdict.SAME)


def word(change: Change) -> str:
    """The verdict as people say it of this unit."""
    if change.verdict not in (ChangeVerdict.WORSE, ChangeVerdict.BETTER):
        return change.verdict.value
    if change.unit == "s" or change.unit.endswith("/s"):
        return "slower" if change.verdict is ChangeVerdict.WORSE else "faster"
    return change.verdict.value


def percent(ratio: float) -> str:
    if math.isnan(ratio):
        return "to no number"
    if not math.isfinite(ratio):
        return "from nothing"
    digits = 1 if abs(ratio - 1) >= 0.001 or ratio == 1 else 4
    return f"{100 * (ratio - 1):+.{digits}f} %"


def interval(change: Change) -> str:
    effect = change.effect
    return f"{percent(effect.low)} to {percent(effect.high)}" if effect else ""


def sentence(change: Change) -> str:
    """One change in words, with run, metric, size and interval."""
    bounds = f" (interval {interval(change)}, delta {change.effect.delta:+.2f})" if change.effect else ""
    values = f"{quantity(change.a, change.unit)} -> {quantity(change.b, change.unit)}"
    why = f"; {change.why}" if change.why and change.why != "exact" else ""
    return f"{change.name} · {change.metric} is {word(change)}: {percent(change.ratio)}{bounds}, {values}{why}"


def quantity(value: float, unit: str) -> str:
    return f"{value:.6g}" if unit in ("nat", "percent", "BLEU") else si(value, unit, 4)


def text(found: Comparison, *, everything: bool = False) -> str:
    return "\n".join(_lines(found, everything))


def _lines(found: Comparison, everything: bool) -> Iterator[str]:
    yield f"A {found.a}  {found.commits[0] or 'no commit'}"
    yield f"B {found.b}  {found.commits[1] or 'no commit'}"
    yield from ended(found)
    listed = [change for verdict in _ORDER for change in found.of(verdict)]
    if not everything:
        listed = [change for change in listed if change.verdict not in (ChangeVerdict.UNDECIDED, ChangeVerdict.SAME)]
    if listed:
        yield ""
        yield from _table(listed)
    yield ""
    yield summary(found)
    for name, differs in found.apart:
        yield f"not comparable: {name}: {'; '.join(map(str, differs))}"
    for side, names in (("A", found.only_a), ("B", found.only_b)):
        yield from (f"only in {side}: {name}" for name in names)
    yield from found.lost
    yield from found.notes
    worse = found.of(ChangeVerdict.WORSE)
    if worse or any(ending.verdict is ChangeVerdict.WORSE for ending in found.ended):
        yield f"REGRESSION {commit_range(found.commits)}"


def commit_range(commits: tuple[str, str]) -> str:
    if not all(commits):
        return "between the two; not both tell their commit"
    return f"in {commits[0]}..{commits[1]}" if commits[0] != commits[1] else f"within {commits[0]}"


def ended(found: Comparison) -> Iterator[str]:
    for ending in found.ended:
        why = f": {headline(ending.reason)}" if ending.reason.strip() else ""
        yield f"{ending.verdict.value}: {ending.name}: {ending.a} -> {ending.b}{why}"


def summary(found: Comparison) -> str:
    counts = Counter(change.verdict for change in found.changes)
    counts_text = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in _ORDER if counts[verdict])
    few = sum(change.why == ALONE or change.why.endswith("at least") for change in found.of(ChangeVerdict.UNDECIDED))
    why = f" ({few} for want of repeats)" if few else ""
    return f"{len(found.changes)} metrics compared: {counts_text}{why}" if counts_text else "nothing could be compared"


_HEADS = ("verdict", "run", "metric", "A", "B", "change", "interval", "delta", "")


def _table(changes: Sequence[Change]) -> Iterator[str]:
    rows = [_HEADS, *(cells(change) for change in changes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def cells(change: Change) -> tuple[str, ...]:
    return (
        word(change),
        str(change.name),
        change.metric,
        quantity(change.a, change.unit),
        quantity(change.b, change.unit),
        percent(change.ratio),
        interval(change) or "exact",
        f"{change.effect.delta:+.2f}" if change.effect else "",
        _note(change),
    )


def _note(change: Change) -> str:
    scaled = ""
    if change.other is not None:
        kind = "scaled by the reference" if change.scaled else "as timed"
        scaled = f"{kind}; {'as timed' if change.scaled else 'scaled'} {percent(change.other)}"
    return "; ".join(filter(None, (scaled, "" if change.why == "exact" else change.why)))


def as_json(found: Comparison) -> str:
    data = asdict(found)
    data |= {"exit": int(found.exit), "range": commit_range(found.commits)}
    for row, change in zip(data["changes"], found.changes, strict=True):
        row["ratio"] = change.ratio
    return json.dumps(_plain(data), indent=1, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(element) for key, element in value.items()}
    return [_plain(element) for element in value] if isinstance(value, list | tuple) else value
