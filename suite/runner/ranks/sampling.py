"""Base class for a rank of a microbenchmark, which trains nothing."""

from __future__ import annotations

from collections.abc import Sequence

from suite.config.protocols import Sampler
from suite.core.protocols import Value
from suite.core.trace import Trace


class Sampling(Sampler):
    """A sampler without loss, spans or model.

    A subclass adds `check`, `train_batch` (one sweep), `samples` and `summarize`.
    """

    def evaluate(self, batches: Sequence[Value]) -> None:
        """Do nothing: there is no loss."""

    def observe(self) -> Trace:
        """An empty trace: no op runs."""
        return Trace()

    def memory(self, batch: Value | None = None) -> tuple[None, dict[str, int]]:
        """No bytes: there is no model."""
        return None, {}

    def close(self) -> None:
        """Do nothing: no resource is open."""
