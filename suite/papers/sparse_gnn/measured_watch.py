"""Watch the process groups of a rank: rows sent and received, and ranks of each sum.

The first column of X holds the row number, so received values identify the rows that were sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from suite.comm.p2p.threads import run
from suite.config.locate import locate
from suite.gnn.exchange import SpanRecorder
from suite.gnn.plan import ExchangePlan
from suite.gnn.rank_shard import LocalBlock
from suite.papers.measured import after, before


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
        if not len(tensor):
            return
        self.rows[rank] = self.rows.get(rank, 0) + int(tensor.shape[0])
        self.bytes += tensor.nbytes

    def record_receive(self, rank: int, tensor: Any) -> None:
        if len(tensor):
            self.received.setdefault(rank, []).extend(int(row) for row in tensor[:, 0].tolist())


def watch_groups(world: Any) -> Traffic:
    """Make every group of a rank record its traffic in the returned object.

    An all-to-all of threads is a pairwise exchange."""
    traffic, watched = Traffic(), set[tuple[int, ...]]()

    def watch(group: Any, ranks: Sequence[int]) -> None:
        if (members := tuple(ranks)) in watched:
            return
        watched.add(members)

        def reduce(tensor: Any, op: str = "sum") -> None:
            traffic.sums.append((members, tensor.numel(), tensor.data_ptr()))

        def broadcast(handle: Any, tensor: Any, root: int) -> None:
            traffic.broadcasts += 1
            if root != world.rank:
                after(handle, "wait", lambda _: traffic.record_receive(root, tensor))
                return
            for receiver in set(members) - {root}:
                traffic.record_send(receiver, tensor)

        def pairwise(handle: Any, sends: Any, receives: Any) -> None:
            for rank, tensor in sends:
                traffic.record_send(rank, tensor)
            for rank, tensor in receives:
                after(handle, "wait", lambda _, rank=rank, tensor=tensor: traffic.record_receive(rank, tensor))

        before(group, "all_reduce", reduce)
        after(group, "broadcast", broadcast)
        after(group, "pairwise", pairwise)

    after(world, "group", watch)
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
