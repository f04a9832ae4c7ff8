"""Which update a batch of DeepSpeed's is, where it leaves some out. Nothing here needs DeepSpeed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from baselines.common import PeerPlan
from baselines.deepspeed_3d import DeepSpeed3D
from tests.support.curves import config_of


class Overflowing:
    """Counters of DeepSpeed's engine, for a run whose first batches overflow."""

    def __init__(self, overflows: int) -> None:
        self.optimizer = SimpleNamespace(param_groups=[{"lr": 0.0}])
        self.overflows, self.global_steps, self.skipped_steps = overflows, 0, 0
        self.rates: list[float] = []

    def train_batch(self, rows: Any) -> float:
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        self.skipped_steps += self.global_steps < self.overflows
        self.global_steps += 1
        return 1.0


def test_skipped_batches_do_not_change_the_learning_rate() -> None:
    system = object.__new__(DeepSpeed3D)
    system.plan, system.replica = PeerPlan(config_of(["batch.size=4", "batch.microbatch=2"])), 0
    system.engine, system.rate = Overflowing(2), lambda update: float(update + 1)
    for _ in range(5):
        system.train_batch((np.zeros((4, 8)), np.zeros((4, 8))))
    assert system.engine.rates == [1.0, 1.0, 1.0, 2.0, 3.0]
