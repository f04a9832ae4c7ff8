"""Law 5 on the virtual clock, with relations between checker, replicas and network.

A simulator with a slightly different order or wait still draws plausible curves. These tests compare it with closed
forms, with the checker, and with itself under a larger load.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.gpipe import GPipe
from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.core.grid import Grid
from suite.core.jitter import Perturbation
from suite.core.op import FlushInterval, Kind, Op, Place, Program, feeds
from suite.core.protocols import Chunk, Schedule
from suite.core.trace import REDUCE, WAIT
from suite.memory import offloaded
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.check import check
from suite.schedule.placement import places
from suite.simulate.block_model import SimulationPlan
from suite.simulate.cost.measured import Fixed
from suite.simulate.cost.plan_cost import PlanCost
from suite.simulate.network.machine import Link
from suite.simulate.search import run
from suite.simulate.worker import NetworkModel, Simulation, simulate
from tests.support.drawn import drawn
from tests.support.modelled import FREE, TINY, Drawn, efficiency, machine, network, simulated, systems
from tests.support.refusals import refused
from tests.support.schedules import SCHEDULES, flush, follow

STATIC: tuple[Schedule, ...] = (GPipe(), OneFOneB())
FLUSH: tuple[Schedule, ...] = (*STATIC, MessageDriven(prefer="backward"))
ANY: tuple[Schedule, ...] = (
    *(*FLUSH, MessageDriven(prefer="forward"), MessageDriven(pipeline_limit=2)),
    MessageDriven(pipeline_limit=9, cap=3),
)
PLACED: tuple[Schedule, ...] = tuple(schedule for name, schedule in SCHEDULES.items() if name != "dual_pipe_v")
sizes = {"stages": st.integers(1, 8), "microbatches": st.integers(1, 12), "seed": st.integers(0, 2**32)}


def ran(simulation: Simulation, grid: Grid, stage: int) -> tuple[Op, ...]:
    """Ops of one stage of the first replica, in order."""
    rank = grid.rank(data=0, inter=stage)
    spans = [s for s in simulation.trace if s.rank == rank and s.category not in (WAIT, REDUCE)]
    assert [s.start for s in spans] == sorted(s.start for s in spans)
    return tuple(s.op for s in spans if s.op is not None)


def passes(cost: Drawn, factor: Callable[[Op], float] = lambda op: 1.0) -> Callable[[Op], float]:
    """Seconds for the checker: updates are free."""
    return lambda op: 0.0 if op.kind is Kind.UPDATE else cost.compute(op) * factor(op)


# -- closed forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", FLUSH, ids=str)
def test_the_makespan_at_unit_cost_is_the_closed_form(schedule: Schedule) -> None:
    """(m + S - 1)(f + b); with GPipe one microbatch crosses every link twice, and other passes follow."""
    for stages in (1, 2, 3, 5, 8):
        for microbatches in (1, 2, 4, 9, 32):
            for forward, backward in ((1.0, 1.0), (1.0, 2.0)):
                cost, grid = Fixed(forward, backward), Grid(inter=stages)
                simulation = simulate(schedule, grid, flush(microbatches), cost, FREE)
                expected = (microbatches + stages - 1) * (forward + backward)
                assert simulation.makespan == simulation.drained[0] == pytest.approx(expected, rel=1e-9)
                for latency in (0.125, 1.0) if isinstance(schedule, GPipe) else ():
                    slow = simulate(schedule, grid, flush(microbatches), cost, network(latency, 1e30))
                    assert slow.makespan == pytest.approx(expected + 2 * (stages - 1) * latency, rel=1e-9)


@pytest.mark.parametrize("replicas", drawn(range(1, 9), n=3))
def test_a_reduction_takes_its_rings_volume(replicas: int) -> None:
    """Law 5: 2 (n - 1) / n of the gradient's bytes, over an adapter of 10 bytes/s."""
    plan = SimulationPlan(TINY, simulated("axonn_no_memopt"), Grid(data=replicas), 840, 1)
    simulation = run(plan, machine(devices_per_node=1), efficiency())
    volume = 2 * (replicas - 1) / replicas * plan.layout(0)["half_gradient"].bytes
    assert simulation.reduced[0] - simulation.drained[0] == pytest.approx(volume / 10, abs=0.05)  # a byte is rounded


