"""Ranks in virtual time: start, wait, send and step at hand-computed times, and against the checker.

The laws of whole schedules stand in tests/laws/test_simulated.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from suite.core.errors import IllegalSchedule
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op, Place, Program
from suite.core.protocols import Chunk, Schedule
from suite.core.trace import REDUCE, STEP, WAIT, Trace
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.simulation import Simulation
from suite.simulate.worker import NetworkModel, simulate
from tests.support.modelled import FREE, Drawn, efficiency, machine, network
from tests.support.schedules import Script, flush


def spans_of(trace: Trace, rank: int) -> list[str]:
    return [f"{s.category} {s.op} {s.start:g}-{s.end:g}" for s in trace if s.rank == rank]


def starts(found: Simulation) -> dict[str, float]:
    return {str(span.op): span.start for span in found.trace if span.category != WAIT}


TWO = Grid(inter=2)
MESSAGES = Fixed(1.0, 2.0, message_bytes=5)  # 0.5 s on a link of 10 bytes/s


def test_two_stages_by_hand() -> None:
    """A message takes 0.5 s of latency and 0.5 s for its bytes; sends cost a stage nothing."""
    simulation = simulate(OneFOneB(), TWO, flush(2), MESSAGES, network(0.5, 10.0), traced=True)
    assert spans_of(simulation.trace, 0) == [
        *("forward 0F0 0-1", "forward 0F1 1-2", "wait 0B0 2-6", "backward 0B0 6-8"),
        *("wait 0B1 8-9", "backward 0B1 9-11", "reduce 0U0 11-11", "step 0U0 11-11"),
    ]
    assert spans_of(simulation.trace, 1) == [
        *("wait 1F0 0-2", "forward 1F0 2-3", "backward 1B0 3-5", "forward 1F1 5-6"),
        *("backward 1B1 6-8", "reduce 1U0 8-8", "step 1U0 8-8"),
    ]
    assert (simulation.makespan, simulation.drained, simulation.finished) == (11.0, [11.0, 8.0], [11.0, 8.0])
    assert (simulation.peak, simulation.sent) == ([2, 1], [10, 10])
    assert [span.bytes for span in simulation.trace if str(span.op) in ("0F1", "1F1")] == [5, 0]


def test_messages_both_ways_do_not_wait_for_one_another() -> None:
    """The stage in the middle ends 1B0 at 17 s and 1F2 at 18 s: both messages take 4 s from then."""
    cost = Fixed(1.0, 1.0, message_bytes=40)
    begun = starts(simulate(OneFOneB(), Grid(inter=3), flush(4), cost, network(0.0, 10.0), traced=True))
    assert [begun[op] for op in ("1B0", "1F2", "0B0", "2F2")] == [16.0, 17.0, 21.0, 22.0]


@pytest.mark.parametrize(
    ("prefer", "order"), [("backward", "0F0 0F1 0B0 0F2 0B1 0B2"), ("forward", "0F0 0F1 0F2 0B0 0B1 0B2")]
)
def test_the_program_prefers_among_ready_ops(prefer: str, order: str) -> None:
    """Three microbatches in flight: at 4 s the first stage could run its third forward or its first backward."""
    schedule = MessageDriven(pipeline_limit=3, prefer=prefer)
    trace = simulate(schedule, TWO, flush(3), Fixed([2.0, 1.0], 1.0), FREE, traced=True).trace
    ran = [str(s.op) for s in trace if s.rank == 0 and s.category not in (WAIT, REDUCE, STEP)]
    assert " ".join(ran) == order


# -- several stages per rank -------------------------------------------------------------------------------------------

SECONDS = Fixed(1.0, 3.0, message_bytes=5, weight=1.0)  # F 1 s, I 2 s, W 1 s; 0.5 s for the bytes on 10 bytes/s


def test_v_of_two_ranks_by_hand() -> None:
    """One microbatch: stages 1 and 2 are both on rank 1, which hands over at once and sends no bytes.

    0F0 ends at 1 s and arrives at 2 s (0.5 s of latency, 0.5 s of bytes). 1F0 and 2F0 end at 4 s and arrive at 5 s.
    ZBV runs the weight gradient of stage 2 before the input gradient of stage 1.
    """
    found = simulate(ZBV(), TWO, flush(1), SECONDS, network(0.5, 10.0), traced=True)
    assert spans_of(found.trace, 0) == [
        *("forward 0F0 0-1", "wait 3F0 1-5", "forward 3F0 5-6", "backward 3I0 6-8", "weight_gradient 3W0 8-9"),
        *("wait 0I0 9-15", "backward 0I0 15-17", "weight_gradient 0W0 17-18", "reduce 0U0 18-18", "step 0U0 18-18"),
    ]
    assert spans_of(found.trace, 1) == [
        *("wait 1F0 0-2", "forward 1F0 2-3", "forward 2F0 3-4"),
        *("wait 2I0 4-9", "backward 2I0 9-11", "weight_gradient 2W0 11-12", "backward 1I0 12-14"),
        *("weight_gradient 1W0 14-15", "reduce 1U0 15-15", "step 1U0 15-15"),
    ]
    assert (found.sent, sum(span.bytes for span in found.trace)) == ([10, 10], 20)
    assert (found.peak, found.finished) == ([2, 2], [18.0, 15.0])
    assert found.fronts == [{(2, 0), (1, 1)}, {(2, 0), (1, 1)}]
    # a blocking send does not block a hand-over: rank 1 is busy until 3F0 has arrived at 5 s
    begun = starts(simulate(ZBV(), TWO, flush(1), SECONDS, network(0.5, 10.0, blocking=True), traced=True))
    assert [begun[op] for op in ("1F0", "2F0", "3F0", "3I0", "3W0")] == [2.0, 3.0, 5.0, 6.0, 9.0]


def test_messages_of_two_chunks_queue_on_one_lane() -> None:
    """0F0 0-1 s, at 5 s on rank 1, back at 9; 3F0 9-10, 0F1 10-11, 3B0 11-11.5; the link carries 0F1 until 15 s."""
    orders = ("0F0 3F0 0F1 3B0 3F1 3B1 0B0 0B1 0U0", "1F0 2F0 2B0 1F1 2F1 2B1 1B0 1B1 1U0")
    seconds = {"0F0": 1.0, "3F0": 1.0, "0F1": 1.0, "3B0": 0.5}
    drawn_ops = {
        Op(stage, kind, index): (seconds.get(f"{stage}{kind}{index}", 0.0), 40)
        for stage in range(4)
        for kind in (Kind.FORWARD, Kind.BACKWARD)
        for index in range(2)
    }
    cost = Drawn(0, drawn=drawn_ops)
    found = simulate(Script(orders, chunks=2, fold=True), TWO, flush(2), cost, network(0.0, 10.0), traced=True)
    begun = starts(found)
    assert [begun[op] for op in ("1F0", "3F0", "0F1", "3B0", "2B0", "1F1")] == [5.0, 9.0, 10.0, 11.0, 19.0, 19.0]


def test_links_are_those_of_the_ranks_that_hold_the_stages() -> None:
    """Tensor parallelism over 2: pipeline ranks 0 and 1 are ranks 0 and 2 of the grid."""
    for schedule, grid, links in (
        (Staircase(3), Grid(inter=2, tensor=2), [(0, 2), (2, 0)]),
        (Staircase(2), Grid(inter=3), [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]),
    ):
        seen = list[tuple[int, int]]()
        links_seen = NetworkModel(lambda first, second, seen=seen: seen.append((first, second)) or Link(0.0, 1.0))
        simulate(schedule, grid, flush(1), Fixed(1.0, 2.0), links_seen)
        assert sorted(seen) == links


# -- updates -----------------------------------------------------------------------------------------------------------


def chunked(*chunks: tuple[int, float]) -> Drawn:
    """Passes of 1 s, and these chunks on every stage."""
    return Drawn(0, times=(1.0,), chunks=[Chunk(*chunk) for chunk in chunks])


def rings(ranks: int, devices_per_node: int = 1, *, apart: bool = False, **software: float) -> NetworkModel:
    """10 bytes/s between nodes, no latency."""
    return NetworkModel.of(machine(devices_per_node=devices_per_node), efficiency(**software), ranks, apart=apart)


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
    for symmetric in (True, False):
        found = simulate(OneFOneB(), Grid(data=2), flush(1), chunked(*chunks), rings(2), symmetric=symmetric)
        assert (found.drained, found.reduced, found.finished) == ([2.0], [2 + reduced], [2 + finished])


@pytest.mark.parametrize(
    ("grid", "chunks", "net", "reduced", "finished"),
    [
        # 0.5 s for the call and 0.25 s for each of 2 (3 - 1) steps, then 2 s for 20 bytes; for none no call
        (Grid(data=3), [(20, 0.0)], rings(3, collective=0.5, hop=0.25), [5.5], [5.5]),
        (Grid(data=3), [(0, 0.0)], rings(3, collective=0.5, hop=0.25), [2.0], [2.0]),
        (Grid(data=2, tensor=2), [(20, 0.0)], rings(4, 2), [6.0], [6.0]),  # both rings leave a node at 5 bytes/s
        (Grid(), [(1000, 0.5)] * 2, rings(2), [2.0], [3.0]),  # without replicas nothing is reduced
        # stage 1 drains at 3 s, stage 0 at 4 s, when the ring of stage 1 has sent 10 of 20 bytes; then both have
        # 5 bytes/s, and from 6 s the ring of stage 0 is alone
        (Grid(data=2, inter=2), [(20, 0.25)], rings(4, 2), [7.0, 6.0], [7.25, 6.25]),
        (Grid(data=2, inter=2), [(20, 0.25)], rings(4, 2, apart=True), [8.0, 8.0], [8.25, 8.25]),
    ],
)
def test_reductions_by_hand(
    grid: Grid, chunks: list[tuple[int, float]], net: NetworkModel, reduced: list[float], finished: list[float]
) -> None:
    found = simulate(OneFOneB(), grid, flush(1), chunked(*chunks), net)
    assert found.reduced == pytest.approx(reduced)
    assert found.finished == pytest.approx(finished)


def test_rank_updates_once_for_all_its_stages() -> None:
    """Each rank reduces and steps when its own two stages have run, named by its first stage."""
    asked = list[int]()

    @dataclass
    class ByRank(Drawn):
        def update(self, rank: int) -> Sequence[Chunk]:
            asked.append(rank)
            return (Chunk(20 * rank, 1.0 + rank),)

    found = simulate(ZBV(), Grid(data=2, inter=2), flush(4), ByRank(0, times=(1.0,)), rings(4, 2), traced=True)
    assert asked == [0, 1]
    assert sorted((str(s.op), s.seconds) for s in found.trace if s.category == STEP) == [("0U0", 1.0), ("1U0", 2.0)]
    # 20 bytes at 10 bytes/s
    assert [found.reduced[rank] - found.drained[rank] for rank in (0, 1)] == [0.0, 2.0]


def test_an_update_waits_for_the_slowest_replica() -> None:
    """Rank 1 takes three times as long; both step when it has come."""
    slow: dict[str, object] = {"symmetric": False, "slower": lambda rank, op: 3.0 if rank == 1 else 1.0}
    found = simulate(OneFOneB(), Grid(data=2), flush(2), chunked((10, 0.5)), rings(2), traced=True, **slow)
    assert (found.drained, found.finished) == ([12.0], [13.5])
    for rank in (0, 1):
        assert spans_of(found.trace, rank)[-2:] == ["reduce 0U0 12-13", "step 0U0 13-13.5"]


def test_the_peak_is_that_of_the_fullest_replica() -> None:
    """The first replica's last stage is slow, so that its first stage fills up; the second's is always quicker."""
    slow = {1: 9.0, 2: 9.0}  # the last stage of replica 0, the first of replica 1
    schedule, grid = MessageDriven(pipeline_limit=4), Grid(data=2, inter=2)
    slower = {"symmetric": False, "slower": lambda rank, op: slow.get(rank, 1.0)}
    assert simulate(schedule, grid, flush(6), Fixed(1.0, 1.0), FREE, **slower).peak == [4, 1]


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "cost", "period"),
    [
        (FlushInterval(0, 40, 1, 0), Fixed(1.0, 2.0), 3.0),
        # a stage of 5 s sets the pace of all
        (FlushInterval(0, 40, 1, 0), Fixed([1.0, 1.0, 2.0, 1.0], [2.0, 2.0, 3.0, 2.0]), 5.0),
        (flush(4), Fixed(1.0, 2.0), 7 * 3.0),
        # with as many microbatches under way as stages, the way round sets the pace: six messages of 0.5 s, four stages
        (FlushInterval(0, 64, 1, 0), Fixed(1.0, 2.0, 5), (4 * 3 + 6 * 0.5) / 4),
    ],
)
def test_full_stream_has_the_rate_of_its_slowest_stage(interval: FlushInterval, cost: Fixed, period: float) -> None:
    found = simulate(OneFOneB(), Grid(inter=4), interval, cost, network(0.0, 10.0))
    assert found.period == pytest.approx(period)
    assert [len(steps) for steps in found.steps] == [interval.updates] * 4


def test_every_update_of_a_stream_is_reduced_and_stepped() -> None:
    """Two replicas: 10 bytes at 10 bytes/s and half a second, after each microbatch of 3 s; or after every second."""
    cost, grid = Fixed(1.0, 2.0, step=0.5, reduce_bytes=10), Grid(data=2, inter=2)
    for every, symmetric in ((1, True), (2, True), (2, False)):
        interval = FlushInterval(0, 40, every, 0)
        found = simulate(OneFOneB(), grid, interval, cost, rings(4), symmetric=symmetric)
        assert found.period == pytest.approx(every * 3.0 + 1.0 + 0.5)
    three = simulate(OneFOneB(), Grid(data=2), FlushInterval(4, 3, 1, 7), chunked((10, 0.5)), rings(2), traced=True)
    assert three.makespan == 3 * (2 + 1 + 0.5)
    assert [span.op.index for span in three.trace if span.category == STEP and span.op] == [7, 8, 9]


def test_an_efficiency_bounds_messages() -> None:
    """Inside a node 100 bytes/s, between nodes 10; a message is late by the delay, and no quicker than the lane."""
    software = efficiency(delay=0.5, lane=40.0)
    usual, direct = (NetworkModel.of(machine(), software, 4, direct=direct) for direct in (False, True))
    assert (usual.link(0, 1), usual.link(1, 2)) == (Link(0.5, 40.0), Link(0.5, 10.0))
    assert (direct.link(0, 1), direct.link(1, 2)) == (Link(0.0, 100.0), Link(0.0, 10.0))
    assert not usual.blocking
    assert NetworkModel.of(machine(), software, 4, blocking=True).blocking


class Lazy(Script):
    """Only replica 0 updates."""

    def program(self, place: Place, interval: FlushInterval) -> Program:
        for text in ("0F0", "0B0", "0U0") if place.replica == 0 else ("0F0", "0B0"):
            yield (Op.parse(text),)


@pytest.mark.parametrize(
    ("schedule", "grid", "waits"),
    [
        (Script(("0B0", "1F0 1B0")), TWO, "stage 0 waits for 0B0; stage 1 waits for 1F0"),
        (Script(("0F0 0B1|0B2", "1F0 1B0")), TWO, "stage 0 waits for 0B1 or 0B2"),
        (Lazy(()), Grid(data=2), "stage 0 waits for 0U0"),
    ],
)
def test_a_deadlock_names_the_waiting_stages(schedule: Schedule, grid: Grid, waits: str) -> None:
    with pytest.raises(IllegalSchedule, match=f"^deadlock: {waits}"):
        simulate(schedule, grid, flush(2), MESSAGES, FREE, symmetric=False)
