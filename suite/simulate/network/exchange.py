"""Seconds of a row exchange, for each form of exchange on a modelled machine.

All times follow the alpha-beta model: a message costs the latency of its link, and its bytes over the reached
bandwidth. Collectives are NCCL's, with the latencies of its tuning table. Rows that only some processes need are sent
from process to process, through the adapters of sender and receiver. Ranks fill nodes in order
(suite.simulate.network.machine). Units are seconds and bytes.

    stages       broadcasts of block rows (CAGNET; the c columns of a 1.5D grid at once)
    all_to_all   one exchange in which every process sends the rows that others need (Algorithm 1; Algorithm 2 fused)
    staged       Algorithm 2 as printed: in each column of the grid one process sends at a time
    sum_rows     all-reduce over the c replicas of a block row, which the paper's cost leaves out (inconsistency G2)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from suite.core.errors import UnknownName
from suite.gnn.plan import Volumes
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.machine import Machine
from suite.simulate.network.network import ring_volume

Bytes = Any  # float array


@dataclass(frozen=True, slots=True)
class Protocol:
    """Protocol by which NCCL moves the data of a collective.

    Attributes:
        base: Seconds of a call.
        within, between: Seconds per step inside a node, and between two nodes.
        apart: Factor of `within` with several nodes.
        share: Share of the bandwidth that plain copies reach.
        most: Upper bound of the bandwidth in bytes/s.
    """

    name: str
    base: float
    within: float
    between: float
    apart: float = 1.0
    share: float = 1.0
    most: float = math.inf


# NCCL 2.11 to 2.18, src/graph/tuning.cc: baseLat, hwLat and the refinements below them, for NVLink within a node and
# GPUs of compute capability 8.0; LL128 is left out, which needs an adapter behind the same PCIe switch as its GPU
RINGS = (
    Protocol("ring, LL", 3.6e-6, 0.47e-6, 2.7e-6, apart=1.8, share=1 / 4, most=19.0e9),
    Protocol("ring, simple", 8.4e-6, 3.4e-6, 9.6e-6),
)
CHAINS = (  # of broadcasts: a step passes a whole chunk on; with several nodes, each counts as one between two
    Protocol("chain, LL", 3.6e-6, 0.47e-6, 2.7e-6, share=1 / 4, most=19.0e9),
    Protocol("chain, simple", 8.4e-6, 28.0e-6, 28.0e-6),
)
TREES = (  # of all-reduces
    Protocol("tree, LL", 4.4e-6, 0.52e-6, 5.0e-6, apart=1.8, share=1 / 3.8, most=19.0e9),
    Protocol("tree, simple", 0.0, 28.0e-6, 28.0e-6, share=0.92),
)


def messages(volumes: Volumes, row: float) -> Bytes:
    """(P, P) bytes that process [i] receives from process [q] in one product, with rows of `row` bytes."""
    placement = volumes.placement
    k, c = placement.parts, placement.replication
    bytes_between = np.zeros((k, c, k, c))
    for column in range(c):
        bytes_between[:, column, :, column] = np.where(placement.columns == column, volumes.needed, 0)
    return row * bytes_between.reshape(k * c, k * c)


@dataclass(frozen=True, slots=True)
class _Group:
    """Ranks of a collective: their number, their nodes, and the bytes/s of a ring over them."""

    size: int
    nodes: int
    rate: float


class Wires:
    """Reached bandwidth of exchanges on `machine` with `efficiency`.

    The efficiency holds the shares of an adapter for rings (`network`) and for messages between two processes
    (`pairs`), of the links within a node, and the adapters of a node that one ring uses. A message between two
    processes leaves through the sender's adapter.
    """

    def __init__(self, machine: Machine, efficiency: Efficiency) -> None:
        self.machine, self.efficiency = machine, efficiency
        self.within = machine.within.bandwidth * efficiency.within
        self.ring = machine.between.bandwidth * efficiency.network
        self.pair = machine.between.bandwidth * efficiency.pairs
        self.own = machine.adapters / machine.devices_per_node  # adapters of a device

    # -- rows that only some need --------------------------------------------------------------------------------------

    def all_to_all(self, volumes: Volumes, row: float) -> float:
        """Seconds until the last process has sent and received all its rows.

        Links within a node work in parallel with adapters.
        """
        size = messages(volumes, row)
        node = np.arange(len(size)) // self.machine.devices_per_node
        near = node[:, None] == node[None, :]
        far = np.where(near, 0.0, size)
        sums = [np.bincount(node, weights=far.sum(axis)) for axis in (0, 1)]
        busiest = max(float(each.max()) for each in sums) / (self.machine.adapters * self.pair)
        alone = max(float(far.sum(axis).max()) for axis in (0, 1)) / self.pair
        inside = float(np.where(near, size, 0.0).max()) / self.within
        count = size > 0
        waited = max(float(self._latency(count & ~near, count & near, axis).max()) for axis in (0, 1))
        return self._called(waited) + max(alone, busiest, inside)

    def staged(self, volumes: Volumes, row: float) -> float:
        """Sum over the stages of a column. While one process sends through its adapter, the others wait for it.

        As printed, a process sends a message to every other process of the column, even an empty one.
        """
        placement = volumes.placement
        size = messages(volumes, row)
        node = np.arange(len(size)) // self.machine.devices_per_node
        near = node[:, None] == node[None, :]
        far = np.where(near, 0.0, size)
        ones = np.where(np.eye(placement.parts, dtype=bool), 0, 1)
        count = messages(replace(volumes, needed=ones), 1.0) > 0
        sent = np.maximum(far.sum(0) / self.pair, np.where(near, size, 0.0).max(0) / self.within)
        waited = self._latency(count & ~near, count & near, 0)
        seconds = np.where(count.any(0), sent + waited + self.efficiency.collective, 0.0)
        return float(seconds.reshape(placement.parts, placement.replication).sum(0).max())

    def _latency(self, far: Bytes, near: Bytes, axis: int) -> Bytes:
        """(P,) seconds of latency of the messages that each process sends (axis 0) or receives."""
        between, within = self.machine.between.latency, self.machine.within.latency
        return far.sum(axis) * between + near.sum(axis) * within

    def _called(self, waited: float) -> float:
        return waited + self.efficiency.collective if waited else 0.0

    # -- collectives ---------------------------------------------------------------------------------------------------

    def stages(self, volumes: Volumes, row: float) -> float:
        """Seconds of the broadcasts of whole block rows, one after the other in each column of the grid.

        Every process takes part in each broadcast, so each of P stages waits for the steps of a chain of P processes.
        """
        placement = volumes.placement
        columns = [self._group(placement.column(column)) for column in range(placement.replication)]
        return max(
            sum(
                self._broadcast(row * float(volumes.rows[q]), group)
                for q in placement.stages(placement.rank(0, column))
            )
            for column, group in enumerate(columns)
        )

    def broadcast(self, size: float, ranks: Sequence[int]) -> float:
        """Seconds to broadcast `size` bytes of one process along a chain of `ranks`."""
        return self._broadcast(size, self._group(ranks))

    def _broadcast(self, size: float, group: _Group) -> float:
        steps = (0, group.size) if group.nodes > 1 else (group.size, 0)
        return self._collective(size, size, group, CHAINS, steps)

    def all_reduce(self, size: float, ranks: Sequence[int]) -> float:
        """Seconds of an all-reduce by a ring, or by a tree over nodes if that is faster."""
        group = self._group(ranks)
        n, nodes = group.size, group.nodes
        around = (2 * max(0, n - 1 - nodes), 2 * nodes) if nodes > 1 else (2 * (n - 1), 0)
        over = (2 * (-(-n // nodes) - 1), 2 * math.ceil(math.log2(nodes)))
        ring = self._collective(size, ring_volume(size, n), group, RINGS, around)
        return min(ring, self._collective(size, 2 * size, group, TREES, over))

    def sum_rows(self, volumes: Volumes, row: float) -> float:
        """Seconds in which the replicas of each block row add their products, all block rows at once."""
        placement = volumes.placement
        groups = range(placement.parts) if placement.replication > 1 else ()
        return max((self.all_reduce(row * float(volumes.rows[i]), placement.row(i)) for i in groups), default=0.0)

    def rate(self, ranks: Sequence[int]) -> float:
        """Bytes/s of a ring over `ranks`, while similar rings use the adapters of the other devices."""
        return self._group(ranks).rate

    def _group(self, ranks: Sequence[int]) -> _Group:
        nodes = len({self.machine.node(rank) for rank in ranks})
        if nodes == 1:
            return _Group(len(ranks), 1, self.within)
        ranks_per_node = len(ranks) / nodes
        through = self.ring * min(self.efficiency.adapters, self.own * ranks_per_node)
        return _Group(len(ranks), nodes, min(self.within, through) if ranks_per_node > 1 else through)

    def _collective(
        self, size: float, moved: float, group: _Group, protocols: Sequence[Protocol], steps: tuple[int, int]
    ) -> float:
        """Seconds of a collective with the protocol that NCCL's own model selects.

        `steps` counts steps within nodes and between two nodes.
        """
        if group.size == 1 or not size:
            return 0.0
        near, far = steps

        def seconds(way: Protocol) -> float:
            within = way.within * (way.apart if group.nodes > 1 else 1.0)
            return way.base + near * within + far * way.between + moved / min(way.share * group.rate, way.most)

        return self.efficiency.collective + min(map(seconds, protocols), default=math.inf)

    # -- a system's product ------------------------------------------------------------------------------------------

    def exchange(self, volumes: Volumes, row: float, form: str) -> float:
        """Seconds of the exchange `form` of FORMS."""
        if form not in FORMS:
            raise UnknownName("form of an exchange", form, FORMS)
        carry: Callable[[Volumes, float], float] = getattr(self, FORMS[form])
        return carry(volumes, row)


FORMS = {"oblivious": "stages", "fused": "all_to_all", "staged": "staged"}