# -- the checker -------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(schedule=st.sampled_from(ANY + PLACED), **sizes)
def test_with_free_messages_a_simulation_is_the_checkers_run(
    schedule: Schedule, stages: int, microbatches: int, seed: int
) -> None:
    """Order, makespan and activations, to the last bit, whatever op takes whatever time; and exactly the ops that feed
    a neighbour send bytes, in the trace and in the sums (law 6). Placed schedules run two batches."""
    cost, grid = Drawn(seed, sizes=(3, 64, 1000)), Grid(inter=stages)
    interval = FlushInterval(5, 2 * microbatches, microbatches, 3) if schedule in PLACED else flush(microbatches)
    simulation = simulate(schedule, grid, interval, cost, FREE, traced=True)
    timeline = check(schedule, stages, interval, cost=passes(cost))
    assert (simulation.makespan, simulation.stages) == (timeline.makespan, timeline.stages)
    assert tuple(simulation.peak) == timeline.peak
    for rank in range(stages):
        assert ran(simulation, grid, rank) == timeline.order(rank)
        assert simulation.sent[rank] == sum(span.bytes for span in simulation.trace if span.rank == rank)
        if schedule in PLACED:
            split = any(slot.op.kind is Kind.WEIGHT for slot in timeline.slots)
            assert simulation.fronts[rank] == (timeline.fronts(rank) if split else {(timeline.peak[rank], 0)})
        else:
            ops = [Op(rank, kind, i) for kind in (Kind.FORWARD, Kind.BACKWARD) for i in range(microbatches)]
            assert simulation.sent[rank] == sum(cost.message(op) for op in ops if feeds(op, stages) is not None)


@settings(max_examples=40, deadline=None)
@given(
    schedule=st.sampled_from(ANY),
    every=st.none() | st.integers(1, 5),
    link=st.builds(Link, st.sampled_from([0.0, 0.3, 5.0]), st.sampled_from([0.5, 10.0, 1e30])),
    blocking=st.booleans(),
    **sizes,
)
def test_on_any_network_every_program_gets_what_it_accepts(
    schedule: Schedule, stages: int, microbatches: int, seed: int, every: int | None, link: Link, blocking: bool
) -> None:
    """Every op once, each after what it needs, in an order that the program takes; in-flight as promised; a static
    order is the checker's."""
    every = None if every == 4 or schedule not in STATIC else every
    interval, grid = FlushInterval(3, microbatches, every, 2), Grid(inter=stages)
    network = NetworkModel(lambda first, second: link, blocking=blocking)
    simulation = simulate(schedule, grid, interval, Drawn(seed, sizes=(0, 1, 7)), network, traced=True)
    for stage in range(stages):
        place, order = Place(stage, stages), ran(simulation, grid, stage)
        follow(schedule.program(place, interval), order)
        assert simulation.peak[stage] <= schedule.in_flight(place, interval)
        assert schedule not in STATIC or order == check(schedule, stages, interval).order(stage)
    spans = {span.op: span for span in simulation.trace if span.op and span.category not in (WAIT, REDUCE)}
    for op, span in spans.items():
        if (fed := feeds(op, stages)) is not None:
            assert spans[fed].start >= span.end + link.latency - 1e-9


@pytest.mark.parametrize("name", drawn(systems(), n=4))
def test_every_systems_promised_in_flight_is_kept(name: str) -> None:
    for inter, microbatches in ((1, 5), (2, 8), (4, 3), (4, 24)):
        plan = SimulationPlan(TINY, simulated(name), Grid(inter=inter), microbatches, 1)
        simulation = run(plan, machine(), efficiency(delay=0.01))
        schedule = plan.system.schedule
        promised = [schedule.in_flight(place, plan.interval) for place in places(schedule, inter)]
        assert all(0 < peak <= most for peak, most in zip(simulation.peak, promised, strict=True))
        assert simulation.peak[0] == promised[0], "the promise is tight where microbatches enter"


# -- one replica for all -----------------------------------------------------------------------------------------------


def assert_equal(one: Simulation, every: Simulation) -> None:
    for name in ("drained", "reduced", "finished", "makespan"):
        assert getattr(every, name) == pytest.approx(getattr(one, name), rel=1e-9)
    assert (every.peak, every.sent, every.fronts) == (one.peak, one.sent, one.fronts)


