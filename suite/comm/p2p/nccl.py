"""Point-to-point transport over NCCL, in the static order of the checker, with one communicator per channel and
direction.

NCCL has no tags and cannot wait for the first of several messages, and a send may hold its stream until the receive is
posted. In a static order every receive is posted when its op is next, and the channels of a pair of ranks do not hold
one another up, as each has its own communicator and stream. Shapes travel ahead in a header over gloo, so that a
receive is posted with its exact size. On gloo alone the same channels run on a CPU, which is how they are tested.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from suite.comm.p2p.message import CAPACITY, decode, encode, receiver, sender, too_long
from suite.core.errors import RankError
from suite.core.op import Kind, Op
from suite.core.protocols import Transport, Value

if TYPE_CHECKING:
    from suite.comm.collective.process_group import TorchWorld


class NcclTransport(Transport):
    """Channels to the stage before and the stage after, for programs in a static order."""

    any_order = False
    polls = False  # a wait has no time limit

    def __init__(self, world: TorchWorld, before: int | None, after: int | None, stages: int) -> None:
        self.world, self.before, self.after, self.stages = world, before, after, stages
        channels = world.directed(after)
        self.channels = {pair: group for pair, group in channels.items() if world.rank in pair}
        self.sending: dict[tuple[int, int], deque[tuple[list[Any], Any]]] = {pair: deque() for pair in self.channels}

    def send(self, op: Op, value: Value) -> None:
        rank = receiver(op, self.stages, before=self.before, after=self.after)
        if rank is None:
            return
        channel = (self.world.rank, rank)
        group, sending = self.channels[channel], self.sending[channel]
        value = tuple(tensor.detach().contiguous() for tensor in value)
        head = torch.frombuffer(bytearray(encode(op, value, inline=False)), dtype=torch.uint8)
        if head.numel() > self.world.inline:
            raise too_long(head.numel(), self.world.inline)
        works = [dist.isend(head, rank, group=group)]
        works += [dist.isend(tensor, rank, group=group) for tensor in value if tensor.numel()]
        sending.append((works, (head, value)))
        while sending and all(work.is_completed() for work in sending[0][0]):  # gloo never says so: kept until the end
            sending.popleft()
        while op.kind is Kind.EVALUATE and len(sending) > CAPACITY:  # all channels point one way: no deadlock
            _wait(sending)

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        """Receives the one op that is next. There is nothing to choose, and no poll: timeout=0 finds nothing."""
        if len(ops) != 1 or timeout is not None:
            raise RankError(f"a static order waits for one op, not {', '.join(map(str, ops)) or 'none'}")
        (op,) = ops
        source = sender(op, before=self.before, after=self.after)
        assert source is not None, f"{op} has no neighbour on this rank"
        group = self.channels[source, self.world.rank]
        head = torch.empty(self.world.inline, dtype=torch.uint8)
        dist.recv(head, source, group=group)
        came, _, described, _ = decode(memoryview(head.numpy().data))
        if came != op:
            raise RankError(f"{came} came where the static order has {op}")
        value = tuple(torch.empty(shape, dtype=dtype, device=self.world.device) for dtype, shape in described)
        for tensor in value:
            if tensor.numel():
                work = dist.irecv(tensor, source, group=group)
                assert work is not None, "this rank is a member of the group"
                work.wait()  # on CUDA: the stream waits, the host does not
        return op, value

    def progress(self) -> None:
        """NCCL needs no help."""

    def close(self) -> None:
        for sending in self.sending.values():
            while sending:
                _wait(sending)


def _wait(sending: deque[tuple[list[Any], Any]]) -> None:
    for work in sending.popleft()[0]:
        work.wait()
