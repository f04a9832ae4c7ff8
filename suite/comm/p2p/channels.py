"""Transport of channels to the ranks of neighbouring stages, and of the values that have arrived by them.

The transports over MPI and gloo differ in how a channel sends and receives. All else is here.
"""

from __future__ import annotations

import atexit
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from suite.comm.p2p.message import receiver
from suite.comm.p2p.polling import check_departures
from suite.core.errors import RankError
from suite.core.op import Kind, Op
from suite.core.protocols import Transport, Value


class Channel(Protocol):
    """Messages from and to one neighbour."""

    @property
    def closed(self) -> bool:
        """Whether the neighbour has closed, and all of its values have arrived."""

    def read_evaluation(self) -> None:
        """Count an evaluation value that this rank has read."""


_Channel = TypeVar("_Channel", bound=Channel)


class ChannelTransport(Transport, Generic[_Channel]):
    """Channels, and a mailbox of values that have arrived.

    Attributes:
        channels: The channel of each neighbour.
        mailbox: Values that this rank has not read yet.
    """

    channels: Mapping[int, _Channel]

    def __init__(self, world: Any, homes: Sequence[int]) -> None:
        self.any_order = world.order == "any"
        self.world, self.homes, self.mailbox = world, homes, dict[Op, Value]()
        atexit.register(self._at_exit)  # a script that ends without close() leaves no receive posted

    @abstractmethod
    def start(self, channel: _Channel, op: Op, value: Value) -> None:
        """Start to send a value, whose tensors are contiguous."""

    @abstractmethod
    def receive(self, ops: Sequence[Op], timeout: float | None) -> None:
        """Wait until one of `ops` is in the mailbox, none can arrive any more, or `timeout` seconds have passed."""

    @abstractmethod
    def _at_exit(self) -> None:
        """Close at the end of the process, unless an exception ends it."""

    def send(self, op: Op, value: Value) -> None:
        rank = receiver(op, self.homes)
        if rank == self.world.rank:
            self.mailbox[op] = tuple([tensor.detach() for tensor in value])
        elif rank is not None:
            value = tuple([tensor.detach().contiguous() for tensor in value])
            self.start(
                self.channels[rank], op, tuple([tensor.cpu() for tensor in value]) if self.world.staged else value
            )

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        self.progress()
        if self.mailbox.keys().isdisjoint(ops):
            self.receive(ops, timeout)
        for op in ops:
            if op in self.mailbox:
                value, home = self.mailbox.pop(op), self.homes[op.stage]
                if op.kind is Kind.EVALUATE and home != self.world.rank:
                    self.channels[home].read_evaluation()
                return op, tuple([tensor.to(self.world.device) for tensor in value]) if self.world.staged else value
        if timeout != 0 and self.senders_closed(ops):
            check_departures()  # raises with both call counts where a rank has made fewer calls
            names = ", ".join(map(str, ops))
            raise RankError(
                f"rank {self.world.rank} waits for {names} from a rank that closed its channels: "
                "all ranks train every batch"
            )
        return None

    def senders_closed(self, ops: Sequence[Op]) -> bool:
        """Whether every rank that could send one of these messages has closed its channel."""
        closed = [peer for peer, channel in self.channels.items() if channel.closed]
        return bool(closed and ops) and all(self.homes[op.stage] in closed for op in ops)
