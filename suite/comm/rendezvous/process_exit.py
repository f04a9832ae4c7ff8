"""End of a process that has ranks next to it: whether it failed, and how long it waits for the others.

Both serve the functions that channels and process groups register with `atexit`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from suite.comm.p2p.message import sender
from suite.comm.p2p.polling import look_around
from suite.core.errors import RankError
from suite.core.op import Op

LEAVE = 5.0  # seconds that the end of a script waits for the ends of the other ranks


def raised() -> bool:
    """Whether an exception ends this process; SystemExit is none."""
    return getattr(sys, "last_value", None) is not None


def deserted(ops: Sequence[Op], closed: Collection[int], *, before: int | None, after: int | None) -> bool:
    """Whether every neighbour that could send one of these ops has closed its channels."""
    return bool(closed and ops) and all(sender(op, before=before, after=after) in closed for op in ops)


def closed_early(rank: int, ops: Sequence[Op]) -> RankError:
    """The error of a rank that waits for values which will never be sent. Raises the error of
    comm.rendezvous.departures where the closed rank has made fewer calls.
    """
    look_around()
    op_list = ", ".join(map(str, ops))
    return RankError(
        f"rank {rank} waits for {op_list} of a rank that has closed its channels: all ranks train on each batch"
    )
