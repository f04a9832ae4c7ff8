"""Executors of runs, built from the `executor` group of their configuration.

suite.runner.ranks.rank maps `executor.kind` to the classes of ranks. Modules that need torch or scipy are imported
where they are used, as the process that starts ranks needs neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from suite.config import protocols
from suite.config.executor import (
    AnyExecutor,
    CheckExecutor,
    EmulatedExecutor,
    MicrobenchmarkExecutor,
    PluginExecutor,
    SimulatedExecutor,
)
from suite.config.run import RunConfig
from suite.runner.executors.check_executor import ScheduleCheck
from suite.runner.executors.emulated_rank import EmulatedRank


class ProbeExecutor(Protocol):
    """Checks of ranks that train nothing, in the process that starts them."""

    def check(self, config: RunConfig) -> None:
        """Raises InvalidRequest for a configuration that the ranks cannot execute."""

    def bytes_per_rank(self, config: RunConfig) -> Sequence[int]:
        """Bytes of each rank, in rank order."""


def without_ranks(executor: AnyExecutor) -> protocols.Executor:
    """Executor of a run without ranks."""
    match executor:
        case CheckExecutor():
            return ScheduleCheck(executor.ticks)
        case SimulatedExecutor():
            from suite.simulate.executor import Simulated

            return Simulated(
                machine=executor.machine.build(),
                efficiency=executor.efficiency.build(),
                plan=executor.plan,
                account=executor.account,
                symmetric=executor.symmetric,
            )
        case PluginExecutor():
            return executor.build()
    raise TypeError(f"executor.kind={executor.kind} starts ranks")


def rank_stub(executor: AnyExecutor) -> ProbeExecutor | None:
    """Ranks that an executor starts in place of the system's ranks; None if its ranks train the system."""
    match executor:
        case EmulatedExecutor():
            return EmulatedRank
        case MicrobenchmarkExecutor():
            return executor.build()
    return None
