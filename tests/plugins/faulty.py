"""System with a fault of one rank in its second batch, selected by `fault`."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import torch

from suite.config.run import RunConfig
from suite.core.protocols import Missing, Ready, Value, World
from suite.engine.system import EngineSystem


class Faulty(EngineSystem):
    """The suite's engine, with a fault on the last rank."""

    @classmethod
    def probe(cls, config: RunConfig) -> Ready | Missing:
        if config.system.more["fault"] == "missing":
            return Missing("its package is not installed")
        return Ready()

    def __init__(self, world: World, config: RunConfig) -> None:
        super().__init__(world, config)
        self.fault, self.mine, self.batches = config.system.more["fault"], world.rank == world.size - 1, 0

    def train_batch(self, batch: Value) -> float:
        self.batches += 1
        if self.mine and self.batches == 3:
            if self.fault == "raise":
                raise ValueError("a deliberate fault")
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "hang":
                time.sleep(3600)
            if self.fault == "hold":
                ctypes.PyDLL(None).sleep(3600)  # with the interpreter lock
            if self.fault == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if self.fault == "oom":
                self.hoard = torch.empty(12 << 30, dtype=torch.uint8)  # fits the machine, not the limit
            if self.fault == "package":
                import a_package_that_nobody_has  # noqa: F401
        loss = super().train_batch(batch)
        return float("nan") if self.fault == "diverge" and self.batches == 3 else loss

    def close(self) -> None:
        if self.mine and self.fault == "close":
            raise ValueError("a deliberate fault")
        if self.mine and self.fault == "hang_at_close":
            time.sleep(600)
        super().close()
