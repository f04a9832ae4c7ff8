"""Distance of training setups, and the measured setups nearest to one.

The error on similar measurements is the best estimate of the error of a plan that nobody has run.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log
from typing import NamedTuple, TypeVar

from suite.core.protocols import Schedule
from suite.schedule.placement import is_placed, is_split
from suite.simulate.operations.setup import TrainingSetup

COUNT = 5
DIFFERENT = 1.0
"""Distance of two settings that differ: as much as a factor of e in parameters, or in devices."""

Name = TypeVar("Name")


class SetupFeatures(NamedTuple):
    """The values of a setup that a distance compares."""

    family: str
    generation: str
    sharding: str
    kind: str
    parameters: int
    devices: int

    @classmethod
    def of(cls, setup: TrainingSetup) -> SetupFeatures:
        kind, size = schedule_kind(setup.schedule), setup.model.parameters
        return cls(setup.machine.family, setup.generation.name, setup.sharding, kind, size, setup.devices)


def schedule_kind(schedule: Schedule | None) -> str:
    """Kind of a schedule: none, V, split (zero bubble on a chain), interleaved, or plain."""
    if schedule is None:
        return "none"
    if is_placed(schedule) and schedule.fold:
        return "V"
    if is_split(schedule):
        return "split"
    return "interleaved" if is_placed(schedule) and schedule.chunks > 1 else "plain"


def distance(first: SetupFeatures, second: SetupFeatures) -> float:
    """Distance of two setups: in log parameters, in log devices, and for each kind of setting that differs."""
    different = sum(a != b for a, b in zip(first[:4], second[:4], strict=True))
    sizes = abs(log(first.parameters / second.parameters)) + abs(log(first.devices / second.devices))
    return sizes + DIFFERENT * different


def nearest(
    own: SetupFeatures, others: Iterable[tuple[str, SetupFeatures, Name]], count: int = COUNT
) -> tuple[Name, ...]:
    """The nearest of other setups, given as id, features and result. Those of the own family precede all others."""
    keyed = [(other.family != own.family, distance(own, other), name, value) for name, other, value in others]
    return tuple(value for *_, value in sorted(keyed, key=lambda each: each[:3])[:count])
