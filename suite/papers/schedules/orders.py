"""Checked runs of the published schedules, by the names that the claims use.

A run is the suite's own order, timed by the checker at given pass times. No answer contains a closed form: every bubble
and every count is read from a timeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from suite.claims.answer import Number
from suite.config.families import CONF, family_members
from suite.config.plugins import build
from suite.core.errors import UnknownName
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Schedule
from suite.schedule.check import Timeline, check

# schedules that the claims call as their papers do, and their names in conf/schedule
NAMES = {
    **{"interleaved_1f1b": "interleaved", "zb_v": "zbv", "dualpipe_v": "dual_pipe_v"},
    **{"message_driven_split": "axonn_zb"},
}


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Times of the passes of one chunk; a whole backward pass takes `input_gradient` plus `weight_gradient`."""

    forward: float = 1.0
    input_gradient: float = 1.0
    weight_gradient: float = 1.0

    @classmethod
    def of(cls, point: Mapping[str, Number]) -> PassTimes:
        """Times of a chunk at a point: tf, tb and tw, or one tick each.

        F, B and W are times of all chunks of a rank, where B is a whole backward pass.
        """
        if "F" in point:
            chunks, weight = point.get("v", 1), point.get("W", 0)
            return cls(point["F"] / chunks, (point["B"] - weight) / chunks, weight / chunks)
        return cls(*(point.get(name, 1.0) for name in ("tf", "tb", "tw")))

    @property
    def total(self) -> float:
        """Time of all passes of one microbatch on one chunk."""
        return self.forward + self.input_gradient + self.weight_gradient

    def of_op(self, op: Op) -> float:
        """Time of an op; an update takes none."""
        return {
            Kind.FORWARD: self.forward,
            Kind.INPUT: self.input_gradient,
            Kind.WEIGHT: self.weight_gradient,
            Kind.BACKWARD: self.input_gradient + self.weight_gradient,
        }.get(op.kind, 0.0)


EQUAL = PassTimes()


@cache
def schedule_of(name: str, variant: int = 0) -> Schedule:
    """The schedule of this name, with `variant` chunks or activations. Raises UnknownName for another name."""
    choices = family_members(CONF / "schedule")
    if (choice := NAMES.get(name, name)) not in choices:
        raise UnknownName("schedule of a claim", name, [*NAMES, *choices])
    keys = choices[choice].keys
    varied = {key: variant for key in ("chunks", "cap") if key in keys}
    schedule: Schedule = build({**keys, **varied}, "schedule", Schedule)
    return schedule


@lru_cache(maxsize=256)
def timeline(name: str, ranks: int, microbatches: int, times: PassTimes = EQUAL, variant: int = 0) -> Timeline:
    """Timeline of one flush, as checked by suite.schedule.check."""
    interval = FlushInterval(0, microbatches, None, 0)
    return check(schedule_of(name, variant), ranks, interval, cost=times.of_op)
