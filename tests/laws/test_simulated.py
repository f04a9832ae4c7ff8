"""Law 5 on the virtual clock, with relations between checker, replicas and network.

A simulator with a slightly different order or wait still draws plausible curves. These tests compare it with closed
forms, with the checker, and with itself under a larger load.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from suite.memory import Layout, offloaded
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.check import check
from suite.simulate.block_model import SimulationPlan
from suite.simulate.cost.measured import Fixed
from suite.simulate.cost.plan_cost import PlanCost
from suite.simulate.network.machine import Link
from suite.simulate.search import run
from suite.simulate.worker import NetworkModel, Simulation, simulate
from tests.support.modelled import FREE, TINY, Drawn, efficiency, machine, simulated, systems
from tests.support.refusals import refused

STATIC: tuple[Schedule, ...] = (GPipe(), OneFOneB())
FLUSH: tuple[Schedule, ...] = (*STATIC, MessageDriven(prefer="backward"))
ANY: tuple[Schedule, ...] = (
    *FLUSH,
    MessageDriven(prefer="forward"),
    MessageDriven(pipeline_limit=2),
    MessageDriven(pipeline_limit=9, cap=3),
)
STAGES, MICROBATCHES = range(1, 9), range(1, 33)

sizes = {"stages": st.integers(1, 8), "microbatches": st.integers(1, 12), "seed": st.integers(0, 2**32)}


def ran(simulation: Simulation, grid: Grid, stage: int) -> tuple[Op, ...]:
    """Ops of one stage of the first replica, in order."""
    rank = grid.rank(data=0, inter=stage)
    spans = [s for s in simulation.trace if s.rank == rank and s.category not in (WAIT, REDUCE)]
    assert [s.start for s in spans] == sorted(s.start for s in spans)
    return tuple(s.op for s in spans if s.op is not None)


# -- closed forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", FLUSH, ids=str)
@pytest.mark.parametrize(("forward", "backward"), [(1.0, 1.0), (1.0, 2.0)])
def test_the_makespan_at_unit_cost_is_the_closed_form(schedule: Schedule, forward: float, backward: float) -> None:
    """(m + S - 1)(f + b): the bubble is (S - 1) / m, and equal stages compute m / (m + S - 1) of the time."""
    cost, both = Fixed(forward, backward), forward + backward
    for stages in STAGES:
        for microbatches in MICROBATCHES:
            simulation = simulate(schedule, Grid(inter=stages), FlushInterval(0, microbatches, None, 0), cost, FREE)
            busy = microbatches * both
            assert simulation.makespan == pytest.approx((microbatches + stages - 1) * both, rel=1e-9)
            assert simulation.makespan / busy - 1 == pytest.approx((stages - 1) / microbatches, rel=1e-9, abs=1e-9)
            assert busy / simulation.makespan == pytest.approx(microbatches / (microbatches + stages - 1), rel=1e-9)
            assert simulation.drained[0] == simulation.makespan


@pytest.mark.parametrize("latency", [0.125, 1.0])
@pytest.mark.parametrize("stages", [2, 3, 6])
def test_messages_lengthen_filling_and_draining(stages: int, latency: float) -> None:
    """One microbatch crosses every link twice; GPipe's other passes follow, so no more time is lost."""
    for microbatches in (1, 2, 9):
        simulation = simulate(
            GPipe(),
            Grid(inter=stages),
            FlushInterval(0, microbatches, None, 0),
            Fixed(1.0, 2.0),
            NetworkModel(lambda first, second: Link(latency, 1e30)),
        )
        expected = 3.0 * (microbatches + stages - 1) + 2 * (stages - 1) * latency
        assert simulation.makespan == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("replicas", range(1, 9))
def test_a_reduction_takes_its_rings_volume(replicas: int) -> None:
    """Law 5: 2 (n - 1) / n of the gradient's bytes, over an adapter of 10 bytes/s."""
    plan = SimulationPlan(TINY, simulated("axonn_no_memopt"), Grid(data=replicas), 840, 1)
    simulation = run(plan, machine(devices_per_node=1), efficiency())
    volume = 2 * (replicas - 1) / replicas * plan.layout(0)["half_gradient"].bytes
    assert simulation.reduced[0] - simulation.drained[0] == pytest.approx(volume / 10, abs=0.05)  # a byte is rounded


