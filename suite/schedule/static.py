"""Static schedule: replay of the checker's order, for transports without wait-any."""

from __future__ import annotations

from collections.abc import Sequence

from suite.core.op import FlushInterval, Kind, Op, Program


def fixed(order: Sequence[Op], interval: FlushInterval) -> Program:
    """Yield the ops of one stage, one at a time, with indices that start at `interval`.

    `order` has the indices of FlushInterval(0, n, ..., update=0).
    """
    for op in order:
        yield (op._replace(index=op.index + (interval.update if op.kind is Kind.UPDATE else interval.first)),)