@settings(max_examples=40, deadline=None)
@given(
    schedule=st.sampled_from(ANY + PLACED),
    grid=st.builds(Grid, data=st.integers(1, 4), inter=st.integers(1, 4), tensor=st.sampled_from([1, 1, 2])),
    microbatches=st.integers(1, 6),
    chunks=st.lists(st.builds(Chunk, st.integers(0, 60), st.sampled_from([0.0, 0.7, 3.0])), min_size=1, max_size=4),
    nodes=st.sampled_from([1, 2]),
    flags=st.fixed_dictionaries({"blocking": st.booleans(), "apart": st.booleans(), "direct": st.booleans()}),
    seed=st.integers(0, 2**32),
)
def test_one_replica_stands_for_all(
    schedule: Schedule, grid: Grid, microbatches: int, chunks: list[Chunk], nodes: int, flags: Any, seed: int
) -> None:
    """Where a node holds whole replicas, so that all have the same links: rings, chunks and waiting included."""
    on = machine(devices_per_node=grid.inter * grid.tensor * nodes, within=Link(0.1, 30.0))
    network = NetworkModel.of(on, efficiency(delay=0.2, collective=0.3, hop=0.05, adapters=2), grid.size, **flags)
    cost = Drawn(seed, sizes=(0, 3, 9), chunks=chunks)
    assert_equal(*(simulate(schedule, grid, flush(microbatches), cost, network, symmetric=s) for s in (True, False)))


@pytest.mark.parametrize("name", drawn(systems(), n=4))
def test_one_replica_of_a_system_stands_for_all(name: str) -> None:
    """Ring reductions, overlapping buckets, blocking sends and split layers, as conf describes each system."""
    modelled = simulated(name)
    if modelled.bucket_numel:
        small = partial(offloaded, bucket=100)
        modelled = replace(modelled, layout=small, bucket_numel=100, buckets_per_reduction=2)
    for data, inter, tensor in ((3, 2, 2), (4, 4, 1)):
        plan = SimulationPlan(
            TINY, modelled, Grid(data=data, inter=inter, tensor=tensor if modelled.tensor else 1), 24, 2
        )
        on, software = machine(devices_per_node=plan.grid.size // data), efficiency(delay=0.1, collective=0.2)
        assert_equal(*(run(plan, on, software, symmetric=symmetric) for symmetric in (True, False)))


def slowness(factors: dict[int, float], grid: Grid, replica: int, op: Op) -> float:
    return factors[grid.rank(data=replica, inter=op.stage)]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ANY), st.integers(1, 5), st.integers(1, 4), st.integers(1, 8), st.integers(0, 2**32))
def test_ranks_that_differ_each_keep_their_own_time(
    schedule: Schedule, inter: int, data: int, microbatches: int, seed: int
) -> None:
    """Stragglers and jitter: each pipeline follows the checker at its own speed, and an update waits for the last."""
    grid, cost, clock = Grid(data=data, inter=inter), Drawn(seed), random.Random(seed)
    factors = {rank: clock.choice((1.0, 1.5, 4.0)) for rank in range(grid.size)}
    ranks: dict[str, Any] = {"symmetric": False, "slower": lambda rank, op: factors[rank]}
    simulation = simulate(schedule, grid, flush(microbatches), cost, FREE, **ranks)
    alone = []
    for replica in range(data):
        factor = partial(slowness, factors, grid, replica)
        alone.append(check(schedule, inter, flush(microbatches), cost=passes(cost, factor)))
    assert simulation.makespan == max(timeline.makespan for timeline in alone)
    for stage in range(inter):
        last = max(slot.end for timeline in alone for slot in timeline.slots if slot.op.stage == stage)
        assert simulation.drained[stage] == last
        assert simulation.peak[stage] == max(timeline.peak[stage] for timeline in alone)


def test_stragglers_need_every_rank() -> None:
    with refused(InvalidRequest, subject="one replica for all, with ranks that differ"):
        jitter = Perturbation(spread=0.1)
        simulate(OneFOneB(), Grid(data=2), flush(1), Fixed(1.0, 2.0), FREE, slower=jitter)


# -- more of something is never quicker --------------------------------------------------------------------------------


