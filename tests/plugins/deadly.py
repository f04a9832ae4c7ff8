"""Executor whose process ends as `executor.how` selects."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from suite.config.run import RunConfig
from suite.core.protocols import ExecutorResult
from suite.core.record import Metric, Source

SIGNALS = {"killed": signal.SIGKILL, "told_to_end": signal.SIGTERM}

WAITS = {"slow": 1.0, "sleeps": 60.0}  # seconds


class Deadly:
    """An executor that starts no ranks. log: a file that gets a line for every run that is begun."""

    def __init__(self, *, how: str, log: str) -> None:
        self.how, self.log = how, Path(log)

    def check(self, config: RunConfig) -> None:
        """Nothing is refused."""

    def run(self, config: RunConfig) -> ExecutorResult:
        with self.log.open("a") as file:
            file.write(f"{self.how}\n")
        if self.how in SIGNALS:
            os.kill(os.getpid(), SIGNALS[self.how])
            time.sleep(10)
        if self.how == "exits":
            os._exit(77)
        if self.how == "raises":
            raise ValueError("a deliberate fault")
        if self.how in WAITS:
            time.sleep(WAITS[self.how])
        return ExecutorResult(Source.ANALYTIC, metrics={"number": Metric("", "", (1.0,))})
