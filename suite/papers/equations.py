"""Idle time of a pipeline by a simulation at unit cost, which depends on no machine and no fitted constant."""

from __future__ import annotations

from suite.core.grid import Grid
from suite.core.op import FlushInterval
from suite.core.protocols import Schedule
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.worker import NetworkModel, Simulation, simulate

INSIDE = 1  # inner stage: it has both neighbours if there are three or more stages
BYTES = 1024  # size of a message, the same at every depth (AxoNN Lemma V.1)
FREE = NetworkModel(lambda first, second: Link(0.0, 1e30))


def flush(schedule: Schedule, stages: int, microbatches: int, cost: Fixed, *, traced: bool = False) -> Simulation:
    """One flush whose messages take no time."""
    return simulate(schedule, Grid(inter=stages), FlushInterval(0, microbatches, None, 0), cost, FREE, traced=traced)


def idle_time(forward: float, backward: float, stages: int, schedule: Schedule) -> float:
    """Idle seconds of a stage if the whole model takes `forward` and `backward` seconds per microbatch."""
    passes = forward / stages, backward / stages
    return flush(schedule, stages, 2 * stages, Fixed(*passes)).makespan - 2 * stages * sum(passes)
