"""How long a simulated batch takes: events per second of one deep pipeline, and 2048 ranks one by one."""

from __future__ import annotations

from typing import Any

import pytest

from suite.core.grid import Grid
from suite.core.op import FlushInterval
from suite.core.protocols import Schedule
from suite.schedule import MessageDriven, OneFOneB
from suite.simulate.block_model import SimulationPlan
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.search import run
from suite.simulate.worker import NetworkModel, simulate
from tests.support.modelled import conf, shape, simulated
from tests.support.samples import tell

OWN = "pytest-benchmark's own clock, one process"
TARGET, LEAST = 0.4e6, 0.1e6  # events per second: the target, and the least on a loaded machine
RANKS, SECONDS = 2048, 10.0


def median(benchmark: Any) -> float:
    """Seconds of a round; with --benchmark-disable nothing is timed, and nothing is late."""
    return 0.001 if benchmark.stats is None else float(benchmark.stats["median"])


@pytest.mark.parametrize("schedule", [MessageDriven(), OneFOneB()], ids=lambda s: type(s).__name__)
def test_events_per_second(benchmark: Any, schedule: Schedule) -> None:
    """48 stages, 1024 microbatches, messages of 1 ms between passes of 10 and 20 ms."""
    benchmark.group = "simulate 48 stages, 1024 microbatches"
    cost, network = Fixed(0.01, 0.02, message_bytes=1000), NetworkModel(lambda first, second: Link(1e-3, 1e9))
    simulation = benchmark(simulate, schedule, Grid(inter=48), FlushInterval(0, 1024, None, 0), cost, network)
    # an end of each pass and an arrival of each message; 48 starts, 48 updates
    assert simulation.events == 2 * 1024 * 48 + 2 * 1024 * 47 + 2 * 48
    rate = simulation.events / median(benchmark)
    assert rate > LEAST
    tell(benchmark, peer=False, timing=OWN, events=simulation.events, rate=round(rate), target=round(TARGET))


@pytest.mark.parametrize("symmetric", [True, False], ids=["one replica for all", "every rank"])
def test_2048_ranks(benchmark: Any, symmetric: bool) -> None:
    """SAMO's largest dense run: 13B on 32 stages, 64 replicas, a batch of 2048."""
    benchmark.group = "simulate 2048 ranks"
    plan = SimulationPlan(shape("gpt3_13b"), simulated("axonn_no_memopt"), Grid(data=64, inter=32), 2048, 1, "share")
    assert plan.grid.size == RANKS
    machine, efficiency = conf("machine", "summit"), conf("efficiency", "summit")
    simulation = benchmark(run, plan, machine, efficiency, symmetric=symmetric)
    assert median(benchmark) < SECONDS
    tell(benchmark, peer=False, timing=OWN, events=simulation.events, makespan=simulation.makespan, target=SECONDS)
