"""Decides how a trace looks in Perfetto and chrome://tracing: the Chrome trace event format, times in microseconds.

A replica is a process, a rank is a thread, a span is a slice, and an arrow leads from each op to the op that consumes
its output. Arrows follow from `core.op.feeds`, like the messages themselves.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

from suite.core.grid import Grid
from suite.core.op import Op, feeds
from suite.core.trace import REDUCE, TIE, WAIT, Span, Trace

_MICRO = 1e6
_INSIDE = 1e-3  # us: an arrow starts this long before its slice's end, so that it binds to that slice


def events(trace: Trace, grid: Grid) -> list[dict[str, Any]]:
    """Names (M), slices (X) and arrows (s, f) of `trace`."""
    found: list[dict[str, Any]] = []
    for replica in sorted({grid.place(span.rank).replica for span in trace}):
        found.append(_name("process_name", replica, 0, f"replica {replica}"))
    for rank in sorted({span.rank for span in trace}):
        place = grid.place(rank)
        found.append(_name("thread_name", place.replica, rank, f"rank {rank}, stage {place.stage}"))
    found += [_slice(span, grid) for span in trace]
    # a message stays in its replica and its slice of the tensor group
    ran: dict[tuple[int, int, Op], Span] = {}
    for span in trace:
        if span.op is not None and span.category not in {WAIT, REDUCE, TIE}:
            ran[grid.place(span.rank).replica, span.rank % grid.tensor, span.op] = span
    for number, ((replica, part, op), span) in enumerate(ran.items()):
        goal = feeds(op, grid.inter)
        target = ran.get((replica, part, goal)) if goal is not None else None
        if target is None:
            continue
        arrow = {"name": str(op), "cat": "message", "id": number, "pid": replica}
        start = max(span.start * _MICRO, span.end * _MICRO - _INSIDE)
        found.append({**arrow, "ph": "s", "tid": span.rank, "ts": start})
        found.append({**arrow, "ph": "f", "bp": "e", "tid": target.rank, "ts": target.start * _MICRO})
    return found


def _name(what: str, replica: int, rank: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": replica, "tid": rank, "args": {"name": name}}


def _slice(span: Span, grid: Grid) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.category if span.op is None or span.category == WAIT else f"{span.category} {span.op}",
        "cat": span.category,
        "ts": span.start * _MICRO,
        "dur": span.seconds * _MICRO,
        "pid": grid.place(span.rank).replica,
        "tid": span.rank,
        "args": {"op": str(span.op) if span.op is not None else None, "bytes": span.bytes},
    }


def packed(trace: Trace, grid: Grid) -> bytes:
    """The gzip file's bytes; the same trace gives the same bytes."""
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": events(trace, grid)}, separators=(",", ":"))
    return gzip.compress(text.encode("utf-8", "replace"), mtime=0)
