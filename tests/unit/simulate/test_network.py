"""Seconds of messages and collectives, with contention on a link.

Finish times are counted by hand: a share of an adapter that is wrong by a factor still looks like a plausible figure.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from suite.core.errors import InvalidRequest
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.kernel import Kernel
from suite.simulate.network.machine import Link, Machine
from suite.simulate.network.network import (
    Fabric,
    Lane,
    Ring,
    hierarchical_seconds,
    ring_seconds,
    ring_volume,
    scatter_volume,
)
from tests.support.modelled import efficiency, machine
from tests.support.refusals import refused

# -- lanes -----------------------------------------------------------------------------------------------------------


def test_a_lane_carries_one_message_after_the_other() -> None:
    """10 bytes/s, 0.5 s of latency: the link is busy for the bytes, the latency is on the way."""
    lane = Lane(Link(0.5, 10.0))
    assert lane.arrival(0.0, 20) == 2.5
    assert lane.arrival(1.0, 10) == 3.5  # waits until 2
    assert lane.arrival(1.0, 0) == 3.5  # behind the other, at once
    assert lane.arrival(7.0, 10) == 8.5  # the link is free again


def test_a_lane_is_first_in_first_out() -> None:
    lane = Lane(Link(0.25, 10.0))
    arrivals = [lane.arrival(now, size) for now, size in ((0.0, 100), (0.0, 1), (5.0, 3), (9.0, 0), (11.0, 1))]
    assert arrivals == sorted(arrivals)
    assert arrivals == pytest.approx([10.25, 10.35, 10.65, 10.65, 11.35])


# -- closed forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 16, 32])
def test_a_ring_sends_2_n_minus_1_over_n(ranks: int) -> None:
    """Law 5. The ring is walked, an n-th of the numbers at a time: every rank ends with all sums."""
    parts_of_rank = [[rank + 10 * part for part in range(ranks)] for rank in range(ranks)]
    sums = [sum(parts) for parts in zip(*parts_of_rank, strict=True)]
    sent = [0] * ranks
    for step in range(2 * (ranks - 1)):
        moved = [((rank - step) % ranks, parts_of_rank[rank][(rank - step) % ranks]) for rank in range(ranks)]
        for rank, (part, value) in enumerate(moved):
            sent[rank] += 1
            after = parts_of_rank[(rank + 1) % ranks]
            after[part] = after[part] + value if step < ranks - 1 else value
    assert parts_of_rank == [sums] * ranks
    for parts in sent:
        assert ring_volume(5040 * ranks, ranks) == pytest.approx(5040 * parts, rel=1e-12)
        assert 2 * scatter_volume(5040 * ranks, ranks) == pytest.approx(5040 * parts, rel=1e-12)


def test_ring_seconds_by_hand() -> None:
    """4 ranks, 80 bytes, 10 bytes/s, 0.5 s a step: 6 steps of 20 bytes."""
    assert ring_seconds(80, 4, Link(0.5, 10.0)) == pytest.approx(6 * (0.5 + 20 / 10))
    assert ring_seconds(80, 1, Link(0.5, 10.0)) == 0.0


def test_hierarchical_seconds_by_hand() -> None:
    """3 nodes of 2, 120 bytes: 60 bytes scattered at 100 and gathered again, and between nodes 160 at 10 bytes/s."""
    within, between = Link(0.25, 100.0), Link(0.5, 10.0)
    seconds = hierarchical_seconds(120, per_node=2, nodes=3, within=within, between=between)
    assert seconds == pytest.approx(2 * (0.25 + 0.6) + 4 * 0.5 + 16.0)
    alone = hierarchical_seconds(120, per_node=1, nodes=3, within=within, between=between)
    assert alone == ring_seconds(120, 3, between)
    one_node = hierarchical_seconds(120, per_node=4, nodes=1, within=within, between=between)
    assert one_node == pytest.approx(ring_seconds(120, 4, within))


# -- rings -----------------------------------------------------------------------------------------------------------


def leaving(ring: Ring) -> dict[int, int]:
    return dict(zip(ring.nodes.tolist(), ring.leaving.tolist(), strict=True))


def test_what_leaves_a_node() -> None:
    two = machine(devices_per_node=2)
    column = Ring.of((0, 2, 4), two)
    assert leaving(column) == {0: 1, 1: 1, 2: 1}
    assert column.alone
    row = Ring.of(range(6), two)
    assert leaving(row) == {0: 1, 1: 1, 2: 1}  # the other step of each node stays inside
    assert not row.alone
    inside = Ring.of((2, 3), two)
    assert leaving(inside) == {}
    assert not inside.alone
    crossed = Ring.of((0, 2, 1, 3), two)  # every step crosses
    assert leaving(crossed) == {0: 2, 1: 2}
    assert (Ring.of((5,), two).size, leaving(Ring.of((5,), two))) == (1, {})


def test_rings_beside_one_another_leave_together() -> None:
    """A layer split over three ranks: three rings, of which one stands for all."""
    ring = Ring.of((0, 6), machine(devices_per_node=6), beside=3)
    assert leaving(ring) == {0: 3, 1: 3}
    assert (ring.size, ring.ranks, ring.alone) == (2, (0, 6), True)
    straddling = Ring.of((1, 4), machine(devices_per_node=3), beside=3)  # 1, 2 and 4, 5 inside; 3 and 6 one node on
    assert leaving(straddling) == {0: 2, 1: 3, 2: 1}


@pytest.mark.parametrize("ranks", [(), (0, 0), (1, 2, 1)])
def test_a_ring_holds_each_rank_once(ranks: Sequence[int]) -> None:
    with refused(InvalidRequest, subject="a ring of the ranks", rule="at least one rank, each once", legal="[0]"):
        Ring.of(ranks, machine())


# -- collectives at once -----------------------------------------------------------------------------------------------


def finish(
    flows: Sequence[tuple[float, Ring, float]],
    on: Machine,
    software: Efficiency | None = None,
    *,
    ranks: int = 8,
    steps: int = 0,
    more: Callable[[Fabric, int], None] = lambda *_: None,
) -> list[float]:
    """When each of `flows` (start, ring, bytes of a rank) is done. more: called when one is."""
    kernel = Kernel()
    fabric = Fabric(kernel, on, software or efficiency(), ranks)
    ends = [math.nan] * len(flows)

    def done(number: int) -> None:
        ends[number] = kernel.now
        more(fabric, number)

    def start(flow: tuple[int, Ring, float]) -> None:
        number, ring, volume = flow
        fabric.collective(ring, volume, steps, done, number)

    for number, (time, ring, volume) in enumerate(flows):
        kernel.at(time, start, (number, ring, volume))
    kernel.run()
    assert not fabric.flows
    assert not fabric.load.any()
    return ends


TWO = machine(devices_per_node=2)  # 10 bytes/s a node, 100 inside
LEFT, RIGHT = Ring.of((0, 2), TWO), Ring.of((1, 3), TWO)


def test_a_ring_alone_has_the_adapter() -> None:
    assert finish([(0.0, LEFT, 100)], TWO) == [10.0]
    assert finish([(3.0, LEFT, 100)], TWO) == [13.0]
    assert finish([(0.0, LEFT, 100)], TWO, efficiency(network=0.5)) == [20.0]


def test_two_rings_of_a_node_take_twice_as_long() -> None:
    assert finish([(0.0, LEFT, 100), (0.0, RIGHT, 100)], TWO) == pytest.approx([20.0, 20.0])


@pytest.mark.parametrize("rings", [3, 6])
def test_all_rings_of_a_node_share_it(rings: int) -> None:
    """AxoNN's columns: a rank of each on every node."""
    six = machine(devices_per_node=6)
    flows = [(0.0, Ring.of((first, first + 6, first + 12), six), 40) for first in range(rings)]
    assert finish(flows, six, ranks=18) == pytest.approx([4.0 * rings] * rings)


