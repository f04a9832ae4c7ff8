"""Configured schedule, weight policy and update interval of the systems in PipeOptim's comparison.

Answers read them here, so that a changed configuration changes the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from suite.config.compose import resolve
from suite.core.protocols import Schedule, WeightPolicy

ASYNCHRONOUS = ("pipedream", "pipedream_2bw", "spectrain", "pipeoptim")


@dataclass(frozen=True, slots=True)
class Configured:
    """A configured system. `every` is the number of mini-batches per update; None if the pipeline drains for each."""

    schedule: Schedule
    policy: WeightPolicy
    every: int | None


@cache
def configured(system: str, stages: int) -> Configured:
    """The system of conf/system with this name, on a number of stages."""
    config = resolve([f"system={system}", f"grid.inter={stages}"])
    return Configured(config.schedule.build(), config.weights.build(), config.update_interval)
