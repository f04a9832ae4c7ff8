"""Executor schedule_grid: winners, panels, refusals, determinism and size of the grid."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from suite.config.compose import resolve
from suite.config.families import groups
from suite.config.panels import WinnerMap
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import FlushInterval
from suite.core.protocols import ExecutorResult
from suite.runner.executors import registry
from suite.runner.executors.schedule_grid import NO_CAP, ScheduleGrid
from suite.schedule.placement import places
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.worker import NetworkModel, simulate


def plan_of(*overrides: str) -> ScheduleGrid:
    plan = registry.without_ranks(resolve(["experiment=schedules", *overrides]).executor)
    assert isinstance(plan, ScheduleGrid)
    return plan


@pytest.fixture(scope="module")
def plan() -> ScheduleGrid:
    """The grid of the experiment, smaller."""
    whole = plan_of()
    assert set(groups()["schedule"]) - {"message_driven", "torch_csv"} <= set(whole.schedules) == set(whole.names)
    costs = {name: whole.costs[name] for name in ("equal", "sequence_8")}
    return replace(whole, ranks=[2, 4], microbatches=[4, 8], costs=costs, latencies=[0, 0.25], focus=[4, 8])


@pytest.fixture(scope="module")
def result(plan: ScheduleGrid) -> ExecutorResult:
    return plan.run(resolve(["experiment=schedules"]))


def maps_of(result: ExecutorResult) -> dict[tuple[str, str], WinnerMap]:
    return {(each.group, each.case): each for each in result.panels if isinstance(each, WinnerMap)}


def test_winners_equal_simulations_one_by_one(plan: ScheduleGrid, result: ExecutorResult) -> None:
    """Every schedule is simulated on its own for each cell, and its memory is taken from the simulation."""
    maps = maps_of(result)
    assert len(maps) == 2 * 2 * (1 + len(plan.caps))
    for (name, ratio), latency in ((one, late) for one in plan.costs.items() for late in plan.latencies):
        group = f"F:I:W = {':'.join(map(str, ratio))}, latency {latency}"
        for row, ranks in enumerate(plan.ranks):
            for column, microbatches in enumerate(plan.microbatches):
                measured = one_by_one(plan, ranks, microbatches, ratio, latency)
                for case in (NO_CAP, *plan.caps):
                    limits = [math.inf, 0] if case == NO_CAP else plan.caps[case]
                    most = limits[2] if len(limits) > 2 else math.inf
                    fits = {
                        label: (makespan, held)
                        for label, (makespan, held, chunks) in measured.items()
                        if held <= limits[0] * ranks + limits[1] + 1e-9 and chunks <= most
                    }
                    winner = maps[group, case].winner(row, column)
                    assert winner is not None, name
                    best = min(makespan for makespan, _ in fits.values())
                    equal = [label for label in fits if fits[label][0] <= best * (1 + 1e-9)]
                    assert set(winner.names) == set(equal)
                    assert fits[winner.names[0]][1] == pytest.approx(min(fits[label][1] for label in equal))
                    others = [makespan for label, (makespan, _) in fits.items() if label not in equal]
                    assert winner.margin == pytest.approx(min(others) / best - 1)


def one_by_one(
    plan: ScheduleGrid, ranks: int, microbatches: int, ratio: Any, latency: float
) -> dict[str, tuple[float, float, int]]:
    """Makespan, activations held and stages per rank by label, of the schedules that run here."""
    found = {}
    for name, schedule in plan.schedules.items():
        v = places(schedule, ranks)[0].chunks
        forward, backward, weight = (part / ratio[0] / v for part in ratio)
        cost = Fixed(forward, backward + weight, weight=weight)
        network = NetworkModel(lambda first, second: Link(latency, 1e30))
        try:
            run = simulate(schedule, Grid(inter=ranks), FlushInterval(0, microbatches, None, 0), cost, network)
        except InvalidRequest:
            continue
        held = max(a + plan.weight_memory * b for rank in run.fronts for a, b in rank) / v
        found[plan.label(name)] = run.makespan, held, v
    return found
