"""Classes that implement the kinds of executors.

This module maps each value of `executor.kind` to its classes; suite.runner.ranks.rank maps it to the classes of ranks.
Classes are named by path, because some of their modules need torch or scipy, which the process that starts ranks loads
only on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from suite.config import protocols
from suite.config.executor import (
    AnyExecutor,
    CheckExecutor,
    EmulatedExecutor,
    MicrobenchmarkExecutor,
    PluginExecutor,
    SimulatedExecutor,
)
from suite.config.locate import locate
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest

CHECKED = "suite.runner.executors.check_executor.ScheduleCheck"
SIMULATED = "suite.simulate.executor.Simulated"
EMULATED = "suite.runner.executors.emulated_rank.EmulatedRank"
PREPARATION = "suite.gnn.partition_data.Prepared"  # for full_graph, in the process that starts ranks
REPLAY = "suite.engine.replay_system.ReplaySystem"  # for replay, in place of all ranks of a system


class ProbeExecutor(Protocol):
    """Checks of ranks that train nothing, in the process that starts them."""

    def check(self, config: RunConfig) -> None:
        """Raises InvalidRequest for a configuration that the ranks cannot execute."""

    def bytes_per_rank(self, config: RunConfig) -> Sequence[int]:
        """Bytes of each rank, in rank order."""


def without_ranks(executor: AnyExecutor) -> protocols.Executor:
    """Executor of a run without ranks. Raises InvalidRequest for an executor that starts ranks."""
    match executor:
        case CheckExecutor():
            checked: protocols.Executor = locate(CHECKED)(executor.ticks)
            return checked
        case SimulatedExecutor():
            simulated: protocols.Executor = locate(SIMULATED)(
                machine=executor.machine.build(),
                efficiency=executor.efficiency.build(),
                plan=executor.plan,
                account=executor.account,
                symmetric=executor.symmetric,
            )
            return simulated
        case PluginExecutor():
            return executor.build()
    raise InvalidRequest(
        f"executor.kind={executor.kind} without ranks", rule="it starts ranks", legal="executor=simulated"
    )


def stand_in(executor: AnyExecutor) -> ProbeExecutor | None:
    """Ranks that an executor starts in place of the system's ranks; None if its ranks train the system."""
    match executor:
        case EmulatedExecutor():
            emulating: ProbeExecutor = emulated()
            return emulating
        case MicrobenchmarkExecutor():
            return executor.build()
    return None


def emulated() -> Any:
    """Class of an emulated rank."""
    return locate(EMULATED)


def preparation() -> Any:
    """Class that prepares the data of full-graph ranks. It has `check(config)`, and takes a config and a folder."""
    return locate(PREPARATION)


def replay() -> Any:
    """Class that replays all ranks in one process. It takes the class of their system, a world and a config."""
    return locate(REPLAY)
