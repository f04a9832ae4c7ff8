"""Point-to-point transport over NCCL, with one communicator per channel and direction.

NCCL has no tags and cannot wait for the first of several messages, and a send may occupy its stream until the receive
is posted. So ops run in the static order of the checker: every receive is posted when its op is next. Channels of a
pair of ranks do not block each other, because each has its own communicator and stream. A header with the shapes goes
ahead over gloo, so that the receive is posted with its exact size. On gloo alone the same channels run on a CPU; the
tests use this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from suite.comm.p2p.message import EVALUATION_CAPACITY, decode, encode, header_too_long, receiver, sender
from suite.core.errors import RankError
from suite.core.op import Kind, Op
from suite.core.protocols import Transport, Value


class DirectedWorld(Protocol):
    """World with one process group per channel.

    Attributes:
        eager_bytes: Size of a header's buffer, in bytes.
    """

    rank: int
    device: Any
    eager_bytes: int

    def directed_groups(self, after: int | None) -> dict[tuple[int, int], Any]:
        """Process groups by (source rank, target rank). Collective: every rank passes the rank of its next stage."""


class NcclTransport(Transport):
    """Channels to the previous and the next stage, for programs in a static order."""

    any_order = False
    polls = False  # a wait has no time limit

    def __init__(self, world: DirectedWorld, before: int | None, after: int | None, stages: int) -> None:
        self.world, self.before, self.after, self.stages = world, before, after, stages
        groups = world.directed_groups(after)
        self.groups = {pair: group for pair, group in groups.items() if world.rank in pair}
        self.sending: dict[tuple[int, int], deque[tuple[list[Any], Any]]] = {pair: deque() for pair in self.groups}

    def send(self, op: Op, value: Value) -> None:
        rank = receiver(op, self.stages, before=self.before, after=self.after)
        if rank is None:
            return
        channel = (self.world.rank, rank)
        group, sending = self.groups[channel], self.sending[channel]
        value = tuple(tensor.detach().contiguous() for tensor in value)
        header = torch.frombuffer(bytearray(encode(op, value, inline=False)), dtype=torch.uint8)
        if header.numel() > self.world.eager_bytes:
            raise header_too_long(header.numel(), self.world.eager_bytes)
        works = [dist.isend(header, rank, group=group)]
        works += [dist.isend(tensor, rank, group=group) for tensor in value if tensor.numel()]
        sending.append((works, (header, value)))
        # gloo never reports completion before a wait: its buffers are kept until the transport closes
        while sending and all(work.is_completed() for work in sending[0][0]):
            sending.popleft()
        # evaluation values all flow in one direction, so that this wait cannot deadlock
        while op.kind is Kind.EVALUATE and len(sending) > EVALUATION_CAPACITY:
            _wait_oldest(sending)

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        """Receive the next op. Raises RankError for several ops and for a time limit: NCCL supports neither."""
        if len(ops) != 1 or timeout is not None:
            raise RankError(f"a static order waits for one op, not {', '.join(map(str, ops)) or 'none'}")
        (op,) = ops
        source = sender(op, before=self.before, after=self.after)
        assert source is not None, f"{op} has no neighbour on this rank"
        group = self.groups[source, self.world.rank]
        header = torch.empty(self.world.eager_bytes, dtype=torch.uint8)
        dist.recv(header, source, group=group)
        received_op, _, described, _ = decode(memoryview(header.numpy().data))
        if received_op != op:
            raise RankError(f"received {received_op} where the static order has {op}")
        value = tuple(torch.empty(shape, dtype=dtype, device=self.world.device) for dtype, shape in described)
        for tensor in value:
            if tensor.numel():
                work = dist.irecv(tensor, source, group=group)
                assert work is not None, "this rank is a member of the group"
                work.wait()  # on CUDA the stream waits, not the host
        return op, value

    def progress(self) -> None:
        """NCCL needs no progress calls."""

    def close(self) -> None:
        for sending in self.sending.values():
            while sending:
                _wait_oldest(sending)


def _wait_oldest(sending: deque[tuple[list[Any], Any]]) -> None:
    for work in sending.popleft()[0]:
        work.wait()
