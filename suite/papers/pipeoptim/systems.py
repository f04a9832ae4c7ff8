"""Reads what a system of PipeOptim's comparison runs from its own config: order, weight versions and update interval.

An answer on a system asks here, so that a system which is configured otherwise is answered otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from suite.config.compose import resolve
from suite.core.protocols import Schedule, WeightPolicy

ASYNCHRONOUS = ("pipedream", "pipedream_2bw", "spectrain", "pipeoptim")


@dataclass(frozen=True, slots=True)
class Configured:
    """every: mini-batches per update; None: the pipeline drains for each."""

    schedule: Schedule
    policy: WeightPolicy
    every: int | None


@cache
def configured(system: str, stages: int) -> Configured:
    """The system of conf/system that has this name, on as many stages."""
    config = resolve([f"system={system}", f"grid.inter={stages}"])
    return Configured(config.schedule.build(), config.weights.build(), config.update_interval)
