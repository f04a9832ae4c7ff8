"""Cost models from fixed numbers or from the trace of a run.

Both raise an error that names an op without a cost, because a missing cost must not become zero.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import Kind, Op
from suite.core.protocols import Chunk, CostModel
from suite.core.trace import INSIDE, REDUCE, STEP, TIE, WAIT, Span
from suite.core.values import is_number

_BACKWARD, _INPUT, _WEIGHT = Kind.BACKWARD, Kind.INPUT, Kind.WEIGHT  # attributes of an enum are slow to read
COMPUTE = (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT, Kind.WEIGHT, Kind.EVALUATE)


@dataclass(frozen=True, slots=True)
class Fixed(CostModel):
    """Equal costs on every stage, or one cost per stage.

    Attributes:
        forward, backward, step: Seconds.
        message_bytes, reduce_bytes: Bytes.
        weight: Seconds of a weight gradient, as a part of `backward`. The rest of `backward` is the input gradient.
            None: half of `backward`.
    """

    forward: float | Sequence[float]
    backward: float | Sequence[float]
    message_bytes: int = 0
    step: float = 0.0
    reduce_bytes: int = 0
    weight: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "message_bytes", "step", "reduce_bytes", "weight"):
            value = getattr(self, name)
            if name == "weight" and value is None:
                continue
            by_stage = name in ("forward", "backward", "weight") and isinstance(value, list | tuple)
            if not all(is_number(one) and one >= 0 for one in (value if by_stage else (value,))):
                raise InvalidRequest(name, value, rule="finite and not negative", legal=f"{name}=0")
        if self.weight is None:
            return
        lengths = [len(one) for one in (self.backward, self.weight) if not isinstance(one, int | float)]
        for stage in range(min(lengths, default=1)):
            if _of_stage(self.weight, stage) > _of_stage(self.backward, stage):
                raise InvalidRequest(
                    f"weight={self.weight} with backward={self.backward}",
                    rule="a weight gradient is a part of the backward pass",
                    legal="weight=null, half of the backward pass",
                )

    def compute(self, op: Op) -> float:
        kind = op.kind
        if kind is _INPUT or kind is _WEIGHT:
            return self._split(op)
        seconds = self.backward if kind is _BACKWARD else self.forward
        return seconds if isinstance(seconds, int | float) else _of_stage(seconds, op.stage, op)

    def _split(self, op: Op) -> float:
        whole = _of_stage(self.backward, op.stage, op)
        weight = whole / 2 if self.weight is None else _of_stage(self.weight, op.stage, op)
        return weight if op.kind is _WEIGHT else whole - weight

    def message(self, op: Op) -> int:
        return self.message_bytes

    def update(self, rank: int) -> Sequence[Chunk]:
        return (Chunk(self.reduce_bytes, self.step),)


def _of_stage(seconds: float | Sequence[float], stage: int, op: Op | None = None) -> float:
    """Cost of `stage`. Raises InvalidRequest for a stage without a cost."""
    if isinstance(seconds, int | float):
        return seconds
    if stage >= len(seconds):
        raise InvalidRequest(
            f"no cost of {op}: costs for {len(seconds)} stages", rule="one per stage", legal=f"{stage + 1} costs"
        )
    return seconds[stage]


@dataclass(frozen=True)
class Profiled(CostModel):
    """Costs from the spans of a run (law 6): the seconds of each op, or the median of its stage and kind.

    Attributes:
        seconds, bytes: Costs by op, of one pipeline.
        updates: Seconds of one update by pipeline rank, as the mean over the trace.
    """

    seconds: Mapping[Op, float]
    bytes: Mapping[Op, int]
    updates: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Iterable[Span], grid: Grid, replica: int = 0) -> Profiled:
        """Costs of the ops of one replica, counted from the first microbatch and update of the trace."""
        spans = [s for s in trace if s.op is not None and s.category not in INSIDE]
        spans = [s for s in spans if grid.position(s.rank).data == replica]
        passes = [s for s in spans if s.category != WAIT and s.op is not None and s.op.kind in COMPUTE]
        first = min((s.op.index for s in passes if s.op is not None), default=0)
        ops = {s.op._replace(index=s.op.index - first): s for s in passes if s.op is not None}
        updates: dict[int, dict[int, float]] = {}
        for span in spans:
            if span.category in (REDUCE, TIE, STEP) and span.op is not None:
                each = updates.setdefault(grid.position(span.rank).inter, {})
                each[span.op.index] = each.get(span.op.index, 0.0) + span.seconds
        return cls(
            {op: s.seconds for op, s in ops.items()},
            {op: s.bytes for op, s in ops.items()},
            {rank: fmean(each.values()) for rank, each in updates.items()},
        )

    def medians(self) -> Profiled:
        """Equal costs for every microbatch: the median over the ops of one stage and kind, at index 0."""
        kinds: dict[tuple[int, Kind], list[Op]] = {}
        for op in self.seconds:
            kinds.setdefault((op.stage, op.kind), []).append(op)
        mids = {Op(stage, kind, -1): ops for (stage, kind), ops in kinds.items()}
        return Profiled(
            {op: median(self.seconds[one] for one in ops) for op, ops in mids.items()},
            {op: self.bytes[ops[0]] for op, ops in mids.items()},
            self.updates,
        )

    def compute(self, op: Op) -> float:
        seconds = self.seconds.get(op)
        if seconds is None:
            seconds = self.seconds.get(op._replace(index=-1))
        if seconds is None:
            stages = 1 + max((one.stage for one in self.seconds), default=-1)
            raise InvalidRequest(
                f"no cost of {op} in a table of {len(self.seconds)} ops on {stages} stages",
                rule="a cost for every op",
                legal="a trace of a whole batch, or its medians()",
            )
        return seconds

    def message(self, op: Op) -> int:
        size = self.bytes.get(op)
        return self.bytes.get(op._replace(index=-1), 0) if size is None else size

    def update(self, rank: int) -> Sequence[Chunk]:
        return (Chunk(0, self.updates.get(rank, 0.0)),)


def recorded(*, trace: str) -> Profiled:
    """Median costs of a trace file of a run. Raises InvalidRequest for another file."""
    try:
        with gzip.open(trace) as packed:
            content = json.load(packed)
        spans = [Span.from_row(row) for row in content["spans"]]
        profiled = Profiled.of(spans, Grid(**content["grid"]))
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"trace={trace}: {error}", rule="a trace of a run", legal="reports/traces/KEY.json.gz"
        ) from error
    if not profiled.seconds:
        raise InvalidRequest(
            f"trace={trace} holds no op", rule="a trace with the ops of a batch", legal="the trace of an axonn run"
        )
    return profiled.medians()
