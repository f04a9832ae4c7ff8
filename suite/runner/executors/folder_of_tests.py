"""Executor that runs a folder of tests, in a process of its own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from suite.config.run import RunConfig
from suite.core.errors import Fault
from suite.core.protocols import ExecutorResult
from suite.core.record import Metric, Source
from suite.core.resources import ROOT
from suite.runner.launch.process_tree import run_program

TAIL = 40  # lines of the output that the record of failed tests holds


@dataclass(frozen=True, slots=True)
class FolderOfTests:
    """The tests of a folder on `launch.device`.

    Attributes:
        folder: Folder, below the root of the checkout.
        seconds: Longest duration; the run then fails.
        options: Further arguments of pytest.
    """

    folder: str
    seconds: float
    options: tuple[str, ...] = ()

    def reads(self, config: RunConfig) -> Sequence[str]:
        return ("launch.device",)

    def check(self, config: RunConfig) -> None:
        """Accept every configuration."""

    def run(self, config: RunConfig) -> ExecutorResult:
        """Numbers of passed and skipped tests. Raises Fault where a test failed or none ran."""
        own = ["-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider"]  # needs no plug-in of pytest
        line = [sys.executable, "-m", "pytest", *own, *self.options, self.folder]
        environment = {**os.environ, "TORCH_DEVICE": config.launch.device, "PYTHONPATH": str(ROOT)}
        done = run_program([*line, f"--rootdir={ROOT}"], seconds=self.seconds, env=environment, cwd=ROOT)
        counts = {word: float(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
        if done.returncode or not counts.get("passed"):
            output = "\n".join([*done.stdout.splitlines()[-TAIL:], *done.stderr.splitlines()[-TAIL:]])
            raise Fault(f"{self.folder} ended with {done.returncode}\n{output}")
        return ExecutorResult(Source.MEASURED, {word: Metric("test", "", (count,)) for word, count in counts.items()})
