"""Learning-rate schedules: functions from the number of updates to a rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from suite.core.errors import InvalidRequest
from suite.core.values import is_number

Rate = Callable[[int], float]


def as_rate(lr: float | Rate) -> Rate:
    """Return the learning rate as a function of the number of updates; a number gives a constant function."""
    if callable(lr):
        return lr
    if not (is_number(lr) and lr >= 0):
        raise InvalidRequest(f"lr={lr}", rule="finite and not negative", legal="0.001")
    constant = float(lr)
    return lambda update: constant


@dataclass(frozen=True, slots=True)
class Steps:
    """`lr` times `factor` for each milestone (in updates) that is reached."""

    lr: float
    milestones: Sequence[int]
    factor: float = 0.1

    def __call__(self, update: int) -> float:
        return self.lr * self.factor ** sum(update >= milestone for milestone in self.milestones)


@dataclass(frozen=True, slots=True)
class WarmupCosine:
    """Linear warm-up from lr/warmup to lr over `warmup` updates, then half a cosine to `floor` at update `total`."""

    lr: float
    total: int
    warmup: int = 0
    floor: float = 0.0

    def __call__(self, update: int) -> float:
        if update < self.warmup:
            return self.lr * (update + 1) / self.warmup
        progress = min(1.0, (update - self.warmup) / max(1, self.total - self.warmup))
        return self.floor + (self.lr - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Polynomial decay from lr to `floor` at update `total`: (1 - update/total) to the power `power`."""

    lr: float
    total: int
    power: float = 1.0
    floor: float = 0.0

    def __call__(self, update: int) -> float:
        decay: float = (1 - min(1.0, update / max(1, self.total))) ** self.power
        return self.floor + (self.lr - self.floor) * decay
