"""Rank of a microbenchmark, which measures and trains nothing."""

from __future__ import annotations

from collections.abc import Sequence

from suite.config.protocols import Sampler
from suite.core.protocols import Value
from suite.core.trace import Trace


class Sampling(Sampler):
    """No loss, no spans, no model. A study adds `check`, `train_batch` (one sweep), `samples` and `left`."""

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