def test_a_short_one_that_ends_gives_its_share_back() -> None:
    """5 bytes/s each: the short one is done at 8 s, with 60 of the long one left, which takes 6 s more."""
    assert finish([(0.0, LEFT, 100), (0.0, RIGHT, 40)], TWO) == pytest.approx([14.0, 8.0])


def test_one_that_comes_later_takes_its_share() -> None:
    """40 bytes at 10, then 5 each: the later one is done at 10 s, the first has 30 left, alone."""
    assert finish([(0.0, LEFT, 100), (4.0, RIGHT, 30)], TWO) == pytest.approx([13.0, 10.0])


def test_three_at_once_and_a_fourth_behind() -> None:
    """10/3 bytes/s each until 9 s (30 bytes), then 5 bytes/s; from 12 s three collectives share the adapter again."""
    three = machine(devices_per_node=4)
    rings = [Ring.of((first, first + 4), three) for first in range(4)]
    flows = [(0.0, rings[0], 30), (0.0, rings[1], 75), (0.0, rings[2], 75), (12.0, rings[3], 10)]
    # at 12 s 30 are left of two; 10/3 each until 15 s, when the last is done; then 20 of two at 5
    assert finish(flows, three) == pytest.approx([9.0, 19.0, 19.0, 15.0])


def test_only_the_worst_adapter_counts() -> None:
    """A ring over three nodes, and another on the first two: its share there is its speed, everywhere."""
    flows = [(0.0, Ring.of((0, 2, 4), TWO), 60), (0.0, RIGHT, 60), (0.0, Ring.of((5, 7), TWO), 20)]
    # nodes 0 and 1 carry two, node 2 two, node 3 one: all at 5 bytes/s; the third is done at 4 s
    assert finish(flows, TWO) == pytest.approx([12.0, 12.0, 4.0])


