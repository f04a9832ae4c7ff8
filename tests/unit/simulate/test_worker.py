"""Ranks in virtual time: start, wait, send and step at hand-computed times.

The laws of whole schedules stand in tests/laws/test_simulated.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from suite.core.errors import IllegalSchedule
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Op, Place, Program
from suite.core.protocols import Chunk, CostModel
from suite.core.trace import REDUCE, STEP, WAIT, Trace
from suite.schedule import MessageDriven, OneFOneB
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.worker import NetworkModel, simulate
from tests.support.modelled import FREE, efficiency, machine, network
from tests.support.schedules import Script


def spans_of(trace: Trace, rank: int) -> list[str]:
    return [f"{s.category} {s.op} {s.start:g}-{s.end:g}" for s in trace if s.rank == rank]


TWO, FLUSH = Grid(inter=2), FlushInterval(0, 2, None, 0)
MESSAGES = Fixed(1.0, 2.0, message_bytes=5)  # 0.5 s on a link of 10 bytes/s


def test_two_stages_by_hand() -> None:
    """A message takes 0.5 s of latency and 0.5 s for its bytes; sends cost a stage nothing."""
    simulation = simulate(OneFOneB(), TWO, FLUSH, MESSAGES, network(0.5, 10.0), traced=True)
    assert spans_of(simulation.trace, 0) == [
        *("forward 0F0 0-1", "forward 0F1 1-2", "wait 0B0 2-6", "backward 0B0 6-8"),
        *("wait 0B1 8-9", "backward 0B1 9-11", "reduce 0U0 11-11", "step 0U0 11-11"),
    ]
    assert spans_of(simulation.trace, 1) == [
        *("wait 1F0 0-2", "forward 1F0 2-3", "backward 1B0 3-5", "wait 1F1 5-5", "forward 1F1 5-6"),
        *("backward 1B1 6-8", "reduce 1U0 8-8", "step 1U0 8-8"),
    ]
    assert (simulation.makespan, simulation.drained, simulation.finished) == (11.0, [11.0, 8.0], [11.0, 8.0])
    assert (simulation.peak, simulation.sent) == ([2, 1], [10, 10])
    assert [span.bytes for span in simulation.trace if span.rank == 0 and span.op == Op.parse("0F1")] == [5]
    assert [span.bytes for span in simulation.trace if span.op == Op.parse("1F1") and span.category != WAIT] == [0]


def test_two_stages_whose_sends_occupy_them() -> None:
    """Each is busy until its message has arrived: forwards end at 2 and 4, the first backward's message at 6."""
    simulation = simulate(OneFOneB(), TWO, FLUSH, MESSAGES, network(0.5, 10.0, blocking=True), traced=True)
    assert spans_of(simulation.trace, 0)[:2] == ["forward 0F0 0-1", "forward 0F1 2-3"]
    assert [span for span in spans_of(simulation.trace, 1) if not span.startswith(WAIT)][:4] == [
        *("forward 1F0 2-3", "backward 1B0 3-5", "forward 1F1 6-7", "backward 1B1 7-9"),
    ]
    assert (simulation.makespan, simulation.drained) == (12.0, [12.0, 10.0])


def test_messages_both_ways_do_not_wait_for_one_another() -> None:
    """The stage in the middle ends 1B0 at 17 s and 1F2 at 18 s: both messages take 4 s from then."""
    simulation = simulate(
        OneFOneB(),
        Grid(inter=3),
        FlushInterval(0, 4, None, 0),
        Fixed(1.0, 1.0, message_bytes=40),
        network(0.0, 10.0),
        traced=True,
    )
    passes = {str(span.op): (span.start, span.end) for span in simulation.trace if span.category != WAIT}
    assert (passes["1B0"], passes["1F2"]) == ((16.0, 17.0), (17.0, 18.0))
    assert (passes["0B0"][0], passes["2F2"][0]) == (21.0, 22.0)


def test_of_what_is_ready_the_program_prefers() -> None:
    """Three microbatches in flight: at 4 s the first stage could run its third forward or its first backward."""
    cost = Fixed([2.0, 1.0], 1.0)
    orders = {}
    for prefer in ("backward", "forward"):
        schedule = MessageDriven(pipeline_limit=3, prefer=prefer)
        trace = simulate(schedule, TWO, FlushInterval(0, 3, None, 0), cost, FREE, traced=True).trace
        orders[prefer] = [str(s.op) for s in trace if s.rank == 0 and s.category not in (WAIT, REDUCE, STEP)]
    assert orders["backward"] == ["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"]
    assert orders["forward"] == ["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"]


# -- updates -----------------------------------------------------------------------------------------------------------


@dataclass
class Chunked(CostModel):
    """Passes of 1 s, and these chunks on every stage."""

    chunks: Sequence[Chunk]

    def compute(self, op: Op) -> float:
        return 1.0

    def message(self, op: Op) -> int:
        return 0

    def update(self, stage: int) -> Sequence[Chunk]:
        return self.chunks


RINGS = NetworkModel.of(machine(devices_per_node=1), efficiency(), 2)  # two nodes: 10 bytes/s, no latency


