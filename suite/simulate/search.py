"""Simulation of a plan, and search for the fastest plan that fits the memory of a machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from suite.core.errors import DoesNotFit, InvalidRequest
from suite.core.grid import Grid
from suite.core.protocols import Schedule
from suite.core.units import si
from suite.schedule.placement import is_split, places
from suite.simulate.block_model import SimulationPlan, SystemModel
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.cost.plan_cost import PlanCost
from suite.simulate.layer_model import LayerPlan
from suite.simulate.network.machine import Machine
from suite.simulate.operations.layouts import RankedLayouts, divisors, fastest
from suite.simulate.worker import NetworkModel, Simulation, simulate
from suite.workload import Transformer

MICROBATCHES = (1, 2, 4, 8, 16, 32)
DRIVEN = 4_000_000  # ops of all ranks that are driven: half a minute
TRACED = 40_000  # ops of all ranks that are driven: a longer trace is not kept

DIVIDES = "stages divide blocks and devices, replicas and microbatch the batch"


@dataclass(frozen=True, slots=True)
class PlanTime:
    """A plan and its simulated seconds per batch."""

    plan: SimulationPlan
    seconds: float


def run(
    plan: SimulationPlan, machine: Machine, efficiency: Efficiency, *, symmetric: bool = True, traced: bool = False
) -> Simulation:
    """Simulate one batch of `plan` in virtual time."""
    cost, network = PlanCost(plan, machine, efficiency), _network(plan, machine, efficiency)
    return simulate(plan.system.schedule, plan.grid, plan.interval, cost, network, symmetric=symmetric, traced=traced)


def _network(plan: SimulationPlan, machine: Machine, efficiency: Efficiency) -> NetworkModel:
    system = plan.system
    return NetworkModel.of(
        machine,
        efficiency,
        plan.grid.size,
        blocking=system.blocking_sends,
        direct=system.device_initiated,
        apart=system.sync_before_update,
    )


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


def plans(
    shape: Transformer,
    system: SystemModel,
    devices: int,
    batch: int,
    *,
    microbatches: Sequence[int] = MICROBATCHES,
    splits: int = 12,
    generation: str = "megatron",
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
                    yield SimulationPlan(shape, system, grid, batch, microbatch, generation=generation)


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


def least_seconds(plan: SimulationPlan, machine: Machine, efficiency: Efficiency) -> float:
    """A lower bound of the seconds of a batch, for any schedule whose passes in flight are bounded.

    A rank waits until the first microbatch has reached it, works on all of them, and then either updates or waits until
    the last gradient is back on the first stage. And a microbatch that exceeds the number in flight begins when another
    has gone forward and back. Reductions are left out.
    """
    cost, place = PlanCost(plan, machine, efficiency), plan.places[0]
    network = _network(plan, machine, efficiency)
    last, split = place.stages - 1, is_split(plan.system.schedule)
    # a gradient does not wait for the weight gradients of a split backward pass
    back = [one.input if split else one.backward for one in cost.passes]
    ahead, behind, out, home = [0.0], [0.0], [0.0] * place.stages, [0.0] * place.stages
    for stage in range(last):
        here, there = (plan.grid.rank(data=0, inter=place.rank_of(each)) for each in (stage, stage + 1))
        link = network.link(here, there)
        sent, returned = (link.seconds(size) if here != there else 0.0 for size in (cost.size, cost.back))
        ahead.append(ahead[stage] + cost.passes[stage].forward + sent)
        behind.append(behind[stage] + back[stage] + returned)
        if plan.system.blocking_sends:
            out[stage], home[stage + 1] = sent, returned
    in_flight = plan.system.schedule.in_flight(place, plan.interval)
    seconds = -(-plan.microbatches // in_flight) * (ahead[last] + cost.passes[last].forward + back[last] + behind[last])
    for each in plan.places:
        held, first = each.held_stages, min(each.held_stages)
        gradients = sum(cost.passes[stage].forward + back[stage] + out[stage] + home[stage] for stage in held)
        weights = split * sum(cost.passes[stage].weight for stage in held)
        step = sum(chunk.step for chunk in cost.update(each.rank))
        updated = plan.microbatches * (gradients + weights) + step
        seconds = max(seconds, ahead[first] + max(updated, plan.microbatches * gradients - home[first] + behind[first]))
    return seconds


def passes(plan: SimulationPlan | LayerPlan, *, symmetric: bool = True) -> int:
    """Number of forward and backward passes of a simulation."""
    return 2 * plan.interval.microbatches * plan.places[0].stages * (1 if symmetric else plan.grid.data)


def check_size(plan: SimulationPlan | LayerPlan, *, symmetric: bool = True) -> None:
    """Raise InvalidRequest for a plan whose simulation would take more than about half a minute."""
    driven, ranks = passes(plan, symmetric=symmetric), plan.places[0].stages * (1 if symmetric else plan.grid.data)
    if driven > DRIVEN:
        raise InvalidRequest(
            f"{plan.interval.microbatches} microbatches on {ranks} ranks",
            rule=f"a simulation drives {driven} passes, at most {DRIVEN}",
            legal=f"{max(1, DRIVEN // (2 * ranks))} microbatches",
        )


def best(candidates: Iterable[SimulationPlan], machine: Machine, efficiency: Efficiency) -> RankedLayouts[PlanTime]:
    """Fastest plan among the plans that fit; DoesNotFit if none fits, InvalidRequest if there is no plan."""
    plans = [*candidates]
    if not plans:
        raise InvalidRequest("there is no plan to choose from", rule=DIVIDES, legal="1 device")
    return fastest(
        [(plan.peak, plan) for plan in plans],
        plans[0].grid.size,
        machine.memory,
        lambda plan: least_seconds(plan, machine, efficiency),
        lambda plan: PlanTime(plan, run(plan, machine, efficiency).makespan),
        best=1,
    )
