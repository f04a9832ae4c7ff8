"""Decides the order of a program on a transport that cannot choose: the one in which the checker ran it."""

from __future__ import annotations

from collections.abc import Sequence

from suite.core.op import Kind, Op, Program, Work


def fixed(order: Sequence[Op], work: Work) -> Program:
    """The ops of one stage, one at a time. `order` is that of Work(0, n, ..., update=0), counted on from `work`."""
    for op in order:
        yield (op._replace(index=op.index + (work.update if op.kind is Kind.UPDATE else work.first)),)
