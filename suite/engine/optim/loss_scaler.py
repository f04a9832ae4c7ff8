"""Loss scaling, which keeps half-precision gradients from underflow and overflow.

An update whose gradients overflow is skipped and the scale halved; after `patience` updates in a row without overflow
the scale doubles. Scales are powers of two, so scaling and unscaling are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from suite.core.errors import Diverged, InvalidRequest
from suite.core.values import is_number

STUCK = 16  # batches in a row that overflow at the smallest scale: no scale helps


@dataclass
class DynamicLossScaler:
    """A dynamic loss scale.

    Attributes:
        start, least, most: First, smallest and largest scale; powers of two.
        patience: Batches in a row without overflow before the scale doubles.
        scale: Current scale.
        clean: Batches in a row without overflow.
        stuck: Batches in a row with an overflow at the smallest scale.
    """

    start: float = 2.0**16
    least: float = 1.0
    most: float = 2.0**24
    patience: int = 200

    def __post_init__(self) -> None:
        for name in ("start", "least", "most"):
            value = getattr(self, name)
            if not (is_number(value) and value > 0 and math.frexp(value)[0] == 0.5):
                raise InvalidRequest(f"DynamicLossScaler({name}={value})", rule="a power of two", legal="65536.0")
        if not self.least <= self.start <= self.most:
            raise InvalidRequest(f"DynamicLossScaler(start={self.start})", rule=f"from {self.least} to {self.most}")
        if not isinstance(self.patience, int) or self.patience < 1:
            raise InvalidRequest(f"DynamicLossScaler(patience={self.patience})", rule="at least 1 batch", legal="200")
        self.scale = float(self.start)
        self.clean = self.stuck = 0

    def observe(self, overflow: bool) -> None:
        """Adjust the scale after a batch. Raises Diverged after STUCK overflows in a row at the smallest scale."""
        if not overflow:
            self.clean, self.stuck = self.clean + 1, 0
            if self.clean >= self.patience:
                self.scale, self.clean = min(self.most, 2 * self.scale), 0
            return
        self.clean = 0
        self.stuck = self.stuck + 1 if self.scale == self.least else 0
        self.scale = max(self.least, self.scale / 2)
        if self.stuck >= STUCK:
            raise Diverged(f"the gradients of {STUCK} batches in a row overflow at a loss scale of {self.least}")

    def state(self) -> dict[str, float]:
        """State for a checkpoint."""
        return {"scale": self.scale, "clean": float(self.clean), "stuck": float(self.stuck)}

    def restore(self, state: dict[str, float]) -> None:
        self.scale, self.clean, self.stuck = state["scale"], int(state["clean"]), int(state["stuck"])


def unscaled() -> DynamicLossScaler:
    """A scale that is always 1; updates with overflows are skipped nevertheless."""
    return DynamicLossScaler(start=1.0, least=1.0, most=1.0)