def test_rings_on_other_nodes_do_not_meet() -> None:
    assert finish([(0.0, LEFT, 100), (0.0, Ring.of((4, 6), TWO), 100)], TWO) == [10.0, 10.0]


def test_a_ring_inside_a_node_needs_no_adapter() -> None:
    """It has the links of the node, slows nothing down and is slowed by nothing."""
    flows = [(0.0, LEFT, 100), (0.0, Ring.of((0, 1), TWO), 100), (0.0, Ring.of((2, 3), TWO), 50)]
    assert finish(flows, TWO) == pytest.approx([10.0, 1.0, 0.5])
    assert finish(flows[1:], TWO, efficiency(within=0.5)) == pytest.approx([2.0, 1.0])


def test_no_ring_is_quicker_than_the_links_of_its_node() -> None:
    slow = machine(within=Link(0.0, 4.0))
    assert finish([(0.0, Ring.of((0, 2), slow), 100)], slow) == [25.0]


def test_single_ring_uses_one_adapter_per_node() -> None:
    """Two adapters per node: a column uses the adapter of its device, a ring through several devices uses both."""
    two, both = machine(adapters=2), efficiency(adapters=2)
    assert finish([(0.0, LEFT, 100)], two, both) == [10.0]
    assert finish([(0.0, LEFT, 100), (0.0, RIGHT, 100)], two, both) == pytest.approx([10.0, 10.0])
    assert finish([(0.0, Ring.of(range(4), two), 100)], two, both) == [5.0]
    assert finish([(0.0, LEFT, 100), (0.0, RIGHT, 100)], two) == pytest.approx([20.0, 20.0])  # the software uses one
    assert finish([(0.0, Ring.of(range(4), two), 100)], two, efficiency(adapters=8)) == [5.0]  # the node has two


def test_rings_of_split_layers_are_one_and_share_as_many() -> None:
    """Three parallel rings send 3 x 100 bytes through the adapter; another ring gets a quarter of it."""
    six = machine(devices_per_node=6)
    split, other = Ring.of((0, 6), six, beside=3), Ring.of((3, 9), six)
    assert finish([(0.0, split, 100)], six, ranks=12) == pytest.approx([30.0])
    assert finish([(0.0, split, 100), (0.0, other, 50)], six, ranks=12) == pytest.approx([35.0, 20.0])


def test_a_group_of_one_rank_costs_nothing() -> None:
    assert finish([(2.0, Ring.of((3,), TWO), 1e9)], TWO, efficiency(collective=1.0, hop=1.0), steps=7) == [2.0]


