"""Table of the provenance of records: machine, versions and duration.

Provenance may hold any values, nested to any depth. The table shows a limited number of leaves.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from suite.core.record import Outcome
from suite.core.units import seconds
from suite.core.values import Json
from suite.report.load import StoredRecord, real, text_at


def took(entry: StoredRecord) -> float:
    """Seconds of the run; nan if the record has none."""
    return real(entry.record.provenance.get("seconds"))


def overview(entries: Sequence[StoredRecord]) -> str:
    """Number of runs, their outcomes and the day of the newest; empty without runs."""
    if not entries:
        return ""
    ended = Counter(entry.record.outcome for entry in entries)
    others = [
        f"{ended[outcome]} {outcome.value}" for outcome in Outcome if ended[outcome] and outcome is not Outcome.OK
    ]
    endings_text = f"{ended[Outcome.OK]} ended well" + (f", {', '.join(others)}" if others else "")
    experiments = {entry.record.experiment for entry in entries}
    days = max(text_at(entry.record.provenance, "started")[:10] for entry in entries)
    newest = f", the newest of {days}" if re.fullmatch(r"\d{4}-\d\d-\d\d", days) else ""
    return f"{_count(len(entries), 'run')} of {_count(len(experiments), 'experiment')}{newest}: {endings_text}."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def facts(entries: Sequence[StoredRecord], most: int = 4) -> list[tuple[str, list[str]]]:
    """Provenance entries of the records, by name: each distinct value once, at most `most` per name."""
    facts_by_name: dict[str, dict[str, None]] = {}
    for entry in entries:
        for name, text in _flat(entry.record.provenance):
            if name != "seconds" and not name.startswith("command"):
                facts_by_name.setdefault(name, {})[text] = None
    rows = []
    first = ("machine", "versions", "commit", "started")
    for name in sorted(facts_by_name, key=lambda name: (*(not name.startswith(word) for word in first), name)):
        texts = facts_by_name[name]
        values = sorted(texts)
        if name == "started":
            values = values if len(values) == 1 else [f"{values[0]} to {values[-1]}"]
        if name.startswith("load.") and (numbers := _numbers(texts)):
            values = [f"{min(numbers):g} to {max(numbers):g}" if len(values) > 1 else values[0]]
        more = len(values) - most
        rows.append((name.replace(".", " · "), values[:most] + ([f"and {more} more"] if more > 0 else [])))
    commands = sorted({text_at(entry.record.provenance, "command") for entry in entries} - {""})
    if commands:
        more = len(commands) - 2
        rows.append(("command", commands[:2] + ([f"and {more} more, shown with each run"] if more > 0 else [])))
    total = sum(spent for entry in entries if math.isfinite(spent := took(entry)))
    return [*rows, ("records", [f"{len(entries)}, {seconds(total)} of running"])]


def _numbers(texts: Iterable[str]) -> list[float]:
    """The texts as numbers; empty unless all are finite numbers."""
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


def _flat(value: Json, path: str = "", depth: int = 8) -> Iterable[tuple[str, str]]:
    """Each leaf with its dotted path; a value below `depth` levels is one leaf."""
    if isinstance(value, dict) and value and depth:
        for name, element in value.items():
            yield from _flat(element, f"{path}.{name}" if path else str(name), depth - 1)
    else:
        try:
            yield path, json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
        except RecursionError:
            yield path, "nested too deep to show"
