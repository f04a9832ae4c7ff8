"""Text drawings: marks, column widths, units of time, ops of zero duration.

Illegal schedules are explained by this grid alone, so a cell out of line would accuse the wrong op.
"""

from __future__ import annotations

from suite.core.op import Op
from suite.schedule.draw import Slot, chart, grid


def slot(text: str, start: float, end: float) -> Slot:
    return Slot(Op.parse(text), start, end)


def test_rows_are_stages_and_columns_are_ticks() -> None:
    slots = [slot("0F0", 0, 1), slot("1F0", 1, 2), slot("1B0", 2, 4), slot("0B0", 4, 6)]
    assert grid(slots, 2).splitlines() == [
        "stage 0 | F0 .  .  .  B0 ==",
        "stage 1 | .  F0 B0 == .  .",
    ]


def test_only_the_marked_op_stands_in_brackets() -> None:
    slots = [slot("0F0", 0, 1), slot("0F1", 1, 2)]
    assert grid(slots, 1, mark=Op.parse("0F1")) == "stage 0 | F0   [F1]"
    assert grid(slots, 1, mark=Op.parse("0F9")) == "stage 0 | F0 F1"


def test_two_digit_indices_widen_every_column() -> None:
    slots = [slot("0F9", 0, 1), slot("0F10", 1, 2), slot("0B9", 2, 4), slot("1F9", 1, 2)]
    assert grid(slots, 2).splitlines() == [
        "stage 0 | F9  F10 B9  ===",
        "stage 1 | .   F9  .   .",
    ]


def test_zero_cost_ops_have_no_cell() -> None:
    slots = [slot("0F0", 0, 1), slot("0B0", 1, 3), slot("0U0", 3, 3)]
    assert grid(slots, 1) == "stage 0 | F0 B0 =="


def test_a_tick_may_be_any_length() -> None:
    slots = [slot("0F0", 0.0, 0.25), slot("0B0", 0.25, 0.75)]
    assert grid(slots, 1, tick=0.25) == "stage 0 | F0 B0 =="


def test_an_empty_timeline_is_empty_rows() -> None:
    assert grid([], 2).splitlines() == ["stage 0 |", "stage 1 |"]


def test_chart_adds_makespan_and_idle_time() -> None:
    slots = [slot("0F0", 0, 1), slot("1F0", 1, 2.5)]
    assert chart(slots, 2).splitlines()[-1] == "makespan 2.5, idle per stage 1.5, 1"
