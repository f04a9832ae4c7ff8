"""Result of a run in one line: its main numbers with units and evidence."""

from __future__ import annotations

import math
import re

from suite.core.record import Record
from suite.core.units import si
from suite.core.words import format_count
from suite.report import derive

SEARCHED = "best of "  # begins the note on the plan that a search found (suite.simulate.executor)
WORDS = {  # metrics of the line, in this order, with the words around the median
    "batch_time": "{} per batch",
    "replay_time": "{} per batch in one process",
    "simulated_time": "{} predicted by simulation",
    "exchanged_bytes": "{} exchanged",
    "makespan": "makespan {}",
    "idle": "{} idle",
    "in_flight": "{} in flight",
    "version_gap": "{} between the passes of a microbatch",
    "weight_copies": "{} of the weights",
    "rows_sent": "{} sent per product",
    "memory_per_process": "{} on the fullest process",
    "epoch_time": "{} per epoch",
}
PLURALS = {"copy": "copies", "microbatch": "microbatches", "percent": "percent"}
_CLAIM = re.compile(r"^[a-z_]+\.\w+\..+$")  # metrics that answer a claim have its id


def format_result(record: Record) -> str:
    """Result of a successful run, with its evidence."""
    medians = {name: derive.samples(record, name).median for name in WORDS}
    parts = [
        WORDS[name].format(_amount(value, record.metrics[name].unit))
        for name, value in medians.items()
        if math.isfinite(value)
    ]
    share = derive.percent_of_peak(record, medians["batch_time"])
    parts += [f"{share:.1f} percent of peak"] if math.isfinite(share) else []
    if parts and (kinds := record.memory.get("measured") or record.memory.get("predicted")):
        parts.append(f"{si(max(map(sum, zip(*kinds.values(), strict=False))), 'B')} on the fullest rank")
    parts += [note for note in record.notes if note.startswith(SEARCHED)]
    if losses := record.series.get("loss"):
        parts.append(f"loss {losses[0]:.4f} to {losses[-1]:.4f}")
    scores = [name for name in record.metrics if f"best_{name}" in record.metrics]
    parts += [f"{name} {_amount(record.metrics[name].values[-1], record.metrics[name].unit)}" for name in scores[:1]]
    if claims := sum(bool(_CLAIM.match(name) and metric.values) for name, metric in record.metrics.items()):
        parts.append(f"{format_count(claims, 'claim')} answered")
    elif curves := sum(len(panel.get(side, ())) for panel in record.panels for side in ("ours", "paper", "null")):
        parts.append(format_count(curves, "curve"))
    return ", ".join([*(parts or [format_count(record.metrics, "value")]), record.source.value])


def _amount(value: float, unit: str) -> str:
    """A number with its unit, in the plural for a unit that is counted."""
    if unit in ("s", "B"):
        return si(value, unit)
    return f"{value:,.4g} {unit if value == 1 else PLURALS.get(unit, f'{unit}s')}"
