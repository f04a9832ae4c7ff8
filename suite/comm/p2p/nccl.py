"""Point-to-point transport over NCCL, with one communicator per lane: a pair of neighbouring stages and a direction.

NCCL has no tags and cannot wait for the first of several messages, and a send may occupy its stream until the receive
is posted. So ops run in the static order of the checker: every receive is posted when its op is next. Lanes of a pair
of ranks do not block each other, because each has its own communicator and stream. In a V schedule a rank sends outputs
of one stage and gradients of another to the same rank, in an order that only each lane keeps. A header with the shapes
goes ahead over gloo, so that the receive is posted with its exact size. On gloo alone the same lanes run on a CPU; the
tests use this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from suite.comm.p2p.message import pack, unpack
from suite.core.errors import RankError
from suite.core.op import EVALUATION_CAPACITY, Kind, Op, feeds
from suite.core.protocols import Transport, Value

if TYPE_CHECKING:
    from suite.comm.collective.process_group import TorchWorld

Lane = tuple[int, int]  # source stage, target stage


class NcclTransport(Transport):
    """Lanes to the ranks of neighbouring stages, for programs in a static order."""

    any_order = False
    polls = False  # a wait has no time limit

    def __init__(self, world: TorchWorld, homes: Sequence[int]) -> None:
        self.world, self.homes = world, homes
        self.groups = world.lane_groups(homes)
        self.sending: dict[Lane, deque[tuple[list[Any], Any]]] = {lane: deque() for lane in self.groups}
        self.local: dict[Op, Value] = {}

    def send(self, op: Op, value: Value) -> None:
        target = feeds(op, len(self.homes))
        if target is None:
            return
        rank = self.homes[target.stage]
        if rank == self.world.rank:
            self.local[op] = tuple(tensor.detach() for tensor in value)
            return
        lane = op.stage, target.stage
        group, sending = self.groups[lane], self.sending[lane]
        value = tuple(tensor.detach().contiguous() for tensor in value)
        header = torch.empty(self.world.eager_bytes, dtype=torch.uint8)
        size, payload = pack(op, value, header, inline=False)
        works = [dist.isend(tensor, rank, group=group) for tensor in (header[:size], *payload)]
        sending.append((works, (header, value)))
        while sending and _is_received(sending[0][0]):
            _wait_oldest(sending)
        # an evaluation runs a stage at most EVALUATION_CAPACITY ahead of this rank's next stage: no deadlock
        while op.kind is Kind.EVALUATE and len(sending) > EVALUATION_CAPACITY:
            _wait_oldest(sending)

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        """Receive the next op. Raises RankError for several ops and for a time limit: NCCL supports neither."""
        if len(ops) != 1 or timeout is not None:
            raise RankError(f"a static order waits for one op, not {', '.join(map(str, ops)) or 'none'}")
        (op,) = ops
        source, target = self.homes[op.stage], feeds(op, len(self.homes))
        if source == self.world.rank:
            return op, self.local.pop(op)
        assert target is not None, f"{op} has no receiver"
        group = self.groups[op.stage, target.stage]
        header = torch.empty(self.world.eager_bytes, dtype=torch.uint8)
        dist.recv(header, source, group=group)
        received_op, value, payload = unpack(header, memoryview(header.numpy().data), self.world.device)
        if received_op != op:
            raise RankError(f"received {received_op} where the static order has {op}")
        for tensor in payload:
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


def lanes(homes: Sequence[int]) -> list[Lane]:
    """Lanes of a pipeline between stages on different ranks. homes: rank of each stage"""
    pairs = [(stage, stage + 1) for stage, (a, b) in enumerate(pairwise(homes)) if a != b]
    return [lane for first, second in pairs for lane in ((first, second), (second, first))]


def _is_received(works: Sequence[Any]) -> bool:
    """Whether a value has arrived, of which `works` send the header over gloo and then the tensors.

    gloo reports completion only to a wait, so the last tensor decides: its receiver has read the header. A value
    without tensors, and every value on gloo alone, waits until the transport closes."""
    return len(works) > 1 and bool(works[-1].is_completed())


def _wait_oldest(sending: deque[tuple[list[Any], Any]]) -> None:
    for work in sending.popleft()[0]:
        work.wait()