# -- the checker -----------------------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(schedule=st.sampled_from(ANY), **sizes)
def test_with_free_messages_a_simulation_is_the_checkers_run(
    schedule: Schedule, stages: int, microbatches: int, seed: int
) -> None:
    """Order, makespan and activations, to the last bit, whatever op takes whatever time."""
    cost, interval, grid = Drawn(seed), FlushInterval(0, microbatches, None, 0), Grid(inter=stages)
    simulation = simulate(schedule, grid, interval, cost, FREE, traced=True)
    timeline = check(schedule, stages, interval, cost=lambda op: 0.0 if op.kind is Kind.UPDATE else cost.compute(op))
    assert simulation.makespan == timeline.makespan
    assert tuple(simulation.peak) == timeline.peak
    for stage in range(stages):
        assert ran(simulation, grid, stage) == timeline.order(stage)


@settings(max_examples=120, deadline=None)
@given(
    schedule=st.sampled_from(ANY),
    every=st.none() | st.integers(1, 5),
    latency=st.sampled_from([0.0, 0.3, 5.0]),
    bandwidth=st.sampled_from([0.5, 10.0, 1e30]),
    blocking=st.booleans(),
    **sizes,
)
def test_on_any_network_every_program_gets_what_it_accepts(
    schedule: Schedule,
    stages: int,
    microbatches: int,
    seed: int,
    every: int | None,
    latency: float,
    bandwidth: float,
    blocking: bool,
) -> None:
    """Every op once, each after what it needs, in an order that the program takes; in-flight as promised; a static
    order is the checker's."""
    every = None if every == 4 or schedule not in STATIC else every
    interval, grid = FlushInterval(3, microbatches, every, 2), Grid(inter=stages)
    network = NetworkModel(lambda first, second: Link(latency, bandwidth), blocking=blocking)
    simulation = simulate(schedule, grid, interval, Drawn(seed, sizes=(0, 1, 7)), network, traced=True)
    for stage in range(stages):
        place, order = Place(stage, stages), ran(simulation, grid, stage)
        follow(schedule.program(place, interval), order)
        assert simulation.peak[stage] <= schedule.in_flight(place, interval)
        if schedule in STATIC:
            assert order == check(schedule, stages, interval).order(stage)
    ends = {span.op: span.end for span in simulation.trace if span.category not in (WAIT, REDUCE)}
    starts = {span.op: span.start for span in simulation.trace if span.category not in (WAIT, REDUCE)}
    for op in starts:
        if op is not None and (fed := feeds(op, stages)) is not None:
            assert starts[fed] >= ends[op] + latency - 1e-9


def follow(program: Program, order: Sequence[Op]) -> None:
    """Run the program with these ops; it ends with the last."""
    accepted = next(program)
    for op in order[:-1]:
        assert op in accepted
        accepted = program.send(op)
    assert order[-1] in accepted
    with pytest.raises(StopIteration):
        program.send(order[-1])


@pytest.mark.parametrize("name", systems())
def test_every_systems_promised_in_flight_is_kept(name: str) -> None:
    for inter, microbatches in ((1, 5), (2, 8), (4, 3), (4, 24)):
        plan = SimulationPlan(TINY, simulated(name), Grid(inter=inter), microbatches, 1)
        simulation = run(plan, machine(), efficiency(delay=0.01))
        promised = [plan.system.schedule.in_flight(plan.grid.place(stage), plan.interval) for stage in range(inter)]
        assert all(0 < peak <= most for peak, most in zip(simulation.peak, promised, strict=True))
        assert simulation.peak[0] == promised[0], "the promise is tight where microbatches enter"


# -- one replica for all ---------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    schedule=st.sampled_from(ANY),
    data=st.integers(1, 5),
    inter=st.integers(1, 5),
    microbatches=st.integers(1, 6),
    chunks=st.lists(st.builds(Chunk, st.integers(0, 60), st.sampled_from([0.0, 0.7, 3.0])), min_size=1, max_size=5),
    nodes=st.sampled_from([1, 2]),
    flags=st.fixed_dictionaries({"blocking": st.booleans(), "apart": st.booleans(), "direct": st.booleans()}),
    seed=st.integers(0, 2**32),
)
def test_one_replica_stands_for_all(
    schedule: Schedule,
    data: int,
    inter: int,
    microbatches: int,
    chunks: list[Chunk],
    nodes: int,
    flags: dict[str, bool],
    seed: int,
) -> None:
    """Where a node holds whole replicas, so that all have the same links: rings, chunks and waiting included."""
    grid, interval = Grid(data=data, inter=inter), FlushInterval(0, microbatches, None, 0)
    on = machine(devices_per_node=inter * nodes, within=Link(0.1, 30.0))
    network = NetworkModel.of(on, efficiency(delay=0.2, collective=0.3, hop=0.05, adapters=2), grid.size, **flags)
    cost = Drawn(seed, sizes=(0, 3, 9), chunks=chunks)
    one, every = (simulate(schedule, grid, interval, cost, network, symmetric=s) for s in (True, False))
    for name in ("drained", "reduced", "finished"):
        assert getattr(every, name) == pytest.approx(getattr(one, name), rel=1e-9)
    assert (every.peak, every.sent) == (one.peak, one.sent)
    assert every.makespan == pytest.approx(one.makespan, rel=1e-9)


