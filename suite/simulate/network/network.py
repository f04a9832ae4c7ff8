"""Seconds of messages and collectives on a modelled network, with contention.

A lane carries the messages of one stage to its neighbour in order. A ring carries a collective at the rate of its
slowest step: the adapter of a node that several rings share. AxoNN's data-parallel groups have a rank on every node, so
all rings of a node use the same adapters. The shares change whenever a ring starts or ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from suite.core.errors import InvalidRequest
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.kernel import Kernel
from suite.simulate.network.machine import Link, Machine


class Lane:
    """Messages from one stage to a neighbour, first in first out, one at a time on the link."""

    __slots__ = ("bandwidth", "free", "latency")

    def __init__(self, link: Link) -> None:
        self.latency, self.bandwidth, self.free = link.latency, link.bandwidth, 0.0

    def arrival(self, now: float, size: float) -> float:
        """Arrival time of a message of `size` bytes that is sent `now`. The link carries one message at a time."""
        start = now if now > self.free else self.free
        self.free = start + size / self.bandwidth
        return self.free + self.latency


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """Ranks in a ring, or several equal rings at the same time (the ranks of a split layer).

    Attributes:
        ranks: Ranks of one ring.
        nodes, leaving: Nodes, and the number of steps of all rings that leave each node.
        alone: Whether every node holds one rank of the ring, which then uses the adapter of its device only.
    """

    ranks: tuple[int, ...]
    nodes: tuple[int, ...]
    leaving: tuple[int, ...]
    alone: bool

    @classmethod
    def of(cls, ranks: Sequence[int], machine: Machine, beside: int = 1) -> Ring:
        """`beside` equal rings: over `ranks`, over the ranks one further, and so on."""
        if len(set(ranks)) < len(ranks) or not ranks:
            raise InvalidRequest(f"a ring of the ranks {list(ranks)}", rule="at least one rank, each once", legal="[0]")
        out: Counter[int] = Counter()
        for offset in range(beside):
            places = [machine.node(rank + offset) for rank in ranks]
            out.update(a for a, b in zip(places, (*places[1:], places[0]), strict=True) if a != b)
        nodes = sorted(out)
        return cls(
            tuple(ranks),
            tuple(nodes),
            tuple(out[node] for node in nodes),
            alone=len({machine.node(rank) for rank in ranks}) == len(ranks),
        )

    @property
    def size(self) -> int:
        return len(self.ranks)


def ring_volume(size: float, ranks: int) -> float:
    """Bytes that each rank sends in a ring all-reduce of `size` bytes: 2 (n - 1) / n times the size."""
    return 2 * (ranks - 1) / ranks * size


def scatter_volume(size: float, ranks: int) -> float:
    """Bytes that each rank sends in a reduce-scatter or an all-gather of `size` bytes."""
    return (ranks - 1) / ranks * size


class Fabric:
    """Collectives in progress.

    Every ring has an equal share of each adapter that it crosses, and its smallest share is its rate.
    """

    def __init__(self, kernel: Kernel, machine: Machine, efficiency: Efficiency, ranks: int) -> None:
        self.kernel, self.efficiency = kernel, efficiency
        adapters = min(efficiency.adapters, machine.adapters)
        self.adapter = machine.between.bandwidth * efficiency.network
        self.between = self.adapter * adapters
        self.within = machine.within.bandwidth * efficiency.within
        self.load = [0] * machine.nodes(ranks)  # steps that leave each node
        self.flows: dict[int, _Flow] = {}
        self.started = 0
        self.since = 0.0

    def collective(self, ring: Ring, volume: float, steps: int, done: Callable[[Any], None], argument: Any) -> None:
        """Call `done(argument)` when every rank has sent `volume` bytes, after the latency of `steps` steps."""
        if ring.size == 1:
            self.kernel.at(self.kernel.now, done, argument)
            return
        delay = self.efficiency.collective + steps * self.efficiency.hop
        self.kernel.at(self.kernel.now + delay, self._start, (ring, volume, done, argument))

    def _start(self, flow: tuple[Ring, float, Callable[[Any], None], Any]) -> None:
        self._advance()
        ring, volume, done, argument = flow
        self.started += 1
        self._add(ring, 1)
        self.flows[self.started] = _Flow(ring, volume, done, argument)
        self._share()

    def _add(self, ring: Ring, sign: int) -> None:
        for node, leaving in zip(ring.nodes, ring.leaving, strict=True):
            self.load[node] += sign * leaving

    def _advance(self) -> None:
        """Move every flow by its rate since the last change."""
        passed = self.kernel.now - self.since
        self.since = self.kernel.now
        for flow in self.flows.values():
            flow.left -= passed * flow.rate

    def _share(self) -> None:
        """Set new rates, and schedule the end of the flow that ends first."""
        soonest, first = float("inf"), None
        for number, flow in self.flows.items():
            ring = flow.ring
            if ring.nodes:
                most = self.adapter if ring.alone else self.between
                flow.rate = min(self.within, most, self.between / max(map(self.load.__getitem__, ring.nodes)))
            else:
                flow.rate = self.within
            if (ends := flow.left / flow.rate) < soonest:
                soonest, first = ends, number
        if first is not None:
            # the flow that ends is named: what is left of it need not be zero to the last bit
            self.kernel.at(self.kernel.now + max(0.0, soonest), self._end, (first, self.started, len(self.flows)))

    def _end(self, state: tuple[int, int, int]) -> None:
        number, started, count = state
        if (started, count) != (self.started, len(self.flows)):
            return  # rates have changed since: a later event says when it ends
        self._advance()
        flow = self.flows.pop(number)
        self._add(flow.ring, -1)
        self._share()
        flow.done(flow.argument)


@dataclass(slots=True, eq=False)
class _Flow:
    ring: Ring
    left: float
    done: Callable[[Any], None]
    argument: Any
    rate: float = 0.0