def test_a_call_costs_and_so_does_every_step() -> None:
    """Latency comes before the bytes, and needs no adapter: 1 + 6 x 0.5 s."""
    usual = efficiency(collective=1.0, hop=0.5)
    assert finish([(0.0, LEFT, 100)], TWO, usual, steps=6) == [14.0]
    kernel = Kernel()
    fabric, ends = Fabric(kernel, TWO, usual, 4), list[float]()
    fabric.collective(LEFT, 20, 0, lambda _: ends.append(kernel.now), None)
    fabric.collective(RIGHT, 100, 18, lambda _: ends.append(kernel.now), None)
    kernel.run()
    assert ends == [3.0, 20.0]  # the first is through before the second's 10 s of latency are


def test_one_that_is_done_may_start_the_next() -> None:
    """Chunks of one update: the ring keeps its share during a long one."""
    chunks = [3]

    def next_chunk(fabric: Fabric, number: int) -> None:
        if number == 0 and chunks[0]:
            chunks[0] -= 1
            fabric.collective(LEFT, 10, 0, lambda _: next_chunk(fabric, 0), None)

    # four chunks of 10 bytes at 5 bytes/s until 8 s; 60 of the other 100 bytes remain then
    assert finish([(0.0, LEFT, 10), (0.0, RIGHT, 100)], TWO, more=next_chunk)[1] == pytest.approx(14.0)


@pytest.mark.parametrize(("nodes", "seconds"), [(2, 12.5), (3, 15.0), (5, 20.0), (13, 40.0)])
def test_a_large_network_slows_rings_down(nodes: int, seconds: float) -> None:
    """fabric=4: four nodes more halve what one node would have had, whichever of them the ring is on."""
    assert finish([(0.0, LEFT, 100)], TWO, efficiency(fabric=4.0), ranks=2 * nodes) == pytest.approx([seconds])
    assert finish([(0.0, LEFT, 100)], TWO, ranks=2 * nodes) == [10.0]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_sent_is_what_was_given(seed: int) -> None:
    """At any arrival times: an adapter that is never idle has sent all bytes when the last ring is done."""
    clock = random.Random(seed)
    six = machine(devices_per_node=6)
    flows = [(clock.random(), Ring.of((n, n + 6), six), clock.uniform(10, 50)) for n in range(6)]
    ends = finish(flows, six, ranks=12)
    assert max(ends) == pytest.approx(min(time for time, _, _ in flows) + sum(size for _, _, size in flows) / 10)
    assert all(end > time + size / 10 for end, (time, _, size) in zip(ends, flows, strict=True))


def test_a_hierarchical_reduction_takes_what_its_closed_form_says() -> None:
    """Six ranks on three nodes of two, alone: inside at 100 bytes/s, outside over both adapters of 10 at half speed."""
    two = machine(devices_per_node=2, adapters=2)
    used = efficiency(hierarchical=True, adapters=2, network=0.5, hop=0.0)
    kernel, ended = Kernel(), []
    fabric = Fabric(kernel, two, used, 6)
    ring = Ring.of(range(6), two)
    fabric.collective(ring, ring_volume(120, 6), 0, lambda _: ended.append(kernel.now), None)
    kernel.run()
    within, between = Link(0.0, two.within.bandwidth), Link(0.0, two.between.bandwidth * 2 * 0.5)
    assert ended == [pytest.approx(hierarchical_seconds(120, per_node=2, nodes=3, within=within, between=between))]
    flat = Fabric(kernel, two, efficiency(adapters=2, network=0.5), 6)
    flat.collective(ring, ring_volume(120, 6), 0, lambda _: ended.append(kernel.now - ended[0]), None)
    kernel.run()
    assert ended[1] == pytest.approx(ring_volume(120, 6) / between.bandwidth)


def test_one_rank_a_node_has_no_levels() -> None:
    two = machine(devices_per_node=2)
    ring = Ring.of((0, 2, 4), two)
    seconds = []
    for hierarchical in (False, True):
        kernel = Kernel()
        fabric = Fabric(kernel, two, efficiency(hierarchical=hierarchical), 6)
        fabric.collective(ring, 40.0, 0, lambda _: seconds.append(kernel.now), None)  # noqa: B023 - run below
        kernel.run()
    assert seconds[0] == seconds[1] > 0
