"""Schedules with several stages per rank or a split backward pass, schedules of fixed texts, and flushes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from suite.core.op import FlushInterval, Op, Place, Program
from suite.core.protocols import Schedule
from suite.schedule import (
    ZBV,
    ControllableMemory,
    DualPipeV,
    LoopedBFS,
    MessageDrivenSplit,
    MessageDrivenV,
    Staircase,
)

STATIC: dict[str, Schedule] = {
    "one_f_one_b": Staircase(),
    "eager_1f1b": Staircase(lead=2),
    "zb_h1": Staircase(split=True),
    "zb_h2": Staircase(split=True, lead=2),
    "interleaved_1f1b_2": Staircase(2),
    "interleaved_1f1b_3": Staircase(3),
    "interleaved_zero_bubble_2": Staircase(2, split=True),
    "interleaved_zero_bubble_3": Staircase(3, split=True),
    "looped_bfs": LoopedBFS(2),
    "zbv": ZBV(),
    "v_half": ControllableMemory("half"),
    "v_min": ControllableMemory("min"),
    "dual_pipe_v": DualPipeV(),
}
MESSAGE_DRIVEN: dict[str, Schedule] = {
    "axonn_zb": MessageDrivenSplit(),
    "axonn_zb_small": MessageDrivenSplit(cap=3, late=1),
    "axonn_zbv": MessageDrivenV(),
    "axonn_zbv_small": MessageDrivenV(cap=2, late=1),
}
SCHEDULES = STATIC | MESSAGE_DRIVEN
PLACED = {  # what eight layers suffice for, on four ranks
    name: schedule
    for name, schedule in SCHEDULES.items()
    if name != "one_f_one_b" and not name.endswith(("_3", "_small"))
}


@dataclass(frozen=True)
class Script:
    """Schedule that runs a fixed text per rank; `a|b` accepts either op, and `|` none.

    Attributes:
        orders: The text of each rank.
        promise: Its bound on activations.
    """

    orders: Mapping[int, str] | Sequence[str]
    promise: int = 9
    chunks: int = 1
    fold: bool = False
    split: bool = False

    def program(self, place: Place, interval: FlushInterval) -> Program:
        for text in self.orders[place.rank].split():
            yield tuple(Op.parse(part) for part in text.split("|") if part)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return self.promise


def flush(microbatches: int) -> FlushInterval:
    """A flush of microbatches 0, 1, ... with one update at the end."""
    return FlushInterval(0, microbatches, None, 0)


def serves(schedule: Schedule, ranks: int, microbatches: int) -> bool:
    """Whether a schedule accepts this number of microbatches: DualPipeV needs two per rank."""
    return not isinstance(schedule, DualPipeV) or microbatches >= 2 * ranks


def follow(program: Program, order: Sequence[Op]) -> None:
    """Run the program with these ops; it ends with the last."""
    accepted = next(program)
    for op in order[:-1]:
        assert op in accepted
        accepted = program.send(op)
    assert order[-1] in accepted
    with pytest.raises(StopIteration):
        program.send(order[-1])
