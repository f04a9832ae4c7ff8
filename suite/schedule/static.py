"""Static order of a schedule, as the checker ran it, for transports without a wait-any."""

from __future__ import annotations

from collections.abc import Sequence

from suite.core.op import FlushInterval, Kind, Op, Program


def fixed(order: Sequence[Op], interval: FlushInterval) -> Program:
    """The ops of one stage, one at a time. `order` is the order of FlushInterval(0, n, ..., update=0), counted on
    from `work`.
    """
    for op in order:
        yield (op._replace(index=op.index + (interval.update if op.kind is Kind.UPDATE else interval.first)),)
