"""Schedules against the papers' figures, stored as text files.

The papers print the pictures without numbers, so each drawing's missing choices are said here. A forward pass is one
unit and a backward pass two (AxoNN Figure 1 and SAMO Figure 3 say so; PipeOptim Figure 1 prints no ratio).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from baselines.gpipe import GPipe
from suite.core.op import FlushInterval
from suite.core.protocols import Schedule
from suite.schedule import MessageDriven
from suite.schedule.check import Timeline, check
from suite.schedule.draw import chart

GOLDEN = Path(__file__).parent / "golden"

FIGURES: dict[str, tuple[Schedule, int, FlushInterval]] = {
    # the caption does not print the number of microbatches: we draw 8
    "axonn_figure_1": (MessageDriven(), 4, FlushInterval(0, 8, None, 0)),
    "samo_figure_3": (MessageDriven(), 3, FlushInterval(0, 5, None, 0)),
    "pipeoptim_figure_1b": (GPipe(), 4, FlushInterval(0, 4, None, 0)),
    # one microbatch per mini-batch; two mini-batches after another
    "pipeoptim_figure_1c": (GPipe(), 4, FlushInterval(0, 2, 1, 0)),
}


def timeline(name: str) -> Timeline:
    schedule, stages, interval = FIGURES[name]
    return check(schedule, stages, interval)


@pytest.mark.parametrize("name", FIGURES)
def test_figure(name: str) -> None:
    drawn = timeline(name)
    assert chart(drawn.slots, drawn.stages) + "\n" == (GOLDEN / f"{name}.txt").read_text()


def test_every_golden_file_is_a_figure() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(FIGURES)


def test_samo_figure_3_has_six_idle_units_on_each_gpu() -> None:
    """'On each GPU, the pipeline bubble time accounts for 6 units': two forward and two backward passes."""
    drawn = timeline("samo_figure_3")
    assert [drawn.idle(stage) for stage in range(3)] == [6.0, 6.0, 6.0]
    assert drawn.makespan == 5 * 3 + 6