@pytest.mark.parametrize(
    ("chunks", "reduced", "finished"),
    [
        ([(20, 1.0)], 2.0, 3.0),  # one after the other
        ([(20, 1.0)] * 3, 6.0, 7.0),  # steps overlap reductions: only the last step remains at the end
        ([(10, 2.0)] * 3, 3.0, 7.0),  # reductions overlap steps: the first reduction, then three steps
        ([(10, 5.0), (30, 1.0), (10, 0.5)], 5.0, 7.5),
        ([(0, 1.0), (10, 1.0)], 1.0, 2.0),
        ([(10, 0.0)], 1.0, 1.0),
        ([], 0.0, 0.0),
    ],
)
def test_a_chunk_is_stepped_once_it_is_reduced(
    chunks: list[tuple[int, float]], reduced: float, finished: float
) -> None:
    cost = Chunked([Chunk(*chunk) for chunk in chunks])
    for symmetric in (True, False):
        simulation = simulate(OneFOneB(), Grid(data=2), FlushInterval(0, 1, None, 0), cost, RINGS, symmetric=symmetric)
        assert (simulation.drained, simulation.reduced, simulation.finished) == ([2.0], [2 + reduced], [2 + finished])


def test_reduction_is_one_call_of_two_steps_per_peer() -> None:
    """0.5 s for the call and 0.25 s for each of 2 (3 - 1) steps, then 2 s for 20 bytes; for none no call."""
    slow = NetworkModel.of(machine(devices_per_node=1), efficiency(collective=0.5, hop=0.25), 3)
    for chunk, reduced in ((Chunk(20, 0.0), 3.5), (Chunk(0, 0.0), 0.0)):
        simulation = simulate(OneFOneB(), Grid(data=3), FlushInterval(0, 1, None, 0), Chunked([chunk]), slow)
        assert simulation.reduced == [2 + reduced]


def test_the_rings_of_a_split_layer_share_the_adapter() -> None:
    """Two ranks of a layer on each node: both rings leave it at once, at 5 bytes/s."""
    split = NetworkModel.of(machine(devices_per_node=2), efficiency(), 4)
    simulation = simulate(
        OneFOneB(), Grid(data=2, tensor=2), FlushInterval(0, 1, None, 0), Chunked([Chunk(20, 0.0)]), split
    )
    assert simulation.reduced == [2 + 4.0]


def test_without_replicas_nothing_is_reduced() -> None:
    simulation = simulate(OneFOneB(), Grid(), FlushInterval(0, 1, None, 0), Chunked([Chunk(1000, 0.5)] * 2), RINGS)
    assert (simulation.reduced, simulation.finished) == ([2.0], [3.0])


def test_stage_updates_after_its_own_or_the_global_drain() -> None:
    """Stage 1 drains at 3, stage 0 at 4. Of one node's two rings each has half of its adapter."""
    cost, grid, interval = Chunked([Chunk(20, 0.25)]), Grid(data=2, inter=2), FlushInterval(0, 1, None, 0)
    on = machine(devices_per_node=2)
    per_stage = simulate(OneFOneB(), grid, interval, cost, NetworkModel.of(on, efficiency(), 4))
    # stage 1's ring has sent 10 of its 20 bytes at 4 s; then both have 5 bytes/s, and from 6 s stage 0's is alone
    assert per_stage.drained == [4.0, 3.0]
    assert per_stage.reduced == pytest.approx([7.0, 6.0])
    assert per_stage.finished == pytest.approx([7.25, 6.25])
    apart = simulate(OneFOneB(), grid, interval, cost, NetworkModel.of(on, efficiency(), 4, apart=True))
    assert apart.drained == [4.0, 4.0]
    assert apart.reduced == pytest.approx([8.0, 8.0])


def test_an_update_waits_for_the_slowest_replica() -> None:
    """Rank 1 takes three times as long; both step when it has come."""

    def slower(rank: int, op: Op) -> float:
        return 3.0 if rank == 1 else 1.0

    cost, grid = Chunked([Chunk(10, 0.5)]), Grid(data=2)
    simulation = simulate(
        OneFOneB(), grid, FlushInterval(0, 2, None, 0), cost, RINGS, symmetric=False, slower=slower, traced=True
    )
    assert (simulation.drained, simulation.finished) == ([12.0], [13.5])
    assert spans_of(simulation.trace, 0)[-2:] == ["reduce 0U0 12-13", "step 0U0 13-13.5"]
    assert spans_of(simulation.trace, 1)[-2:] == ["reduce 0U0 12-13", "step 0U0 13-13.5"]


def test_the_peak_is_that_of_the_fullest_replica() -> None:
    """The first replica's last stage is slow, so that its first stage fills up; the second's is always quicker."""
    slow = {1: 9.0, 2: 9.0}  # the last stage of replica 0, the first of replica 1
    simulation = simulate(
        MessageDriven(pipeline_limit=4),
        Grid(data=2, inter=2),
        FlushInterval(0, 6, None, 0),
        Fixed(1.0, 1.0),
        FREE,
        symmetric=False,
        slower=lambda rank, op: slow.get(rank, 1.0),
    )
    assert simulation.peak == [4, 1]


