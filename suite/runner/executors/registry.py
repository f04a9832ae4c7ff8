"""Classes that implement the kinds of executors.

Each value of `executor.kind` has its classes here and nowhere else. They are named by their paths: some modules need
torch or scipy, which the process that starts ranks loads only for a run that requires them. The commands that a rank of
each kind obeys are in suite.runner.ranks.rank.
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

CHECKED = "suite.runner.executors.check_executor.Checked"
SIMULATED = "suite.simulate.executor.Simulated"
EMULATED = "suite.runner.executors.emulated_rank.Emulated"
PREPARATION = "suite.gnn.partition_data.Prepared"  # of full_graph, in the process that starts ranks
REPLAY = "suite.engine.replay_system.Replayed"  # of replay, in the place of all ranks of a system


class ProbeExecutor(Protocol):
    """Ranks that train nothing, as the process that starts them sees them."""

    def check(self, config: RunConfig) -> None:
        """Raises InvalidRequest for a config that they cannot carry out."""

    def bytes_per_rank(self, config: RunConfig) -> Sequence[int]:
        """Bytes of each rank, in order."""


def without_ranks(executor: AnyExecutor) -> protocols.Executor:
    """Executor of a run without ranks. Raises InvalidRequest for an executor that starts some."""
    match executor:
        case CheckExecutor():
            checked: protocols.Executor = locate(CHECKED)(executor.ticks)
            return checked
        case SimulatedExecutor():
            simulated: protocols.Executor = locate(SIMULATED)(
                machine=executor.machine.build(),
                stack=executor.stack.build(),
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
    """The ranks that an executor starts in the place of a system's; None for one whose ranks train the system."""
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
    """Class of what full-graph ranks need before they start: `check(config)`, and built with a config and a folder."""
    return locate(PREPARATION)


def replay() -> Any:
    """Class of the one process in the place of all ranks: built with their system's class, a world and a config."""
    return locate(REPLAY)
