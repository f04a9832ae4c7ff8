"""Pasted schedules: a schedule file of PyTorch, or Python that orders or generates the ops of a rank.

    chunks = 1                                # optional, as `fold` and `split` of suite.schedule.ordered
    def order(place, microbatches):           # passes of one update
        for kind in "FB":
            for index in range(microbatches):
                yield kind, place.stage, index

`def program(place, interval)` yields the ops that may run next instead and is sent the op that ran; `in_flight(place,
interval)` then promises a bound of forward passes in flight. The page's worker runs the text after a press of Run; the
command line never does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from suite.core import op
from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval, Kind, Place, Program
from suite.core.protocols import Schedule
from suite.schedule.ordered import Ordered, Pass
from suite.schedule.torch_csv import ListedSchedule, checked_schedule

NAME = "pasted"
Names = Mapping[str, Any]  # definitions of pasted Python, by name
_LEGAL = "def order(place, microbatches), which yields kind, stage and index; or a row per rank, such as 0F0,0B0"


def run(text: str) -> Names:
    """Definitions of pasted Python, which may use the names of suite.core.op. Raises what the text raises."""
    names = dict(vars(op))
    exec(compile(text, NAME, "exec"), names)
    return names


def is_python(text: str) -> bool:
    """Whether a text is Python rather than a schedule file."""
    return "def " in text


def listed(text: str) -> ListedSchedule:
    """The schedule of a pasted file. Raises InvalidRequest and IllegalSchedule with the cell at fault."""
    return checked_schedule(text.strip() + "\n", NAME)


def schedule_of(text: str, names: Names | None) -> Schedule:
    """The schedule of a pasted text, whose definitions are `names` if it is Python that was run.

    Raises InvalidRequest for Python that was not run or defines no schedule, and as `listed`.
    """
    if not is_python(text):
        return listed(text)
    if names is None:
        rule = "pasted Python runs in a browser, after a press of Run"
        raise InvalidRequest(NAME, "Python", rule, "a class of your own: suite draw schedule._target_=")
    if "program" not in names and "order" not in names:
        raise InvalidRequest(NAME, "Python", "it defines order or program", _LEGAL)
    return PastedSchedule(names)


class PastedSchedule(Ordered):
    """Schedule of the definitions of pasted Python."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.chunks, self.fold = int(names.get("chunks", 1)), bool(names.get("fold", False))
        self.split = bool(names.get("split", False))

    def order(self, place: Place, microbatches: int) -> Iterator[Pass]:
        for kind, stage, index in self.names["order"](place, microbatches):
            yield Kind(kind), stage, index

    def program(self, place: Place, interval: FlushInterval) -> Program:
        generator = self.names.get("program")
        return generator(place, interval) if generator else super().program(place, interval)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        if "program" not in self.names:
            return super().in_flight(place, interval)
        bound = self.names.get("in_flight")
        return int(bound(place, interval)) if bound else interval.microbatches * self.chunks
