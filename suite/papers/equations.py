"""Idle time of a pipeline by a simulation at unit cost, which depends on no machine and no fitted constant."""

from __future__ import annotations

from suite.core.grid import Grid
from suite.core.op import FlushInterval
from suite.core.protocols import Schedule
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.worker import NetworkModel, simulate

INSIDE = 1  # inner stage: it has both neighbours if there are three or more stages
BYTES = 1024  # size of a message, the same at every depth (AxoNN Lemma V.1)
FREE = NetworkModel(lambda first, second: Link(0.0, 1e30))


def idle_time(forward: float, backward: float, stages: int, schedule: Schedule) -> float:
    """Idle seconds of a stage if the whole model takes `forward` and `backward` seconds per microbatch."""
    passes = forward / stages, backward / stages
    simulated = simulate(schedule, Grid(inter=stages), FlushInterval(0, 2 * stages, None, 0), Fixed(*passes), FREE)
    return simulated.makespan - 2 * stages * sum(passes)