@pytest.mark.parametrize("name", systems())
def test_one_replica_of_a_system_stands_for_all(name: str) -> None:
    """Ring reductions, overlapping buckets, blocking sends and split layers, as conf describes each system."""
    modelled = simulated(name)
    if modelled.bucket_numel:
        modelled = replace(modelled, layout=small_buckets, bucket_numel=100, buckets_per_reduction=2)
    for data, inter, tensor in ((3, 2, 2), (4, 4, 1)):
        plan = SimulationPlan(TINY, modelled, Grid(data, inter, tensor if modelled.tensor else 1), 24, 2)
        on, software = machine(devices_per_node=plan.grid.size // data), efficiency(delay=0.1, collective=0.2)
        one, every = (run(plan, on, software, symmetric=symmetric) for symmetric in (True, False))
        assert every.finished == pytest.approx(one.finished, rel=1e-9)
        assert every.reduced == pytest.approx(one.reduced, rel=1e-9)
        assert (every.peak, every.sent) == (one.peak, one.sent)


def small_buckets(entries: int, moments: Sequence[str], dtype: str) -> Layout:
    return offloaded(entries, moments, dtype, bucket=100)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ANY), st.integers(1, 5), st.integers(1, 4), st.integers(1, 8), st.integers(0, 2**32))
def test_ranks_that_differ_each_keep_their_own_time(
    schedule: Schedule, inter: int, data: int, microbatches: int, seed: int
) -> None:
    """Stragglers and jitter: each pipeline follows the checker at its own speed, and an update waits for the last."""
    grid, interval, clock = Grid(data=data, inter=inter), FlushInterval(0, microbatches, None, 0), random.Random(seed)
    cost, factors = Drawn(seed), {rank: clock.choice((1.0, 1.5, 4.0)) for rank in range(grid.size)}

    def slower(rank: int, op: Op) -> float:
        return factors[rank]

    simulation = simulate(schedule, grid, interval, cost, FREE, symmetric=False, slower=slower)
    alone = []
    for replica in range(data):

        def seconds(op: Op, replica: int = replica) -> float:
            factor = factors[grid.rank(data=replica, inter=op.stage)]
            return 0.0 if op.kind is Kind.UPDATE else cost.compute(op) * factor

        alone.append(check(schedule, inter, interval, cost=seconds))
    assert simulation.makespan == max(timeline.makespan for timeline in alone)
    for stage in range(inter):
        last = max(slot.end for timeline in alone for slot in timeline.slots if slot.op.stage == stage)
        assert simulation.drained[stage] == last
        assert simulation.peak[stage] == max(timeline.peak[stage] for timeline in alone)


def test_stragglers_need_every_rank() -> None:
    with refused(
        InvalidRequest, subject="one replica for all, with ranks that differ", rule="stragglers break the symmetry"
    ):
        simulate(
            OneFOneB(),
            Grid(data=2),
            FlushInterval(0, 1, None, 0),
            Fixed(1.0, 2.0),
            FREE,
            slower=Perturbation(spread=0.1),
        )


# -- more of something is never quicker ------------------------------------------------------------------------------


def makespan(schedule: Schedule, cost: Any, latency: float, bandwidth: float, *, blocking: bool = False) -> float:
    network = NetworkModel(lambda first, second: Link(latency, bandwidth), blocking=blocking)
    return simulate(
        schedule, Grid(inter=cost.stages), FlushInterval(0, cost.microbatches, None, 0), cost, network
    ).makespan


@dataclass
class Sized(Drawn):
    stages: int = 1
    microbatches: int = 1


messages = st.builds(
    Sized,
    seed=st.integers(0, 2**32),
    sizes=st.just((0, 1, 5, 20)),
    stages=st.integers(2, 6),
    microbatches=st.integers(1, 10),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STATIC), messages, st.lists(st.floats(0, 4), min_size=2, max_size=3), st.booleans())
