"""Event queue, lanes, rings and collectives that share adapters, at hand-computed times.

A share of an adapter that is wrong by a factor still looks like a plausible figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from suite.core.errors import InvalidRequest
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.kernel import Kernel
from suite.simulate.network.machine import Link, Machine
from suite.simulate.network.network import (
    Fabric,
    Lane,
    Ring,
)
from tests.support.modelled import efficiency, machine
from tests.support.refusals import refused

# -- event queue -------------------------------------------------------------------------------------------------------


def test_events_happen_in_order_of_time_then_of_entry() -> None:
    """The arguments are not compared, whatever they are. A tie that fell otherwise would make another schedule."""
    kernel, seen = Kernel(), list[tuple[object, float]]()
    arguments = [object(), "z", 1, None, object()]
    for time, argument in ((3.0, "last"), *((1.0, each) for each in arguments), (2.0, "middle")):
        kernel.at(time, lambda each: seen.append((each, kernel.now)), argument)
    assert kernel.run() == kernel.now == 3.0
    assert seen == [*((each, 1.0) for each in arguments), ("middle", 2.0), ("last", 3.0)]
    assert Kernel().run() == 0.0


def test_a_choice_sees_every_event_of_its_instant() -> None:
    """Also those that are entered while the instant lasts; and a choice may make events of its own instant."""
    kernel, seen = Kernel(), list[str]()

    def choose(name: str) -> None:
        seen.append(f"{name} chosen")
        if name == "first":
            kernel.at(kernel.now, seen.append, "made by the choice")
            kernel.choose(choose, "second")

    kernel.at(1.0, lambda _: kernel.choose(choose, "first"))
    kernel.at(1.0, lambda _: kernel.at(1.0, seen.append, "made by an event"))
    kernel.at(1.0, seen.append, "event")
    kernel.at(2.0, seen.append, "next instant")
    kernel.run()
    expected = ["event", "made by an event", "first chosen", "made by the choice", "second chosen", "next instant"]
    assert (seen, kernel.events) == (expected, 5 + 1)
    alone = Kernel()
    alone.choose(seen.append, "without events")
    assert (alone.run(), seen[-1]) == (0.0, "without events")


@pytest.mark.parametrize("time", [0.999, -1.0, math.nan])
def test_time_does_not_run_backwards(time: float) -> None:
    kernel = Kernel()
    kernel.at(1.0, lambda _: kernel.at(time, print))
    with refused(InvalidRequest, subject="now is 1 s"):
        kernel.run()


# -- lanes and closed forms --------------------------------------------------------------------------------------------


def test_a_lane_carries_one_message_after_the_other() -> None:
    """10 bytes/s, 0.5 s of latency: the link is busy for the bytes, the latency is on the way."""
    lane = Lane(Link(0.5, 10.0))
    sent = ((0.0, 20), (1.0, 10), (1.0, 0), (7.0, 10))  # the second waits until 2 s; at 7 s the link is free again
    assert [lane.arrival(now, size) for now, size in sent] == [2.5, 3.5, 3.5, 8.5]


# -- rings -------------------------------------------------------------------------------------------------------------

TWO = machine(devices_per_node=2)  # 10 bytes/s a node, 100 inside
SIX = machine(devices_per_node=6)


@pytest.mark.parametrize(
    ("ranks", "devices", "beside", "leaving", "alone"),
    [
        ((0, 2, 4), 2, 1, {0: 1, 1: 1, 2: 1}, True),
        (range(6), 2, 1, {0: 1, 1: 1, 2: 1}, False),  # the other step of each node stays inside
        ((2, 3), 2, 1, {}, False),
        ((0, 2, 1, 3), 2, 1, {0: 2, 1: 2}, False),  # every step crosses
        ((5,), 2, 1, {}, True),
        ((0, 6), 6, 3, {0: 3, 1: 3}, True),  # a layer split over three ranks: one ring stands for three
        ((1, 4), 3, 3, {0: 2, 1: 3, 2: 1}, ...),  # 1, 2 and 4, 5 inside; 3 and 6 one node on
    ],
)
def test_links_of_a_ring_that_leave_each_node(
    ranks: Sequence[int], devices: int, beside: int, leaving: dict[int, int], alone: object
) -> None:
    ring = Ring.of(ranks, machine(devices_per_node=devices), beside=beside)
    assert dict(zip(ring.nodes, ring.leaving, strict=True)) == leaving
    assert (ring.size, ring.ranks) == (len(ranks), tuple(ranks))
    assert alone is ... or ring.alone is alone


@pytest.mark.parametrize("ranks", [(), (0, 0), (1, 2, 1)])
def test_a_ring_holds_each_rank_once(ranks: Sequence[int]) -> None:
    with refused(InvalidRequest, legal="[0]"):
        Ring.of(ranks, machine())


# -- collectives at once -----------------------------------------------------------------------------------------------


def finish(
    flows: Sequence[tuple[float, Ring, float]],
    on: Machine,
    software: Efficiency | None = None,
    *,
    ranks: int = 8,
    steps: int = 0,
) -> list[float]:
    """When each of `flows` (start, ring, bytes of a rank) is done."""
    kernel = Kernel()
    fabric = Fabric(kernel, on, software or efficiency(), ranks)
    ends = [math.nan] * len(flows)

    def done(number: int) -> None:
        ends[number] = kernel.now

    def start(flow: tuple[int, Ring, float]) -> None:
        number, ring, volume = flow
        fabric.collective(ring, volume, steps, done, number)

    for number, (time, ring, volume) in enumerate(flows):
        kernel.at(time, start, (number, ring, volume))
    kernel.run()
    assert not fabric.flows
    assert not any(fabric.load)
    return ends


LEFT, RIGHT = Ring.of((0, 2), TWO), Ring.of((1, 3), TWO)
BOTH, WHOLE = machine(adapters=2), Ring.of(range(4), machine(adapters=2))
SLOW = machine(within=Link(0.0, 4.0))
FOURS = [Ring.of((first, first + 4), machine(devices_per_node=4)) for first in range(4)]
COLUMNS = [(0.0, Ring.of((first, first + 6, first + 12), SIX), 40) for first in range(6)]
INSIDE = [(0.0, Ring.of((0, 1), TWO), 100), (0.0, Ring.of((2, 3), TWO), 50)]
SPLIT = (0.0, Ring.of((0, 6), SIX, beside=3), 100)
ONE, OTHER = (0.0, LEFT, 100), (0.0, RIGHT, 100)


@pytest.mark.parametrize(
    ("flows", "on", "software", "expected"),
    [
        ([ONE], TWO, {}, [10]),
        ([(3.0, LEFT, 100)], TWO, {}, [13]),
        ([ONE], TWO, {"network": 0.5}, [20]),
        ([ONE, OTHER], TWO, {}, [20, 20]),
        (COLUMNS[:3], SIX, {}, [12] * 3),  # AxoNN's columns: a rank of each on every node
        (COLUMNS, SIX, {}, [24] * 6),
        # 5 bytes/s each until the short one is done at 8 s; the other 60 bytes take 6 s more
        ([ONE, (0.0, RIGHT, 40)], TWO, {}, [14, 8]),
        # 40 bytes at 10, then 5 each: the later one is done at 10 s, the first has 30 left, alone
        ([ONE, (4.0, RIGHT, 30)], TWO, {}, [13, 10]),
        # 10/3 bytes/s each until 9 s, then 5; at 12 s 30 are left of two, and 10/3 each until 15 s, then 20 of two at 5
        (
            [(0.0, FOURS[0], 30), (0.0, FOURS[1], 75), (0.0, FOURS[2], 75), (12.0, FOURS[3], 10)],
            *(machine(devices_per_node=4), {}, [9, 19, 19, 15]),
        ),
        # the share on the worst adapter is the speed of a ring: nodes 0, 1 and 2 carry two
        ([(0.0, Ring.of((0, 2, 4), TWO), 60), (0.0, RIGHT, 60), (0.0, Ring.of((5, 7), TWO), 20)], TWO, {}, [12, 12, 4]),
        ([ONE, (0.0, Ring.of((4, 6), TWO), 100)], TWO, {}, [10, 10]),  # on other nodes
        ([ONE, *INSIDE], TWO, {}, [10, 1, 0.5]),  # a ring inside a node needs no adapter
        (INSIDE, TWO, {"within": 0.5}, [2, 1]),
        ([(0.0, Ring.of((0, 2), SLOW), 100)], SLOW, {}, [25]),  # no quicker than the links of its node
        # a column uses the adapter of its device, a ring through several devices uses both
        ([ONE], BOTH, {"adapters": 2}, [10]),
        ([ONE, OTHER], BOTH, {"adapters": 2}, [10, 10]),
        ([(0.0, WHOLE, 100)], BOTH, {"adapters": 2}, [5]),
        ([ONE, OTHER], BOTH, {}, [20, 20]),  # the software uses one
        ([(0.0, WHOLE, 100)], BOTH, {"adapters": 8}, [5]),  # the node has two
        # three parallel rings send 3 x 100 bytes through the adapter; another ring gets a quarter of it
        ([SPLIT], SIX, {}, [30]),
        ([SPLIT, (0.0, Ring.of((3, 9), SIX), 50)], SIX, {}, [35, 20]),
    ],
)
def test_collectives_share_the_adapters_of_a_node(
    flows: Sequence[tuple[float, Ring, float]], on: Machine, software: dict[str, object], expected: list[float]
) -> None:
    assert finish(flows, on, efficiency(**software), ranks=18) == pytest.approx(expected)


def test_a_call_costs_and_so_does_every_step() -> None:
    """Latency comes before the bytes, and needs no adapter: 1 + 6 x 0.5 s. A group of one rank costs nothing."""
    usual = efficiency(collective=1.0, hop=0.5)
    assert finish([ONE], TWO, usual, steps=6) == [14.0]
    assert finish([(2.0, Ring.of((3,), TWO), 1e9)], TWO, usual, steps=7) == [2.0]
    kernel, ends = Kernel(), list[float]()
    fabric = Fabric(kernel, TWO, usual, 4)
    for ring, volume, steps in ((LEFT, 20, 0), (RIGHT, 100, 18)):
        fabric.collective(ring, volume, steps, lambda _: ends.append(kernel.now), None)
    kernel.run()
    assert ends == [3.0, 20.0]  # the first is through before the second's 10 s of latency are
