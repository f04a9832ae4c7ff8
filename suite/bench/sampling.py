"""Decides what a stand-in that samples, and trains nothing, answers where a system would tell of its training."""

from __future__ import annotations

from collections.abc import Sequence

from suite.config.run import RunConfig
from suite.core.protocols import Missing, Ready, Value
from suite.core.record import Source
from suite.core.trace import Trace


class Sampling:
    """No loss, no spans, no model. A study adds `check`, `train_batch` (one sweep), `samples` and `left`."""

    source = Source.MEASURED

    @classmethod
    def probe(cls, config: RunConfig) -> Ready | Missing:
        return Ready()

    def evaluate(self, batches: Sequence[Value]) -> None:
        """Nothing: there is no loss."""

    def observe(self) -> Trace:
        """Empty: no op is run."""
        return Trace()

    def memory(self, batch: Value | None = None) -> tuple[None, dict[str, int]]:
        """Nothing that a model would hold."""
        return None, {}

    def close(self) -> None:
        """Nothing was opened."""