@dataclass
class Sized(Drawn):
    stages: int = 1
    microbatches: int = 1


def makespan(schedule: Schedule, cost: Sized, latency: float, bandwidth: float, *, blocking: bool = False) -> float:
    net = network(latency, bandwidth, blocking=blocking)
    return simulate(schedule, Grid(inter=cost.stages), flush(cost.microbatches), cost, net).makespan


messages = st.builds(
    partial(Sized, sizes=(0, 1, 5, 20)),
    seed=st.integers(0, 2**32),
    stages=st.integers(2, 6),
    microbatches=st.integers(1, 10),
)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(STATIC),
    messages,
    st.lists(st.floats(0, 4), min_size=2, max_size=3),
    st.lists(st.floats(0.1, 99), min_size=2, max_size=3),
    st.booleans(),
)
def test_a_slower_network_never_makes_a_static_order_quicker(
    schedule: Schedule, cost: Sized, latencies: list[float], bandwidths: list[float], blocking: bool
) -> None:
    by_latency = [makespan(schedule, cost, latency, 10.0, blocking=blocking) for latency in sorted(latencies)]
    by_rate = [makespan(schedule, cost, 0.1, rate, blocking=blocking) for rate in sorted(bandwidths, reverse=True)]
    blocked = [makespan(schedule, cost, latencies[0], bandwidths[0], blocking=blocks) for blocks in (False, True)]
    for times in (by_latency, by_rate, blocked):
        assert all(more >= less * (1 - 1e-12) for less, more in pairwise(times))


@pytest.mark.parametrize("schedule", FLUSH, ids=str)
def test_sends_that_block_cost_equal_stages_time(schedule: Schedule) -> None:
    """A blocking send is strictly slower: a stage that could compute waits until its messages arrive."""
    for stages in (2, 4, 8):
        cost = Sized(0, times=(1.0,), sizes=(1,), stages=stages, microbatches=12)
        assert makespan(schedule, cost, 0.2, 10.0, blocking=True) > makespan(schedule, cost, 0.2, 10.0)
        assert makespan(schedule, cost, 0.0, 1e30, blocking=True) == makespan(schedule, cost, 0.0, 1e30)


@pytest.mark.parametrize(
    ("name", "tensor", "forward", "backward"),
    [("axonn", 1, 128, 128), ("deepspeed_3d", 2, 64, 128), ("megatron_lm", 2, 64, 64)],
)
def test_a_systems_payload_is_the_outputs_of_its_blocks(name: str, tensor: int, forward: int, backward: int) -> None:
    """Half a sequence by hidden is 64 bytes here: 4 microbatches of 2, forwards and backwards, whole or in slices."""
    plan = SimulationPlan(TINY, simulated(name), Grid(inter=4, tensor=tensor), 8, 2)
    inside = 4 * (forward + backward)
    assert run(plan, machine(), efficiency()).sent == [4 * forward, inside, inside, 4 * backward]
    assert PlanCost(plan, machine(), efficiency()).message(Op(1, Kind.BACKWARD, 0)) == backward


# -- illegal programs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken:
    """OneFOneB with a fault on stage 1."""

    spoil: Callable[[list[Op]], list[Op]]
    promise: int = 9

    def program(self, place: Place, interval: FlushInterval) -> Program:
        order = list(check(OneFOneB(), place.stages, interval).order(place.stage))
        for op in self.spoil(order) if place.stage == 1 else order:
            yield (op,)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return self.promise


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (Broken(lambda order: order[::-1]), "stage 0 waits for 0B0; stage 1 waits for 1B2; stage 2 waits for 2F0"),
        (Broken(lambda order: order[1:]), "deadlock: .*stage 1 waits for"),
        (Broken(lambda order: [op for op in order if op.kind is not Kind.BACKWARD]), "stage 0 waits for 0B0"),
        (Broken(lambda order: order, promise=2), "0F2 would be forward number 3, 2 were promised"),
    ],
)
def test_a_program_that_deadlocks_or_breaks_its_promise_raises(broken: Broken, named: str) -> None:
    for symmetric in (True, False):
        with pytest.raises(IllegalSchedule, match=named):
            simulate(broken, Grid(data=2, inter=3), flush(3), Fixed(1.0, 2.0), FREE, symmetric=symmetric)
