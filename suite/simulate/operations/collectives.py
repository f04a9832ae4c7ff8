"""Seconds of collectives over groups of equally spaced ranks on a machine.

A group is described by its size and the distance between its ranks in the order of the devices. Ranks within one node
communicate over the node's links; other groups leave nodes through the adapters of their own devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd, log2

from suite.simulate.network.machine import Machine
from suite.simulate.network.network import scatter_volume
from suite.simulate.operations.generation import SoftwareGeneration


@dataclass(frozen=True, slots=True)
class SpacedRanks:
    """`size` ranks at a distance of `stride` devices."""

    size: int
    stride: int = 1

    def per_node(self, machine: Machine) -> int:
        """Ranks of the group on one node; where groups of a node do not divide it, those of the group that spans two.

        On nodes of 6 devices, the second group of 4 neighbours has 2 on each of two nodes.
        """
        slots = max(1, machine.devices_per_node // self.stride)
        return gcd(self.size, slots) if self.size <= slots else slots


def bandwidth(group: SpacedRanks, machine: Machine, generation: SoftwareGeneration) -> float:
    """bytes/s at which data passes a rank of the group.

    A group inside a node uses the node's links. A ring over nodes is limited by the adapters of the ranks of the group
    on one node, because the other groups of the node use theirs at the same time.
    """
    inside = machine.within.bandwidth * generation.within
    on_node = group.per_node(machine)
    if on_node == group.size:
        return inside
    per_device = machine.between.bandwidth * machine.adapters / machine.devices_per_node
    return min(inside, per_device * on_node * generation.between)


def latency(group: SpacedRanks, machine: Machine, generation: SoftwareGeneration) -> float:
    """Seconds of an all-reduce without bytes: rings inside nodes, trees between nodes."""
    on_node = group.per_node(machine)
    nodes = ceil(group.size / on_node)
    between = 2 * ceil(log2(nodes)) * generation.network_hop if nodes > 1 else 0.0
    return generation.collective + (on_node - 1) * generation.hop + between


def gather_seconds(size: float, group: SpacedRanks, machine: Machine, generation: SoftwareGeneration) -> float:
    """Seconds of an all-gather or a reduce-scatter of `size` bytes in total.

    NCCL has no tree for them: one ring passes all ranks, so 512 ranks on 64 nodes take 448 hops inside nodes and 63
    between nodes.
    """
    if group.size == 1:
        return 0.0
    nodes = ceil(group.size / group.per_node(machine))
    hops = (group.size - nodes) * generation.hop + (nodes - 1) * generation.network_hop
    return generation.collective + hops + scatter_volume(size, group.size) / bandwidth(group, machine, generation)


def all_reduce_seconds(size: float, group: SpacedRanks, machine: Machine, generation: SoftwareGeneration) -> float:
    """Seconds of an all-reduce of `size` bytes: a reduce-scatter and an all-gather."""
    if group.size == 1:
        return 0.0
    moved = 2 * scatter_volume(size, group.size) / bandwidth(group, machine, generation)
    return latency(group, machine, generation) + moved


def message_seconds(size: float, stride: int, machine: Machine, generation: SoftwareGeneration) -> tuple[float, float]:
    """Latency and bytes/s of a message to the rank at a distance of `stride` devices."""
    if stride < machine.devices_per_node:
        return generation.collective + machine.within.latency, machine.within.bandwidth * generation.within
    per_device = machine.between.bandwidth * machine.adapters / machine.devices_per_node
    return generation.collective + machine.between.latency, per_device * generation.between
