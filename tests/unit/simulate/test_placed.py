"""Schedules with several stages per rank or a split backward pass on the virtual clock, against the checker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pytest

from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op, Place, Program
from suite.core.protocols import Chunk
from suite.core.trace import REDUCE, STEP, WAIT, Trace
from suite.schedule.check import Timeline, check
from suite.schedule.looped_bfs import LoopedBFS
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV
from suite.simulate.cost.measured import Fixed, Profiled
from suite.simulate.network.machine import Link
from suite.simulate.simulation import Simulation
from suite.simulate.worker import NetworkModel, simulate
from tests.support.modelled import FREE, Drawn, efficiency, machine, network
from tests.support.refusals import refused
from tests.support.schedules import SCHEDULES, Script, flush, serves


@dataclass(frozen=True)
class Tabled:
    """All forward passes, then all backward passes, on an uneven placement of four stages."""

    homes: tuple[int, ...] = (0, 1, 1, 0)
    split: bool = False

    def program(self, place: Place, interval: FlushInterval) -> Program:
        for stage in place.held_stages:
            for index in range(interval.first, interval.end):
                yield (Op(stage, Kind.FORWARD, index),)
        for stage in reversed(place.held_stages):
            for index in range(interval.first, interval.end):
                yield (Op(stage, Kind.BACKWARD, index),)
        yield (Op(place.stage, Kind.UPDATE, interval.update),)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return len(place.held_stages) * interval.microbatches


MICROBATCHES = (1, 2, 3, 5, 8, 16)


def order(found: Simulation, rank: int) -> tuple[Op, ...]:
    spans = [span for span in found.trace if span.rank == rank and span.category not in (WAIT, REDUCE)]
    return tuple(span.op for span in spans if span.op is not None)


def assert_equal_to_checker(found: Simulation, timeline: Timeline) -> None:
    ranks = range(len(timeline.places))
    assert found.makespan == timeline.makespan
    assert [order(found, rank) for rank in ranks] == [timeline.order(rank) for rank in ranks]
    assert tuple(found.peak) == timeline.peak
    assert found.fronts == [timeline.fronts(rank) if split(timeline) else {(timeline.peak[rank], 0)} for rank in ranks]


def split(timeline: Timeline) -> bool:
    return any(slot.op.kind is Kind.WEIGHT for slot in timeline.slots)


@pytest.mark.parametrize("name", SCHEDULES)
def test_makespan_order_and_peak_equal_the_checker(name: str) -> None:
    schedule = SCHEDULES[name]
    for ranks in range(1, 9):
        for microbatches in MICROBATCHES:
            if not serves(schedule, ranks, microbatches):
                continue
            cost = Drawn(100 * ranks + microbatches)

            def seconds(op: Op, cost: Drawn = cost) -> float:
                return 0.0 if op.kind is Kind.UPDATE else cost.compute(op)

            timeline = check(schedule, ranks, flush(microbatches), cost=seconds)
            found = simulate(schedule, Grid(inter=ranks), flush(microbatches), cost, FREE, traced=True)
            assert found.stages == timeline.stages
            assert_equal_to_checker(found, timeline)


@pytest.mark.parametrize("homes", [(0, 1, 1, 0), (1, 0, 0), (0, 0, 1), (2, 0, 1, 0), (0,)])
def test_tabled_placement_equals_the_checker(homes: tuple[int, ...]) -> None:
    schedule, cost, ranks = Tabled(homes), Drawn(7), max(homes) + 1
    timeline = check(schedule, ranks, flush(3), cost=lambda op: 0.0 if op.kind is Kind.UPDATE else cost.compute(op))
    found = simulate(schedule, Grid(inter=ranks), flush(3), cost, FREE, traced=True)
    assert_equal_to_checker(found, timeline)


def test_several_batches_in_one_interval_equal_the_checker() -> None:
    interval = FlushInterval(5, 12, 6, 3)
    for name in ("zb_h1", "interleaved_zero_bubble_2", "zbv", "v_half", "axonn_zbv"):
        cost = Drawn(3)
        timeline = check(
            SCHEDULES[name], 3, interval, cost=lambda op, cost=cost: 0.0 if op.kind is Kind.UPDATE else cost.compute(op)
        )
        found = simulate(SCHEDULES[name], Grid(inter=3), interval, cost, FREE, traced=True)
        assert_equal_to_checker(found, timeline)
        assert [len(steps) for steps in found.steps] == [2, 2, 2]


# -- messages --------------------------------------------------------------------------------------------------------


def spans(trace: Trace, rank: int) -> list[str]:
    return [f"{s.category} {s.op} {s.start:g}-{s.end:g}" for s in trace if s.rank == rank]


SECONDS = Fixed(1.0, 3.0, message_bytes=5, weight=1.0)  # F 1 s, I 2 s, W 1 s; 0.5 s for the bytes on 10 bytes/s


def test_v_of_two_ranks_by_hand() -> None:
    """One microbatch: stages 1 and 2 are both on rank 1, which hands over at once and sends no bytes.

    0F0 ends at 1 s and arrives at 2 s (0.5 s of latency, 0.5 s of bytes). 1F0 and 2F0 end at 4 s and arrive at 5 s.
    ZBV runs the weight gradient of stage 2 before the input gradient of stage 1.
    """
    found = simulate(ZBV(), Grid(inter=2), flush(1), SECONDS, network(0.5, 10.0), traced=True)
    assert spans(found.trace, 0) == [
        *("forward 0F0 0-1", "wait 3F0 1-5", "forward 3F0 5-6", "backward 3I0 6-8", "weight_gradient 3W0 8-9"),
        *("wait 0I0 9-15", "backward 0I0 15-17", "weight_gradient 0W0 17-18", "reduce 0U0 18-18", "step 0U0 18-18"),
    ]
    assert spans(found.trace, 1) == [
        *("wait 1F0 0-2", "forward 1F0 2-3", "wait 2F0 3-3", "forward 2F0 3-4"),
        *("wait 2I0 4-9", "backward 2I0 9-11", "weight_gradient 2W0 11-12", "wait 1I0 12-12", "backward 1I0 12-14"),
        *("weight_gradient 1W0 14-15", "reduce 1U0 15-15", "step 1U0 15-15"),
    ]
    assert found.sent == [10, 10]
    assert sum(span.bytes for span in found.trace) == 20
    assert (found.peak, found.finished) == ([2, 2], [18.0, 15.0])
    assert found.fronts == [{(2, 0), (1, 1)}, {(2, 0), (1, 1)}]


def test_loop_closes_the_ring_and_its_chunks_share_the_wire() -> None:
    """Interleaved, 2 ranks, 1 microbatch: rank 0 sends 0F0 and 2F0 to rank 1, which sends 1F0 back to rank 0."""
    found = simulate(Staircase(2), Grid(inter=2), flush(1), Fixed(1.0, 2.0, 10), network(0.0, 10.0), traced=True)
    starts = {str(span.op): span.start for span in found.trace if span.category != WAIT}
    assert [starts[name] for name in ("0F0", "1F0", "2F0", "3F0", "3B0", "2B0", "1B0", "0B0")] == [
        *(0.0, 2.0, 4.0, 6.0, 7.0, 10.0, 13.0, 16.0),
    ]
    assert found.sent == [30, 30]
    assert found.makespan == 18.0


def test_messages_of_two_chunks_queue_on_one_lane() -> None:
    """Rank 0 sends 0F1 at 7 s and the gradient of stage 3 at 7.5 s; each takes 4 s on the link to rank 1."""
    schedule = Script(
        ("0F0 3F0 0F1 3B0 3F1 3B1 0B0 0B1 0U0", "1F0 2F0 2B0 1F1 2F1 2B1 1B0 1B1 1U0"), chunks=2, fold=True
    )
    seconds = {"0F0": 1.0, "3F0": 1.0, "0F1": 1.0, "3B0": 0.5}

    @dataclass
    class Queued(Drawn):
        def compute(self, op: Op) -> float:
            return seconds.get(str(op), 0.0)

        def message(self, op: Op) -> int:
            return 40

    found = simulate(schedule, Grid(inter=2), flush(2), Queued(0), network(0.0, 10.0), traced=True)
    starts = {str(span.op): span.start for span in found.trace if span.category != WAIT}
    # 0F0 0-1, at 5 on rank 1, back at 9; 3F0 9-10, 0F1 10-11, 3B0 11-11.5
    assert (starts["1F0"], starts["3F0"], starts["0F1"], starts["3B0"]) == (5.0, 9.0, 10.0, 11.0)
    assert starts["2B0"] == 19.0  # the link carries 0F1 until 15 s
    assert starts["1F1"] == 19.0


def test_blocking_sends_do_not_block_a_hand_over() -> None:
    found = simulate(ZBV(), Grid(inter=2), flush(1), SECONDS, network(0.5, 10.0, blocking=True), traced=True)
    runs = [text for text in spans(found.trace, 1) if not text.startswith(WAIT)]
    assert runs[:2] == ["forward 1F0 2-3", "forward 2F0 3-4"]
    # busy until 3F0 has arrived at 5 s; the input gradient of stage 3 ends at 8 s and arrives at 9 s
    assert [text for text in spans(found.trace, 0) if not text.startswith(WAIT)][1:4] == [
        *("forward 3F0 5-6", "backward 3I0 6-8", "weight_gradient 3W0 9-10"),
    ]


@pytest.mark.parametrize("latency", [0.0, 0.25, 2.0])
def test_one_microbatch_crosses_every_link_twice(latency: float) -> None:
    """A microbatch alone: all passes one after the other, and a message wherever two ranks meet."""
    for ranks in range(1, 6):
        loop, fold = (3 * ranks - 1 if ranks > 1 else 0), 2 * (ranks - 1)
        v = Tabled((*range(ranks), *reversed(range(ranks))))
        for schedule, boundaries in ((Staircase(), ranks - 1), (Staircase(3), loop), (LoopedBFS(3), loop), (v, fold)):
            found = simulate(schedule, Grid(inter=ranks), flush(1), Fixed(1.0, 2.0), network(latency, 1e30))
            assert found.makespan == found.stages * 3.0 + 2 * boundaries * latency


def test_latency_costs_1f1b_more_than_zb_h2() -> None:
    """arXiv 2401.10241, Table 5: latencies add a round trip per p microbatches to 1F1B; here 0.2 of a pass."""
    seconds, slow = Fixed(1.0, 2.0), network(0.2, 1e30)
    excess = {
        name: simulate(schedule, Grid(inter=8), flush(24), seconds, slow).makespan - 72
        for name, schedule in {"1f1b": Staircase(), "zb_h1": SCHEDULES["zb_h1"], "zb_h2": SCHEDULES["zb_h2"]}.items()
    }
    assert excess == {"1f1b": pytest.approx(31.8), "zb_h1": pytest.approx(12.6), "zb_h2": pytest.approx(8.4)}


# -- replicas, tensor parallelism and updates ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["zb_h1", "interleaved_1f1b_2", "interleaved_zero_bubble_3", "zbv", "axonn_zbv"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_one_replica_stands_for_all(name: str, tensor: int) -> None:
    """With whole replicas on a node, so that all have the same links: rings, chunks of an update and waiting."""
    for flags in ({}, {"blocking": True}, {"apart": True}):
        grid = Grid(data=3, inter=2, tensor=tensor)
        on = machine(devices_per_node=2 * tensor, within=Link(0.1, 30.0))
        reducing = NetworkModel.of(on, efficiency(delay=0.2, collective=0.3, hop=0.05, adapters=2), grid.size, **flags)
        cost = Drawn(5, sizes=(0, 3, 9), chunks=[Chunk(20, 0.7), Chunk(11, 3.0)])
        one, every = (
            simulate(SCHEDULES[name], grid, flush(6), cost, reducing, symmetric=symmetric)
            for symmetric in (True, False)
        )
        for attribute in ("drained", "reduced", "finished"):
            assert getattr(every, attribute) == pytest.approx(getattr(one, attribute), rel=1e-9)
        assert (every.peak, every.sent, every.fronts) == (one.peak, one.sent, one.fronts)


def test_links_are_those_of_the_ranks_that_hold_the_stages() -> None:
    """Tensor parallelism over 2: pipeline ranks 0 and 1 are ranks 0 and 2 of the grid."""
    seen = []

    def link(first: int, second: int) -> Link:
        seen.append((first, second))
        return Link(0.0, 1.0)

    simulate(Staircase(3), Grid(inter=2, tensor=2), flush(1), Fixed(1.0, 2.0), NetworkModel(link))
    assert sorted(seen) == [(0, 2), (2, 0)]
    seen.clear()
    simulate(Staircase(2), Grid(inter=3), flush(1), Fixed(1.0, 2.0), NetworkModel(link))
    assert sorted(seen) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


def test_rank_updates_once_for_all_its_stages() -> None:
    """Each rank reduces and steps when its own two stages have run, named by its first stage."""
    grid, reducing = Grid(data=2, inter=2), NetworkModel.of(machine(devices_per_node=2), efficiency(), 4)
    asked = []

    @dataclass
    class ByRank(Drawn):
        def update(self, rank: int) -> Sequence[Chunk]:
            asked.append(rank)
            return (Chunk(20 * rank, 1.0 + rank),)

    found = simulate(ZBV(), grid, flush(4), ByRank(0, times=(1.0,)), reducing, traced=True)
    assert asked == [0, 1]
    updates = [(str(s.op), s.seconds) for s in found.trace if s.category == STEP]
    assert sorted(updates) == [("0U0", 1.0), ("1U0", 2.0)]
    assert found.reduced[1] - found.drained[1] == 2.0  # 20 bytes at 10 bytes/s
    assert found.reduced[0] == found.drained[0]


def test_replica_with_a_straggler_delays_its_update_alone() -> None:
    """Rank 1 holds stages 1 and 2 of replica 0 and is 3 times slower; each pipeline follows the checker."""
    cost = Drawn(2)

    def slower(rank: int, op: Op) -> float:
        return 3.0 if rank == 1 else 1.0

    found = simulate(ZBV(), Grid(data=2, inter=2), flush(5), cost, FREE, symmetric=False, slower=slower)
    makespans = []
    for factor in (3.0, 1.0):

        def seconds(op: Op, factor: float = factor) -> float:
            return 0.0 if op.kind is Kind.UPDATE else cost.compute(op) * (factor if op.stage in (1, 2) else 1.0)

        makespans.append(check(ZBV(), 2, flush(5), cost=seconds).makespan)
    assert found.makespan == max(makespans)


# -- trace and costs -------------------------------------------------------------------------------------------------


def test_fixed_costs_split_the_backward_pass() -> None:
    ops = [Op(1, kind, 0) for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT, Kind.WEIGHT)]
    costs: Sequence[tuple[Fixed, list[float]]] = (
        (Fixed(1.0, 2.0), [1.0, 2.0, 1.0, 1.0]),
        (Fixed(1.0, 2.0, weight=0.5), [1.0, 2.0, 1.5, 0.5]),
        (Fixed([1.0, 2.0], [2.0, 6.0], weight=[1.0, 4.0]), [2.0, 6.0, 2.0, 4.0]),
        (Fixed(1.0, [2.0, 6.0], weight=2.0), [1.0, 6.0, 4.0, 2.0]),
        (Fixed(1.0, 2.0, weight=0.0), [1.0, 2.0, 2.0, 0.0]),
    )
    for cost, expected in costs:
        assert [cost.compute(op) for op in ops] == expected


def test_profile_of_a_run_has_a_cost_for_each_kind_and_rank() -> None:
    grid = Grid(data=2, inter=2)
    cost = Drawn(4, times=(0.5, 1.0, 2.0), sizes=(3, 5), chunks=[Chunk(0, 1.5)])
    found = simulate(ZBV(), grid, flush(4), cost, FREE, traced=True, symmetric=False)
    profile = Profiled.of(found.trace, grid)
    again = simulate(ZBV(), grid, flush(4), profile, FREE)
    assert again.makespan == found.makespan
    assert again.sent == found.sent
    assert profile.updates == {0: 1.5, 1: 1.5}
    mids = profile.medians()
    for stage in range(4):
        for kind in (Kind.FORWARD, Kind.INPUT, Kind.WEIGHT):
            expected = median(cost.compute(Op(stage, kind, index)) for index in range(4))
            assert mids.compute(Op(stage, kind, 9)) == expected
    with refused(InvalidRequest, subject="no cost of 0B0", rule="a cost for every op"):
        mids.compute(Op(0, Kind.BACKWARD, 0))


@pytest.mark.parametrize(
    ("weight", "subject"), [(-1.0, "cost.weight=-1.0"), (3.0, "with cost.backward"), ("x", "cost.weight")]
)
def test_illegal_weight_cost_is_refused(weight: Any, subject: str) -> None:
    with refused(InvalidRequest, "cost.weight", subject=subject) as caught:
        Fixed(1.0, 2.0, weight=weight)
    assert caught.value.legal
