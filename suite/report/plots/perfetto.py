"""Chrome trace events of a batch, for Perfetto and chrome://tracing.

A replica is a process, a rank is a thread, a span is a slice, and an arrow leads from each op to the op that consumes
its output. Arrows follow from `core.op.feeds`, like the messages themselves. The slices of a track nest: a part
(`expand`) lies inside its whole (`step`), and a span that overlaps another one of its rank has a second track.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, TypedDict

from suite.core.grid import Grid
from suite.core.op import Op, feeds, message_of
from suite.core.trace import INSIDE, REDUCE, TIE, WAIT, Span, Trace, chunks_of, stages_of
from suite.core.trace import parent_category as whole_of

# 125 ns: the shortest time whose multiples are exact both in microseconds, which the format counts in, and in whole
# nanoseconds, which viewers store. Ends and starts that meet in the trace meet in every viewer.
_TICKS = 8e6  # per second
_MICRO = 8  # ticks in a microsecond


@dataclass(slots=True)
class _TrackSlice:
    """A span on a track of its rank, in ticks."""

    span: Span
    start: int
    end: int
    track: int = 0


class Event(TypedDict, total=False):
    """An event of the trace format of Chrome and Perfetto. ts, dur: microseconds"""

    ph: str
    name: str
    cat: str
    ts: float
    dur: float
    pid: int
    tid: int
    id: int
    bp: str
    args: Mapping[str, str | int | float]


def events(trace: Trace, grid: Grid) -> list[Event]:
    """Names (M), slices (X) and arrows (s, f) of `trace`. Process and thread ids start at 1, as viewers take 0 for the
    idle process."""
    ranks: dict[int, list[Span]] = defaultdict(list)
    for span in trace:
        ranks[span.rank].append(span)
    slices = [one for rank in sorted(ranks) for one in _placed(ranks[rank])]
    events_of_trace: list[Event] = []
    for replica in sorted({grid.position(span.rank).data for span in trace}):
        events_of_trace.append(_metadata("process_name", replica, name=f"replica {replica}"))
    tracks = sorted({(one.span.rank, one.track) for one in slices})
    held: dict[int, list[int]] = defaultdict(list)
    for rank, stage in sorted(chunks_of(trace)):
        held[rank].append(stage)
    for position, (rank, track) in enumerate(tracks):
        at, thread = grid.position(rank), _thread(rank, track, grid)
        stages = held[rank] if len(held[rank]) > 1 else [at.inter]
        name = f"rank {rank}, {'stage' if len(stages) == 1 else 'stages'} {', '.join(map(str, stages))}"
        name += (", overlapping" if track else "") + (f" {track}" * (track > 1))
        events_of_trace.append(_metadata("thread_name", at.data, thread, name=name))
        events_of_trace.append(_metadata("thread_sort_index", at.data, thread, sort_index=position))
    events_of_trace += [_slice(one, grid) for one in slices]
    # a message stays in its replica and its slice of the tensor group
    ran: dict[tuple[int, int, Op], _TrackSlice] = {}
    for one in slices:
        if one.span.op is not None and one.span.category not in {WAIT, REDUCE, TIE, *INSIDE}:
            ran[grid.position(one.span.rank).data, one.span.rank % grid.tensor, message_of(one.span.op)] = one
    count = stages_of(trace, grid)
    for number, ((replica, part, op), source) in enumerate(ran.items()):
        goal = feeds(op, count)
        target = ran.get((replica, part, goal)) if goal is not None else None
        if target is None:
            continue
        arrow: Event = {"name": _name(source.span), "cat": "message", "id": number, "pid": replica + 1}
        # one tick before its slice's end, so that it binds to that slice
        leaves = max(source.start, source.end - 1) / _MICRO
        events_of_trace.append({**arrow, "ph": "s", "tid": _thread(source.span.rank, source.track, grid), "ts": leaves})
        arrives: Event = {"ts": target.start / _MICRO, "tid": _thread(target.span.rank, target.track, grid)}
        events_of_trace.append({**arrow, "ph": "f", "bp": "e", **arrives})
    return events_of_trace


def _placed(spans: Iterable[Span]) -> list[_TrackSlice]:
    """The spans of one rank on tracks whose slices nest, wholes before their parts."""
    wholes: list[_TrackSlice] = []
    parts: list[_TrackSlice] = []
    for span in spans:
        one = _TrackSlice(span, round(span.start * _TICKS), round(span.end * _TICKS))
        (parts if span.category in INSIDE else wholes).append(one)
    wholes.sort(key=lambda one: (one.start, one.end))
    tracks = _Tracks()
    for one in wholes:
        tracks.put(one, main=True)
    of: dict[str, list[_TrackSlice]] = defaultdict(list)
    for one in wholes:
        of[one.span.category].append(one)
    begins = {category: [one.start for one in placed] for category, placed in of.items()}
    room: dict[int, int] = {}  # where the next part of a whole has to end, from the last one to the first
    alone = []
    for part in sorted(parts, key=lambda one: -one.end):
        category, length = whole_of(part.span), part.end - part.start
        at = bisect_right(begins.get(category, ()), part.end)
        near = of[category][max(0, at - 2) : at]
        whole = max(near, key=lambda one: min(part.end, one.end) - max(part.start, one.start), default=None)
        end = part.end if whole is None else min(part.end, room.get(id(whole), whole.end))
        if whole is None or end - length < whole.start:
            alone.append(part)
            continue
        part.start, part.end, part.track = end - length, end, whole.track
        room[id(whole)] = part.start
    for one in sorted(alone, key=lambda one: (one.start, one.end)):
        tracks.put(one, main=False)
    return [*wholes, *sorted(parts, key=lambda one: one.start)]


class _Tracks:
    """The tracks of one rank: the main one, number 0, and as many more as spans overlap."""

    def __init__(self) -> None:
        self.main: int | None = None  # until when it is taken
        self.others: list[tuple[int, int]] = []  # a heap: until when, number

    def put(self, one: _TrackSlice, *, main: bool) -> None:
        """Give the slice the main track if it is free and allowed, otherwise the track that has been free longest."""
        if main and (self.main is None or self.main <= one.start):
            self.main = one.end
            return
        if self.others and self.others[0][0] <= one.start:
            _, one.track = heappop(self.others)
        else:
            one.track = len(self.others) + 1
        heappush(self.others, (one.end, one.track))


def _thread(rank: int, track: int, grid: Grid) -> int:
    return 1 + rank + track * grid.size


def _metadata(what: str, replica: int, thread: int | None = None, **args: Any) -> Event:
    ids: Event = {"pid": replica + 1} if thread is None else {"pid": replica + 1, "tid": thread}
    return {"ph": "M", "name": what, **ids, "args": args}


def _name(span: Span) -> str:
    """One name for an op, on its slice and on its arrow."""
    return span.category if span.op is None else f"{span.category} {span.op}"


def _slice(one: _TrackSlice, grid: Grid) -> Event:
    span = one.span
    return {
        "ph": "X",
        "name": _name(span),
        "cat": span.category,
        "ts": one.start / _MICRO,
        "dur": (one.end - one.start) / _MICRO,
        "pid": grid.position(span.rank).data + 1,
        "tid": _thread(span.rank, one.track, grid),
        "args": {"bytes": span.bytes} if span.op is None else {"op": str(span.op), "bytes": span.bytes},
    }


def packed(trace: Trace, grid: Grid) -> bytes:
    """The gzip file's bytes; the same trace gives the same bytes."""
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": events(trace, grid)}, separators=(",", ":"))
    return gzip.compress(text.encode("utf-8", "replace"), mtime=0)
