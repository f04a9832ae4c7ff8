"""Search for the fastest plan that fits the memory of a machine.

A closed form (passes of the slowest stage, filling and draining, one reduction) sorts the plans. The best few are
simulated, so the schedule itself decides between nearly equal plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from suite.core.errors import DoesNotFit, InvalidRequest
from suite.core.grid import Grid
from suite.core.protocols import Schedule
from suite.core.units import si
from suite.schedule.placement import places
from suite.simulate.block_model import SimulationPlan, SystemModel
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.cost.plan_cost import PlanCost
from suite.simulate.layer_model import LayerPlan
from suite.simulate.network.machine import Link, Machine
from suite.simulate.network.network import Ring
from suite.simulate.worker import NetworkModel, Simulation, simulate
from suite.workload import Transformer

MICROBATCHES = (1, 2, 4, 8, 16, 32)
SIMULATED = 3  # of the plans that fit, at most
NEAR = 1.04  # by the closed form, relative to the best: within 4 percent of the simulation for many microbatches

DIVIDES = "stages divide blocks and devices, replicas and microbatch the batch"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A simulated plan.

    Attributes:
        seconds: Seconds per batch.
        tried: Number of plans that fit the memory.
    """

    plan: SimulationPlan
    seconds: float
    fit: int
    tried: int


def run(
    plan: SimulationPlan, machine: Machine, efficiency: Efficiency, *, symmetric: bool = True, traced: bool = False
) -> Simulation:
    """Simulate one batch of `plan` in virtual time."""
    system = plan.system
    network = NetworkModel.of(
        machine,
        efficiency,
        plan.grid.size,
        blocking=system.blocking_sends,
        direct=system.device_initiated,
        apart=system.sync_before_update,
    )
    cost = PlanCost(plan, machine, efficiency)
    return simulate(plan.system.schedule, plan.grid, plan.interval, cost, network, symmetric=symmetric, traced=traced)


