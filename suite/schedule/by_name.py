"""Schedules of conf/schedule by name, with the settings of their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.protocols import Schedule
from suite.schedule.controllable_memory import ControllableMemory
from suite.schedule.one_f_one_b import OneFOneB
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV

NAMED: Mapping[str, Callable[[int], Schedule]] = {
    "one_f_one_b": lambda _: OneFOneB(),
    "interleaved": lambda chunks: Staircase(chunks, lead=2) if chunks > 1 else OneFOneB(),
    "zb_h1": lambda _: Staircase(lead=1, split=True),
    "zb_h2": lambda _: Staircase(lead=2, split=True),
    "zbv": lambda _: ZBV(),
    "v_half": lambda _: ControllableMemory("half"),
    "v_min": lambda _: ControllableMemory("min"),
}


def schedule_by_name(name: str, chunks: int = 1) -> Schedule:
    """The schedule of conf/schedule/`name`.yaml.

    Args:
        chunks: Stages per rank of the interleaved schedule, which is 1F1B with one. The other schedules have a fixed
            number and ignore it.

    Raises:
        UnknownName: There is no such schedule; the error names the nearest one.
        InvalidRequest: `chunks` is less than 1.
    """
    if name not in NAMED:
        raise UnknownName("schedule", name, NAMED)
    if chunks < 1:
        raise InvalidRequest(f"chunks={chunks}", rule="a whole number of stages per rank, at least 1", legal="chunks=2")
    return NAMED[name](chunks)
