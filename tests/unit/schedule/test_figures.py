"""Text drawings of schedules, and the papers' figures, stored as text files.

Illegal schedules are explained by the grid alone, so a cell out of line would accuse the wrong op. The papers print the
pictures without numbers, so each drawing's missing choices are said here. A forward pass is one unit and a backward
pass two (AxoNN Figure 1 and SAMO Figure 3 say so; PipeOptim Figure 1 prints no ratio).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from baselines.gpipe import GPipe
from suite.core.op import FlushInterval, Op
from suite.core.protocols import Schedule
from suite.schedule import MessageDriven
from suite.schedule.check import check
from suite.schedule.draw import Slot, chart, grid
from tests.support.schedules import flush

GOLDEN = Path(__file__).parent / "golden"
FIGURES: dict[str, tuple[Schedule, int, FlushInterval]] = {
    # the caption does not print the number of microbatches: we draw 8
    "axonn_figure_1": (MessageDriven(), 4, flush(8)),
    "samo_figure_3": (MessageDriven(), 3, flush(5)),
    "pipeoptim_figure_1b": (GPipe(), 4, flush(4)),
    # one microbatch per mini-batch; two mini-batches after another
    "pipeoptim_figure_1c": (GPipe(), 4, FlushInterval(0, 2, 1, 0)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figure(name: str) -> None:
    drawn = check(*FIGURES[name])
    assert chart(drawn.slots, drawn.stages) + "\n" == (GOLDEN / f"{name}.txt").read_text()
    assert {path.stem for path in GOLDEN.iterdir()} == set(FIGURES)
    if name == "samo_figure_3":
        # 'On each GPU, the pipeline bubble time accounts for 6 units': two forward and two backward passes
        assert ([drawn.idle(stage) for stage in range(3)], drawn.makespan) == ([6.0] * 3, 5 * 3 + 6)


def slots(text: str) -> list[Slot]:
    """Slots of `OP START-END` texts."""
    parsed = [(part.split("@")[0], *map(float, part.split("@")[1].split("-"))) for part in text.split()]
    return [Slot(Op.parse(op), start, end) for op, start, end in parsed]


@pytest.mark.parametrize(
    ("text", "stages", "options", "rows"),
    [
        (
            *("0F0@0-1 1F0@1-2 1B0@2-4 0B0@4-6", 2, {}),
            ["stage 0 | F0 .  .  .  B0 ==", "stage 1 | .  F0 B0 == .  ."],
        ),
        ("0F0@0-1 0F1@1-2", 1, {"mark": Op.parse("0F1")}, ["stage 0 | F0   [F1]"]),
        # two digits widen every column
        ("0F9@0-1 0F10@1-2 0B9@2-4 1F9@1-2", 2, {}, ["stage 0 | F9  F10 B9  ===", "stage 1 | .   F9  .   ."]),
        # ops of zero duration have no cell
        ("0F0@0-0.25 0B0@0.25-0.75 0U0@0.75-0.75", 1, {"tick": 0.25}, ["stage 0 | F0 B0 =="]),
        ("", 2, {}, ["stage 0 |", "stage 1 |"]),
    ],
)
def test_rows_are_stages_and_columns_are_ticks(
    text: str, stages: int, options: dict[str, object], rows: list[str]
) -> None:
    assert grid(slots(text), stages, **options).splitlines() == rows  # type: ignore[arg-type]


def test_chart_adds_makespan_and_idle_time() -> None:
    assert chart(slots("0F0@0-1 1F0@1-2.5"), 2).splitlines()[-1] == "makespan 2.5, idle per stage 1.5, 1"