def check_memory(plan: SimulationPlan | LayerPlan, machine: Machine) -> None:
    """Raise DoesNotFit if the fullest rank exceeds the memory of its device."""
    if plan.peak > machine.memory:
        ways = [f"more than {plan.grid.inter} stages"] if plan.grid.inter < plan.deepest else []
        ways += [f"a microbatch below {plan.microbatch}"] if plan.microbatch > 1 else []
        raise DoesNotFit(
            f"{si(plan.peak, 'B')} on a device of {machine.name} with {si(machine.memory, 'B')}",
            rule="the fullest stage fits its device",
            legal=", or ".join(ways or ["offloaded or compressed states"]),
        )


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def plans(
    shape: Transformer,
    system: SystemModel,
    devices: int,
    batch: int,
    *,
    microbatches: Sequence[int] = MICROBATCHES,
    splits: int = 12,
    flash: bool = False,
) -> Iterator[SimulationPlan]:
    """Every plan that divides devices, blocks, heads and batch, with a layer on at most `splits` ranks."""
    for tensor in divisors(devices) if system.tensor else [1]:
        if tensor > splits or shape.heads % tensor:
            continue
        for inter in divisors(devices // tensor):
            stages = _stages(system.schedule, inter)
            if not stages or stages > shape.layers or shape.layers % stages:
                continue
            data = devices // (tensor * inter)
            for microbatch in microbatches:
                if batch % (data * microbatch) == 0:
                    grid = Grid(data=data, inter=inter, tensor=tensor)
                    yield SimulationPlan(shape, system, grid, batch, microbatch, flash=flash)


def _stages(schedule: Schedule, ranks: int) -> int:
    """Stages of a pipeline on `ranks` ranks; 0 for a schedule of another number of ranks."""
    try:
        return places(schedule, ranks)[0].stages
    except InvalidRequest:
        return 0


def no_plan(devices: int, batch: int) -> InvalidRequest:
    """Error of a search in which no plan divides evenly."""
    return InvalidRequest(
        f"there is no plan for {devices} devices and a batch of {batch}",
        rule=DIVIDES,
        legal=f"a batch of {-(-batch // devices) * devices}",
    )


def estimate(plan: SimulationPlan, machine: Machine, efficiency: Efficiency) -> float:
    """Seconds per batch by the closed form, accurate enough to sort plans."""
    cost, place = PlanCost(plan, machine, efficiency), plan.places[0]
    both = [f + b for f, b in zip(cost.forward, cost.backward, strict=True)]
    last = place.stages - 1
    crossed = sum(place.rank_of(stage) != place.rank_of(stage + 1) for stage in range(last))
    link = machine.between if plan.grid.size > machine.devices_per_node else machine.within
    if not plan.system.device_initiated:
        link = Link(link.latency + efficiency.delay, min(link.bandwidth, efficiency.lane))
    forward, backward = link.seconds(cost.size), link.seconds(cost.back)
    busy = both
    if plan.system.blocking_sends:  # an end of the pipeline sends one way
        busy = [t + forward * (stage < last) + backward * (stage > 0) for stage, t in enumerate(both)]
    busy = [sum(busy[stage] for stage in each.held_stages) for each in plan.places]
    around = sum(both) + crossed * (forward + backward)
    in_flight = max(1, plan.system.schedule.in_flight(place, plan.interval) // len(place.held_stages))
    # where around is longer than the slowest stage takes for all in flight, the next of them waits for the first's end
    rounds, rest = divmod(plan.microbatches - 1, in_flight)
    steady = max((plan.microbatches - 1) * max(busy), rounds * around + rest * max(busy))
    return steady + around + _update(plan, cost, machine, efficiency)


def _update(plan: SimulationPlan, cost: PlanCost, machine: Machine, efficiency: Efficiency) -> float:
    """Seconds of all reductions of a node at once, and of the step after them or overlapping them."""
    stage = min(1, plan.grid.inter - 1)
    chunks = cost.update(stage)
    sent, step = sum(chunk.reduce for chunk in chunks), sum(chunk.step for chunk in chunks)
    ring = Ring.of(plan.grid.data_parallel_group(0), machine, plan.grid.tensor)
    if plan.grid.data == 1:
        return step
    beside = min(machine.devices_per_node, plan.grid.inter * plan.grid.tensor) if ring.nodes else 1
    adapters = machine.between.bandwidth * min(efficiency.adapters, machine.adapters) * efficiency.network
    rate = adapters / beside if ring.nodes else machine.within.bandwidth * efficiency.within
    reduced = sent / rate + len(chunks) * efficiency.collective
    return max(reduced, step) if len(chunks) > 1 else reduced + step


def best(
    candidates: Iterator[SimulationPlan] | Sequence[SimulationPlan],
    machine: Machine,
    efficiency: Efficiency,
    *,
    simulated: int = SIMULATED,
) -> SearchResult:
    """Fastest plan among the plans that fit.

    Raises DoesNotFit if no plan fits, with the smallest memory that a plan needs, and InvalidRequest if there is no
    plan.
    """
    everything = list(candidates)
    if not everything:
        raise InvalidRequest("there is no plan to choose from", rule=DIVIDES, legal="1 device")
    fit = [plan for plan in everything if plan.peak <= machine.memory]
    if not fit:
        least = min(plan.peak for plan in everything)
        raise DoesNotFit(
            f"no plan of {len(everything)} fits: the smallest needs {si(least, 'B')} of {si(machine.memory, 'B')}",
            rule="the fullest stage fits its device",
            legal="more devices, or offloaded or compressed states",
        )
    ordered = sorted(fit, key=lambda plan: estimate(plan, machine, efficiency))
    limit = NEAR * estimate(ordered[0], machine, efficiency)
    near = [plan for plan in ordered[:simulated] if estimate(plan, machine, efficiency) <= limit]
    timed = [(run(plan, machine, efficiency).makespan, index, plan) for index, plan in enumerate(near)]
    seconds, _, plan = min(timed, key=lambda entry: entry[:2])
    return SearchResult(plan, seconds, len(fit), len(everything))