def test_several_updates_before_the_drain() -> None:
    """An update after each microbatch: the ring is used three times."""
    cost = Chunked([Chunk(10, 0.5)])
    simulation = simulate(OneFOneB(), Grid(data=2), FlushInterval(4, 3, 1, 7), cost, RINGS, traced=True)
    assert simulation.makespan == 3 * (2 + 1 + 0.5)
    assert [span.op.index for span in simulation.trace if span.category == STEP and span.op] == [7, 8, 9]


# -- the network of a machine -----------------------------------------------------------------------------------------


def test_full_stream_has_the_rate_of_its_slowest_stage() -> None:
    """Four stages of 3 s a microbatch: a stream of 40 takes 3 more of them to fill and drain. A stage of 5 s sets the
    pace of all; a flush of 4 takes seven passes."""
    stream = FlushInterval(0, 40, 1, 0)
    simulation = simulate(OneFOneB(), Grid(inter=4), stream, Fixed(1.0, 2.0), FREE)
    assert (simulation.period, simulation.makespan) == (3.0, 40 * 3.0 + 3 * 3.0)
    assert [len(steps) for steps in simulation.steps] == [40] * 4
    slow = simulate(OneFOneB(), Grid(inter=4), stream, Fixed([1.0, 1.0, 2.0, 1.0], [2.0, 2.0, 3.0, 2.0]), FREE)
    assert slow.period == 5.0
    flush = simulate(OneFOneB(), Grid(inter=4), FlushInterval(0, 4, None, 0), Fixed(1.0, 2.0), FREE)
    assert flush.period == flush.makespan == 7 * 3.0


def test_a_stream_waits_for_what_goes_round() -> None:
    """With as many microbatches under way as stages, a quarter of the way round sets the pace: six messages of 0.5 s
    and four stages of 3 s take 15 s for four microbatches."""
    simulation = simulate(OneFOneB(), Grid(inter=4), FlushInterval(0, 64, 1, 0), Fixed(1.0, 2.0, 5), network(0.0, 10.0))
    assert simulation.period == pytest.approx((4 * 3 + 6 * 0.5) / 4)


def test_every_update_of_a_stream_is_reduced_and_stepped() -> None:
    """Two replicas: 10 bytes at 10 bytes/s and half a second, after each microbatch of 3 s; or after every second."""
    cost = Fixed(1.0, 2.0, step=0.5, reduce_bytes=10)
    reducing = NetworkModel.of(machine(between=Link(0.0, 10.0), devices_per_node=1), efficiency(), 4)
    each = simulate(OneFOneB(), Grid(data=2, inter=2), FlushInterval(0, 40, 1, 0), cost, reducing)
    assert each.period == pytest.approx(3.0 + 1.0 + 0.5)
    second = simulate(OneFOneB(), Grid(data=2, inter=2), FlushInterval(0, 40, 2, 0), cost, reducing)
    assert second.period == pytest.approx(2 * 3.0 + 1.0 + 0.5)
    both = simulate(OneFOneB(), Grid(data=2, inter=2), FlushInterval(0, 40, 2, 0), cost, reducing, symmetric=False)
    assert (both.period, both.makespan) == (second.period, second.makespan)


def test_what_an_efficiency_reaches_bounds_messages() -> None:
    """Inside a node 100 bytes/s, between nodes 10; a message is late by the delay, and no quicker than the lane."""
    on, software = machine(), efficiency(delay=0.5, lane=40.0)
    usual, direct = (NetworkModel.of(on, software, 4, direct=direct) for direct in (False, True))
    assert (usual.link(0, 1), usual.link(1, 2)) == (Link(0.5, 40.0), Link(0.5, 10.0))
    assert (direct.link(0, 1), direct.link(1, 2)) == (Link(0.0, 100.0), Link(0.0, 10.0))
    assert not usual.blocking
    assert NetworkModel.of(on, software, 4, blocking=True).blocking


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_deadlock_names_who_waits_for_what() -> None:
    waiting = Script(("0B0", "1F0 1B0"))
    with pytest.raises(IllegalSchedule, match=r"^deadlock: stage 0 waits for 0B0; stage 1 waits for 1F0$"):
        simulate(waiting, TWO, FLUSH, MESSAGES, FREE)
    half = Script(("0F0 0B1|0B2", "1F0 1B0"))
    with pytest.raises(IllegalSchedule, match=r"^deadlock: stage 0 waits for 0B1 or 0B2$"):
        simulate(half, TWO, FLUSH, MESSAGES, FREE)


def test_replicas_that_do_not_all_update_are_a_deadlock() -> None:
    class Lazy(Script):
        def program(self, place: Place, interval: FlushInterval) -> Program:
            yield (Op.parse("0F0"),)
            yield (Op.parse("0B0"),)
            if place.replica == 0:
                yield (Op.parse("0U0"),)

    with pytest.raises(IllegalSchedule, match="deadlock: stage 0 waits for 0U0"):
        simulate(Lazy(()), Grid(data=2), FLUSH, MESSAGES, FREE, symmetric=False)
