"""Watch the process groups of a rank: rows sent and received, and ranks of each sum.

The first column of X bears the number of its row, so that what arrives tells which rows were sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from suite.config.locate import locate
from suite.gnn.local_block import LocalBlock
from suite.gnn.plan import ExchangePlan

DEADLINE = 120.0  # seconds


@dataclass
class Wire:
    """Observations of one rank's groups.

    Attributes:
        rows: That it hands to each rank.
        came: The numbers of the rows that it gets of each.
        broadcasts: How often it takes part in one.
        bytes: That it hands out, a broadcast once to every other rank; sums: the ranks and the words of every sum, and
            where its tensor lies.
    """

    rows: dict[int, int] = field(default_factory=dict)
    came: dict[int, list[int]] = field(default_factory=dict)
    broadcasts: int = 0
    bytes: int = 0
    sums: list[tuple[tuple[int, ...], int, int]] = field(default_factory=list)

    def out(self, rank: int, tensor: Any) -> None:
        self.rows[rank] = self.rows.get(rank, 0) + int(tensor.shape[0])
        self.bytes += tensor.numel() * tensor.element_size()

    def arrived(self, rank: int, tensor: Any) -> None:
        self.came.setdefault(rank, []).extend(int(row) for row in tensor[:, 0].tolist())


class After:
    """A handle that looks at what has arrived once it has."""

    def __init__(self, handle: Any, look: Any) -> None:
        self.handle, self.look = handle, look

    def wait(self) -> None:
        self.handle.wait()
        self.look()


class Watching:
    """A group that notes what its rank hands to it and gets from it."""

    def __init__(self, group: Any, rank: int, wire: Wire) -> None:
        self.group, self.ranks, self.own, self.wire = group, group.ranks, rank, wire

    def all_reduce(self, tensor: Any, op: str = "sum") -> Any:
        self.wire.sums.append((tuple(self.ranks), tensor.numel(), tensor.data_ptr()))
        return self.group.all_reduce(tensor, op)

    def broadcast(self, tensor: Any, root: int) -> Any:
        self.wire.broadcasts += 1
        if root == self.own:
            for other in self.ranks:
                if other != root:
                    self.wire.out(other, tensor)
        handle = self.group.broadcast(tensor, root)
        return handle if root == self.own else After(handle, lambda: self.wire.arrived(root, tensor))

    def all_to_all(
        self, recv_buffer: Any, send_buffer: Any, *, recv_counts: Sequence[int], send_counts: Sequence[int]
    ) -> Any:
        for rank, part in zip(self.ranks, send_buffer.split(list(send_counts)), strict=True):
            if len(part):
                self.wire.out(rank, part)
        handle = self.group.all_to_all(recv_buffer, send_buffer, recv_counts=recv_counts, send_counts=send_counts)

        def look() -> None:
            for rank, part in zip(self.ranks, recv_buffer.split(list(recv_counts)), strict=True):
                if len(part):
                    self.wire.arrived(rank, part)

        return After(handle, look)

    def pairwise(self, sends: Any, receives: Any) -> Any:
        for rank, tensor in sends:
            self.wire.out(rank, tensor)
        handle = self.group.pairwise(sends, receives)

        def look() -> None:
            for rank, tensor in receives:
                self.wire.arrived(rank, tensor)

        return After(handle, look)


def watched(world: Any) -> Wire:
    """Makes every group of a rank note what passes it."""
    wire, plain, watching = Wire(), world.group, dict[tuple[int, ...], Watching]()

    def group(ranks: Any) -> Watching:
        return watching.setdefault(tuple(ranks), Watching(plain(ranks), world.rank, wire))

    world.group = group
    return wire


def multiplied(plan: ExchangePlan, exchange: str, width: int = 1, form: str = "staged") -> tuple[list[Wire], list[Any]]:
    """One product by an exchange of this class path, on as many threads as the plan has processes: what each handed
    over, and its rows of the product. X has the number of a row in its first column, noise in the others."""
    import torch

    from suite.comm.p2p.threads import run
    from suite.gnn.exchange import SpanRecorder

    kind = locate(exchange)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((plan.vertices, width))
    x[:, 0] = np.arange(plan.vertices)
    shares = [LocalBlock.from_plan(plan, rank) for rank in range(plan.placement.processes)]

    def main(world: Any) -> tuple[Wire, Any]:
        wire, share = watched(world), shares[world.rank]
        product = kind(share, world, recorder=SpanRecorder(world), dtype=torch.float64, form=form)
        own_rows = x[plan.offsets[share.row] : plan.offsets[share.row + 1]]
        return wire, product(torch.from_numpy(own_rows.copy())).numpy()

    outputs = run(len(shares), main, deadline=DEADLINE)
    return [wire for wire, _ in outputs], [z for _, z in outputs]
