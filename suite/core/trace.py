"""Trace of a batch: spans of every executor, and the kinds of idle time.

A span is a rank's time on one thing. Compute spans carry their op, so that one breakdown, one picture and one makespan
formula serve real, emulated and simulated runs alike. An idle rank records `wait`, with the op whose message ended the
wait. `breakdown` splits idle time into three categories:

    transfer   the message was under way: the neighbour had finished the op that the rank waited for
    bubble     time to fill and drain the pipeline, and at most the idle time of the rank. With one stage per rank and
               whole backward passes it is (S - 1) * (t_forward + t_backward) (SAMO Equation 6, with the mean op times
               of the trace). For every other schedule it is the idle time of the rank if all ops of a kind took their
               mean time, in the order of the trace and with messages that take no time
    wait       the rest: a neighbour was slower, or the limit of microbatches in flight starved the rank

Some spans are parts of a parent span: a backward pass contains the compression of its gradient and the sum over the
ranks of a split layer. `breakdown` subtracts the time of a part from its parent. A part sums many short pieces and is
recorded as one span at the end of its parent.

A reduction synchronizes its ranks. It costs the time of its fastest member, which arrives last; the other ranks were
idle until then."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from suite.core.grid import Grid
from suite.core.op import Kind, Op, message_of, needs

FORWARD, BACKWARD, EVALUATE = "forward", "backward", "evaluate"  # an input gradient is a backward pass
WEIGHT = "weight_gradient"  # of a split backward pass
REDUCE, TIE, STEP = "reduce", "tie", "step"  # update: over the data-parallel group, over a tie, on a rank
COMPRESS, EXPAND = "compress", "expand"  # gradients and weights of a pruned network (SAMO III-C)
TENSOR_REDUCE = "tensor_reduce"  # the all-reduces of a pass over the ranks of a split layer (tensor parallelism)
RECOMPUTE = "recompute"  # the forward pass that a backward pass repeats, from activation checkpoints
PREDICT, COPY = "predict", "copy"  # a stage's weights: predicted before a pass, copied for a version that a step keeps
MESSAGE = "message"  # host time of a pass for the messages that it receives and sends
# sparse product on several ranks: gather rows, exchange them, multiply, and sum the products over replicas
GATHER, EXCHANGE, PRODUCT, ROW_REDUCE, GEMM = "gather", "exchange", "product", "row_reduce", "gemm"
WAIT, TRANSFER, BUBBLE = "wait", "transfer", "bubble"
CATEGORY = {
    **{Kind.FORWARD: FORWARD, Kind.BACKWARD: BACKWARD, Kind.INPUT: BACKWARD, Kind.WEIGHT: WEIGHT},
    **{Kind.EVALUATE: EVALUATE, Kind.UPDATE: STEP},
}
# parent category of each part; empty for the category of its op, which a weight gradient always has
INSIDE = {
    **{COMPRESS: BACKWARD, RECOMPUTE: BACKWARD, EXPAND: STEP, COPY: STEP},
    **dict.fromkeys((TENSOR_REDUCE, PREDICT, MESSAGE), ""),
}


class Span(NamedTuple):
    """Time of `rank` in `category` from `start` to `end`, in seconds on a clock that all ranks share."""

    rank: int
    category: str
    start: float
    end: float
    op: Op | None = None
    bytes: int = 0  # payload sent by the op

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def row(self) -> list[object]:
        """As JSON: [rank, category, start, end, "2F7" or null, bytes]."""
        return [self.rank, self.category, self.start, self.end, None if self.op is None else str(self.op), self.bytes]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Span:
        rank, category, start, end, op, size = row
        op = None if op is None else Op.parse(str(op))
        return cls(int(rank), str(category), float(start), float(end), op, int(size))


_made = tuple.__new__  # equals Span(...) without the call: simulators add a span a million times


class Trace(list[Span]):
    """The spans of one or more ranks."""

    def add(self, rank: int, category: str, start: float, end: float, op: Op | None = None, size: int = 0) -> None:
        self.append(_made(Span, (rank, category, start, end, op, size)))

    def shifted(self) -> Trace:
        """The same spans with time counted from the earliest start."""
        zero = min((span.start for span in self), default=0.0)
        return self.timed(lambda time: time - zero)

    def timed(self, time_of: Callable[[float], float]) -> Trace:
        """The same spans, with `time_of` each start and end in its place."""
        return Trace(span._replace(start=time_of(span.start), end=time_of(span.end)) for span in self)

    @property
    def makespan(self) -> float:
        return max((span.end for span in self), default=0.0) - min((span.start for span in self), default=0.0)


def stages_of(trace: Iterable[Span], grid: Grid) -> int:
    """Stages of the pipeline, of which a rank of `grid` may hold several."""
    stages = grid.inter
    for span in trace:
        if span.op is not None and span.op.stage >= stages:
            stages = span.op.stage + 1
    return stages


def chunks_of(trace: Iterable[Span]) -> dict[tuple[int, int], int]:
    """Number of the stages before each stage on its rank, by rank and stage, for ranks that hold several stages."""
    held: dict[int, set[int]] = {}
    for span in trace:
        if span.op is not None:
            held.setdefault(span.rank, set()).add(span.op.stage)
    return {(rank, stage): chunk for rank, stages in held.items() for chunk, stage in enumerate(sorted(stages))}


def breakdown(trace: Iterable[Span], grid: Grid) -> dict[str, float]:
    """Seconds per category over one batch (from drain to drain), mean over the ranks.

    The module docstring defines the categories of idle time. A gap between two spans of a rank counts as idle. The
    categories sum to the makespan.
    """
    spans = sorted(trace, key=lambda span: (span.rank, span.start))
    parts = [span for span in spans if span.category in INSIDE]
    spans = [span for span in spans if span.category not in INSIDE]
    if not spans:
        return {}
    begin, finish = min(span.start for span in spans), max(span.end for span in spans)
    ranks = list(dict.fromkeys([span.rank for span in spans]))
    replicas = {rank: grid.position(rank).data for rank in ranks}
    done = {(replicas[span.rank], message_of(span.op)): span.end for span in spans if span.op and span.category != WAIT}
    stages, fill_and_drain = stages_of(spans, grid), _fill_and_drain(spans, grid)
    total: dict[str, float] = {}
    queues = _queues(spans)
    quickest: dict[_Meeting, float] = {}
    for queue in queues.values():
        for span, meeting in zip(queue, _meetings(queue, grid), strict=True):
            if meeting is not None:
                quickest[meeting] = min(span.seconds, quickest.get(meeting, span.seconds))
    meetings = {rank: filter(None, _meetings(queue, grid)) for rank, queue in queues.items()}
    for rank in ranks:
        busy = transfer = 0.0
        clock = begin
        for span in spans:
            if span.rank != rank:
                continue
            start = max(span.start, clock)
            if span.category != WAIT:
                seconds = max(0.0, span.end - start)
                if span.category in _MEETINGS:
                    seconds = min(seconds, quickest[next(meetings[rank])])
                total[span.category] = total.get(span.category, 0.0) + seconds
                busy += seconds
            elif span.op is not None and (need := needs(span.op, stages)) is not None:
                sent = done.get((replicas[rank], need), span.end)
                transfer += max(0.0, span.end - max(start, sent))
            clock = max(clock, span.end)
        idle = finish - begin - busy - transfer
        bubble = min(idle, fill_and_drain[rank])
        for category, seconds in ((TRANSFER, transfer), (BUBBLE, bubble), (WAIT, idle - bubble)):
            total[category] = total.get(category, 0.0) + seconds
    for part in parts:
        total[part.category] = total.get(part.category, 0.0) + part.seconds
        total[parent_category(part)] = total.get(parent_category(part), 0.0) - part.seconds
    return {category: seconds / len(ranks) for category, seconds in total.items()}


def parent_category(part: Span) -> str:
    """Parent category of a span whose category is in INSIDE."""
    kind = Kind.FORWARD if part.op is None else part.op.kind
    return CATEGORY[kind] if kind is Kind.WEIGHT else INSIDE[part.category] or CATEGORY[kind]


def _fill_and_drain(spans: Sequence[Span], grid: Grid) -> dict[int, float]:
    """Seconds in which each rank fills and drains the pipeline, as the module docstring defines them."""
    ranks = dict.fromkeys([span.rank for span in spans])
    passes = [span for span in spans if span.op is not None and span.category in _PASSES]
    if stages_of(spans, grid) == grid.inter and not [span for span in passes if span.category == WEIGHT]:
        return dict.fromkeys(ranks, (grid.inter - 1) * (_mean(spans, FORWARD) + _mean(spans, BACKWARD)))
    queues = _queues(passes)
    kinds: dict[Kind, list[float]] = {}
    for span in passes:
        kinds.setdefault(_kind(span), []).append(span.seconds)
    means = {kind: math.fsum(each) / len(each) for kind, each in kinds.items()}
    makespan = _allowed(queues, grid, lambda span: means[_kind(span)])
    return {rank: makespan - math.fsum(means[_kind(span)] for span in queues.get(rank, ())) for rank in ranks}


def _kind(span: Span) -> Kind:
    assert span.op is not None
    return span.op.kind


def _mean(spans: Sequence[Span], category: str) -> float:
    seconds = [span.seconds for span in spans if span.category == category]
    return math.fsum(seconds) / len(seconds) if seconds else 0.0


def allowed_makespan(trace: Iterable[Span], grid: Grid) -> float:
    """Lower bound of the makespan in seconds, from the op times of the trace and the op order of each rank.

    Messages take no time. A reduction starts when its last rank arrives and lasts as long as its fastest member took.
    The measured makespan is never less than this bound. Bound / makespan is the efficiency of all but compute.
    """
    return _allowed(_queues(trace), grid, lambda span: span.seconds)


def _allowed(queues: Mapping[int, Sequence[Span]], grid: Grid, seconds: Callable[[Span], float]) -> float:
    """Makespan of the queues if each span takes `seconds(span)`: the longest path through spans and reductions."""
    stages = max((stages_of(queue, grid) for queue in queues.values()), default=grid.inter)
    before: dict[Hashable, list[Hashable]] = {}  # steps that a step follows; a step is a reduction, or a rank's span
    takes: dict[Hashable, float] = {}
    makers: dict[tuple[int, int, Op], Hashable] = {}  # step of a message, by replica, tensor rank and name
    needed = list[tuple[Hashable, tuple[int, int, Op]]]()
    for rank, queue in queues.items():
        data, _, tensor = grid.position(rank)
        last: Hashable = None
        for number, (span, meeting) in enumerate(zip(queue, _meetings(queue, grid), strict=True)):
            step: Hashable = meeting or (rank, number)
            before.setdefault(step, []).extend([] if last is None else [last])
            takes[step] = min(seconds(span), takes.get(step, math.inf))
            if meeting is None and span.op is not None:
                makers.setdefault((data, tensor, message_of(span.op)), step)
                if (need := needs(span.op, stages)) is not None:
                    needed.append((step, (data, tensor, need)))
            last = step
    for step, message in needed:
        before[step] += [makers[message]] if message in makers else []
    sorter, finish = TopologicalSorter(before), dict[Hashable, float]()
    with suppress(CycleError):  # in a damaged trace: the steps that do not follow the cycle count
        sorter.prepare()
    while ready := sorter.get_ready():
        for step in ready:
            finish[step] = max((finish[each] for each in before[step]), default=0.0) + takes[step]
        sorter.done(*ready)
    return max(finish.values(), default=0.0)


_PASSES = (FORWARD, BACKWARD, WEIGHT)
_MEETINGS = (REDUCE, TIE)
_Meeting = tuple[str, object, int, int]  # category, op or pipeline of the reduction, update, bucket


def _queues(trace: Iterable[Span]) -> dict[int, list[Span]]:
    """Spans of each rank in order, without waits and parts."""
    queues: dict[int, list[Span]] = {}
    for span in sorted(trace, key=lambda span: (span.start, span.end)):
        if span.category != WAIT and span.category not in INSIDE:
            queues.setdefault(span.rank, []).append(span)
    return queues


def _meetings(queue: Iterable[Span], grid: Grid) -> list[_Meeting | None]:
    """Names of the reductions of one rank, in order; None for every other span.

    An update of a stage identifies a reduction of a data-parallel group, and a replica one of a tied weight. A span
    does not name its tie, so all ties of a replica count as if they joined the same ranks.
    """
    seen: Counter[tuple[str, object, int]] = Counter()
    meetings = list[_Meeting | None]()
    for span in queue:
        if span.category not in _MEETINGS:
            meetings.append(None)
            continue
        who = grid.position(span.rank).data if span.category == TIE else span.op
        key = (span.category, (who, span.rank % grid.tensor), -1 if span.op is None else span.op.index)
        meetings.append((*key, seen[key]))
        seen[key] += 1
    return meetings
