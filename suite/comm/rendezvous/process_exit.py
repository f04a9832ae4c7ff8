"""End of a process that has peer ranks: whether an exception ends it, and how long it waits for its peers.

Transports and process groups use these functions in the handlers that they register with `atexit`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from suite.comm.p2p.polling import check_departures
from suite.core.errors import RankError
from suite.core.op import Op

EXIT_TIMEOUT = 5.0  # seconds that the end of a script waits for the other ranks to end


def exception_raised() -> bool:
    """Whether an exception other than SystemExit ends this process."""
    return getattr(sys, "last_value", None) is not None


def senders_closed(messages: Sequence[Op], closed: Collection[int], homes: Sequence[int]) -> bool:
    """Whether every rank that could send one of these messages has closed its channels. homes: rank of each stage."""
    return bool(closed and messages) and all(homes[message.stage] in closed for message in messages)


def closed_channel_error(rank: int, ops: Sequence[Op]) -> RankError:
    """The error of a rank that waits for values from a closed neighbour.

    Raises RankError with both call counts where the departed rank has made fewer calls (comm.rendezvous.peer_exit).
    """
    check_departures()
    names = ", ".join(map(str, ops))
    return RankError(f"rank {rank} waits for {names} from a rank that closed its channels: all ranks train every batch")
