"""System that replays another system in one process, for numbers that do not depend on time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from suite.config.executor import ReplayExecutor
from suite.config.run import RunConfig
from suite.core.protocols import Value, World
from suite.core.trace import Trace
from suite.engine.replay.replay import Replay
from suite.engine.system import EngineSystem, decode_outputs, loss_scale_notes, network, to_tensors


class ReplaySystem(EngineSystem):
    """Runs a system on the suite's engine at any depth, on one rank.

    Losses, scores and weight versions equal those on ranks; times are not comparable."""

    def __init__(self, system: type[EngineSystem], world: World, config: RunConfig) -> None:
        self.network = network(config)
        assert isinstance(config.executor, ReplayExecutor)
        self.counts = config.executor.memory
        self.engine: Replay = Replay(**system.engine_arguments(config), device=world.device, recompute=self.counts)

    def decode(self, batches: Sequence[Value]) -> list[Any] | None:
        return decode_outputs(self.network, self.engine.outputs, batches)

    def facts(self) -> dict[str, Any]:
        """Notes for the record: the loss scale and the number of skipped batches in mixed precision."""
        return loss_scale_notes(self.engine.state)

    def observe(self) -> Trace:
        """An empty trace, because times of a replay are not comparable."""
        return Trace()

    def memory(self, batch: Value) -> tuple[float | None, list[dict[str, int]]]:  # type: ignore[override]
        """The loss, and the bytes of each rank of the replayed grid; neither if they are not counted."""
        if not self.counts:
            return None, []
        ranks = self.engine.memory_of_ranks(to_tensors(batch))
        return ranks[0][0], [counts for _, counts in ranks]
