"""System that replays another system in one process, for numbers that do not depend on time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from suite.config.run import RunConfig
from suite.core.protocols import Value, World
from suite.core.trace import Trace
from suite.data.batches import mapped
from suite.engine.replay import Replay
from suite.engine.system import EngineSystem, decoded, network, tensors


class Replayed:
    """Runs any system on the suite's engine, at any depth, on one rank. Losses, scores and versions equal those on
    ranks; times do not.
    """

    def __init__(self, made: type[EngineSystem], world: World, config: RunConfig) -> None:
        self.network = network(config)
        self.replay = Replay(**made.settings(config))

    @property
    def streams(self) -> bool:
        return self.replay.engines[0].update_every is not None

    def train_batch(self, batch: Value) -> float:
        (loss,) = self.replay.train([tensors(batch)])
        return loss

    def stream(self, batches: Sequence[Value]) -> tuple[list[float], list[float]]:
        """Their losses, and when the first stage was done with each."""
        losses = list(self.replay.train(mapped(batches, tensors)))
        return losses, self.replay.engines[0].ended

    def evaluate(self, batches: Sequence[Value]) -> float:
        return self.score(batches)["loss"]

    def score(self, batches: Sequence[Value]) -> dict[str, float]:
        return dict(self.replay.score([tensors(batch) for batch in batches]))

    def decode(self, batches: Sequence[Value]) -> list[Any] | None:
        return decoded(self.network, self.replay.outputs, batches)

    def told(self) -> dict[str, Any]:
        """How many batches overflowed, of mixed precision."""
        first = self.replay.engines[0]
        return {"loss_scale": first.scaler.scale, "skipped": first.update.skipped} if first.scaler else {}

    def observe(self) -> Trace:
        """Empty: spans of a replay would tell nothing."""
        return Trace()

    def memory(self, batch: Value) -> tuple[None, dict[str, int]]:
        """Nothing: all stages share one process."""
        return None, {}

    def close(self) -> None:
        """Nothing was opened."""