def test_more_latency_never_makes_a_static_order_quicker(
    schedule: Schedule, cost: Sized, latencies: list[float], blocking: bool
) -> None:
    times = [makespan(schedule, cost, latency, 10.0, blocking=blocking) for latency in sorted(latencies)]
    assert all(more >= less * (1 - 1e-12) for less, more in pairwise(times))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STATIC), messages, st.lists(st.floats(0.1, 99), min_size=2, max_size=3), st.booleans())
def test_less_bandwidth_never_makes_a_static_order_quicker(
    schedule: Schedule, cost: Sized, bandwidths: list[float], blocking: bool
) -> None:
    times = [makespan(schedule, cost, 0.1, width, blocking=blocking) for width in sorted(bandwidths, reverse=True)]
    assert all(more >= less * (1 - 1e-12) for less, more in pairwise(times))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STATIC), messages, st.floats(0, 2), st.floats(0.5, 50))
def test_sends_that_block_are_never_quicker(schedule: Schedule, cost: Sized, latency: float, bandwidth: float) -> None:
    free, blocking = (makespan(schedule, cost, latency, bandwidth, blocking=blocks) for blocks in (False, True))
    assert blocking >= free * (1 - 1e-12)


@pytest.mark.parametrize("schedule", FLUSH, ids=str)
def test_sends_that_block_cost_equal_stages_time(schedule: Schedule) -> None:
    """A blocking send is strictly slower: a stage that could compute waits until its messages arrive."""
    for stages in (2, 4, 8):
        cost = Sized(0, times=(1.0,), sizes=(1,), stages=stages, microbatches=12)
        assert makespan(schedule, cost, 0.2, 10.0, blocking=True) > makespan(schedule, cost, 0.2, 10.0)
        assert makespan(schedule, cost, 0.0, 1e30, blocking=True) == makespan(schedule, cost, 0.0, 1e30)


# -- bytes -----------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(schedule=st.sampled_from(ANY), **sizes)
def test_payload_bytes_counted_are_those_modelled(
    schedule: Schedule, stages: int, microbatches: int, seed: int
) -> None:
    """Law 6: exactly the ops that feed a neighbour send bytes, in the trace and in the sums."""
    cost, interval = Drawn(seed, sizes=(3, 64, 1000)), FlushInterval(0, microbatches, None, 0)
    simulation = simulate(schedule, Grid(inter=stages), interval, cost, FREE, traced=True)
    for stage in range(stages):
        ops = [Op(stage, kind, i) for kind in (Kind.FORWARD, Kind.BACKWARD) for i in range(microbatches)]
        assert simulation.sent[stage] == sum(cost.message(op) for op in ops if feeds(op, stages) is not None)
        assert simulation.sent[stage] == sum(span.bytes for span in simulation.trace if span.rank == stage)


@pytest.mark.parametrize(("name", "tensor"), [("axonn", 1), ("deepspeed_3d", 2), ("megatron_lm", 2)])
def test_a_systems_payload_is_the_outputs_of_its_blocks(name: str, tensor: int) -> None:
    """Half a sequence by hidden is 64 bytes here: 4 microbatches of 2, forwards and backwards, whole or in slices."""
    plan = SimulationPlan(TINY, simulated(name), Grid(inter=4, tensor=tensor), 8, 2)
    simulation = run(plan, machine(), efficiency())
    forward, backward = {"axonn": (128, 128), "deepspeed_3d": (64, 128), "megatron_lm": (64, 64)}[name]
    inside = 4 * (forward + backward)
    assert simulation.sent == [4 * forward, inside, inside, 4 * backward]
    assert PlanCost(plan, machine(), efficiency()).message(Op(1, Kind.BACKWARD, 0)) == backward


# -- what cannot be ---------------------------------------------------------------------------------------------------


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
    ("spoil", "promise", "named"),
    [
        (lambda order: order[::-1], 9, "deadlock: stage 0 waits for 0B0; stage 1 waits for 1B2; stage 2 waits for 2F0"),
        (lambda order: order[1:], 9, "deadlock: .*stage 1 waits for"),
        (lambda order: [o for o in order if o.kind is not Kind.BACKWARD], 9, "deadlock: stage 0 waits for 0B0"),
        (lambda order: order, 2, "0F2 would be forward number 3, 2 were promised"),
    ],
)
def test_a_program_that_deadlocks_or_breaks_its_promise_raises(
    spoil: Callable[[list[Op]], list[Op]], promise: int, named: str
) -> None:
    broken = Broken(spoil, promise)
    for symmetric in (True, False):
        with pytest.raises(IllegalSchedule, match=named):
            simulate(
                broken, Grid(data=2, inter=3), FlushInterval(0, 3, None, 0), Fixed(1.0, 2.0), FREE, symmetric=symmetric
            )
