"""Watch the process groups of a rank: rows sent and received, and ranks of each sum.

The first column of X holds the row number, so received values identify the rows that were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from suite.config.locate import locate
from suite.gnn.local_block import LocalBlock
from suite.gnn.plan import ExchangePlan


@dataclass
class Traffic:
    """Traffic of one rank.

    Attributes:
        rows: Number of rows sent to each rank.
        received: Row numbers received from each rank.
        broadcasts: Number of broadcasts that the rank took part in.
        bytes: Bytes sent in messages; a broadcast counts once per receiver.
        sums: Ranks, words and data pointer of every all-reduce.
    """

    rows: dict[int, int] = field(default_factory=dict)
    received: dict[int, list[int]] = field(default_factory=dict)
    broadcasts: int = 0
    bytes: int = 0
    sums: list[tuple[tuple[int, ...], int, int]] = field(default_factory=list)

    def record_send(self, rank: int, tensor: Any) -> None:
        self.rows[rank] = self.rows.get(rank, 0) + int(tensor.shape[0])
        self.bytes += tensor.nbytes

    def record_receive(self, rank: int, tensor: Any) -> None:
        self.received.setdefault(rank, []).extend(int(row) for row in tensor[:, 0].tolist())


@dataclass(frozen=True)
class _CallbackHandle:
    """Handle that runs a callback once its message has arrived."""

    handle: Any
    callback: Callable[[], None]

    def wait(self) -> None:
        self.handle.wait()
        self.callback()


class WatchedGroup:
    """Group that records the traffic of its rank."""

    def __init__(self, group: Any, rank: int, traffic: Traffic) -> None:
        self.group, self.ranks, self.rank, self.traffic = group, group.ranks, rank, traffic

    def all_reduce(self, tensor: Any, op: str = "sum") -> Any:
        self.traffic.sums.append((tuple(self.ranks), tensor.numel(), tensor.data_ptr()))
        return self.group.all_reduce(tensor, op)

    def broadcast(self, tensor: Any, root: int) -> Any:
        self.traffic.broadcasts += 1
        handle = self.group.broadcast(tensor, root)
        if root != self.rank:
            return _CallbackHandle(handle, lambda: self.traffic.record_receive(root, tensor))
        for receiver in self.ranks:
            if receiver != root:
                self.traffic.record_send(receiver, tensor)
        return handle

    def all_to_all(
        self, recv_buffer: Any, send_buffer: Any, *, recv_counts: Sequence[int], send_counts: Sequence[int]
    ) -> Any:
        for rank, part in zip(self.ranks, send_buffer.split(list(send_counts)), strict=True):
            if len(part):
                self.traffic.record_send(rank, part)
        handle = self.group.all_to_all(recv_buffer, send_buffer, recv_counts=recv_counts, send_counts=send_counts)

        def record() -> None:
            for rank, part in zip(self.ranks, recv_buffer.split(list(recv_counts)), strict=True):
                if len(part):
                    self.traffic.record_receive(rank, part)

        return _CallbackHandle(handle, record)

    def pairwise(self, sends: Any, receives: Any) -> Any:
        for rank, tensor in sends:
            self.traffic.record_send(rank, tensor)
        handle = self.group.pairwise(sends, receives)

        def record() -> None:
            for rank, tensor in receives:
                self.traffic.record_receive(rank, tensor)

        return _CallbackHandle(handle, record)


def watch_groups(world: Any) -> Traffic:
    """Make every group of a rank record its traffic in the returned object."""
    traffic, new_group, groups = Traffic(), world.group, dict[tuple[int, ...], WatchedGroup]()

    def group(ranks: Any) -> WatchedGroup:
        return groups.setdefault(tuple(ranks), WatchedGroup(new_group(ranks), world.rank, traffic))

    world.group = group
    return traffic


def run_product(
    plan: ExchangePlan, exchange: str, width: int = 1, form: str = "staged"
) -> tuple[list[Traffic], list[Any]]:
    """Run one sparse product on one thread per process of the plan.

    Args:
        plan: Plan of the product.
        exchange: Class path of the exchange.
        width: Columns of X. The first holds the row numbers, the others random values.
        form: Form of the exchange.

    Returns:
        Traffic of each rank, and its rows of the product.
    """
    import torch

    from suite.comm.p2p.threads import run
    from suite.gnn.exchange import SpanRecorder

    exchange_class = locate(exchange)
    x = np.random.default_rng(0).standard_normal((plan.vertices, width))
    x[:, 0] = np.arange(plan.vertices)
    blocks = [LocalBlock.from_plan(plan, rank) for rank in range(plan.placement.processes)]

    def main(world: Any) -> tuple[Traffic, Any]:
        traffic, block = watch_groups(world), blocks[world.rank]
        product = exchange_class(block, world, recorder=SpanRecorder(world), dtype=torch.float64, form=form)
        own_rows = x[plan.offsets[block.row] : plan.offsets[block.row + 1]]
        return traffic, product(torch.from_numpy(own_rows.copy())).numpy()

    outputs = run(len(blocks), main)
    return [traffic for traffic, _ in outputs], [z for _, z in outputs]
