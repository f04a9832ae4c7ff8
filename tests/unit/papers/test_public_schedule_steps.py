"""Steps of public cells from printed pass times, without the cost model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suite.papers.public.cells import load_cells
from suite.papers.public.schedule_steps import (
    PrintedTimes,
    printed_rows,
    printed_times,
    schedule_groups,
    scheduled_error,
    scheduled_step,
)
from suite.papers.public.score import CellAnswer

CELLS = load_cells()
PRINTED = [cell for cell in CELLS if printed_times(cell)]
FEW = next(cell for cell in PRINTED if cell.id == "zb_few_microbatches.1.5b_m2_1f1b")
EVEN = PrintedTimes("1.5b", 8, 24, 3, 1000.0, 1000.0, 1000.0, 0.0)


def test_every_cell_of_the_zero_bubble_paper_has_printed_times() -> None:
    assert {cell.group for cell in PRINTED} == {"zb_schedules", "zb_sync", "zb_few_microbatches"}
    assert [cell.id for cell in CELLS if cell.group.startswith("zb_") and cell not in PRINTED] == []
    for cell in PRINTED:
        times = printed_times(cell)
        assert times is not None
        assert times.stages == cell.pp
        assert cell.schedule != "interleaved_1f1b" or times.chunks == cell.vpp
    few, many = (next(c for c in PRINTED if c.id == name) for name in (FEW.id, "zb_schedules.1.5b_m64_zb_1p"))
    assert [row.microbatches for cell in (few, many) if (row := printed_times(cell))] == [24, 64]
    assert len(printed_rows()) == 12


def test_step_at_equal_times_follows_closed_forms() -> None:
    """1F1B idles for 3 (p - 1) passes and ZB-H1 for p - 1 of 3 m + 3 (p - 1) and 3 m + p - 1 (arXiv 2401.10241).

    ZB-2p has no bubble between overlapping steps, unless stages update together; chunks share the printed times.
    """

    def step(name: str, microbatches: int = 24, **changes: int) -> float:
        return scheduled_step(replace(FEW, schedule=name, global_batch=6 * microbatches, **changes), EVEN)

    for name, microbatches, seconds in (
        ("1f1b", 8, 45.0),
        ("1f1b", 24, 93.0),
        ("zb_1p", 24, 79.0),
        ("zb_2p", 24, 72.0),
    ):
        assert step(name, microbatches) == pytest.approx(seconds), name
    assert step("zb_2p_synchronised_step") > 72.0
    assert 72.0 < step("interleaved_1f1b", vpp=3) < step("1f1b", vpp=1)


def test_error_compares_throughput() -> None:
    times = printed_times(FEW)
    assert times is not None
    exact = (FEW.global_batch or 0) * FEW.seq / FEW.gpus / scheduled_step(FEW, times)
    cell = replace(FEW, derived_tokens_per_second_per_gpu=exact / 1.25)
    assert scheduled_error(cell) == pytest.approx(0.25)


def test_cells_without_printed_times_have_no_error() -> None:
    for changed in ({"source": "arXiv 2411.05288"}, {"pp": 4}, {"microbatch": None}, {"quality": "low"}):
        assert scheduled_error(replace(FEW, **changed)) is None  # type: ignore[arg-type]


def test_groups_hold_errors_of_both_models() -> None:
    measured = FEW.tokens_per_second or 1.0
    (group,) = schedule_groups([CellAnswer(FEW, 1.5 * measured), CellAnswer(replace(FEW, source="x"), measured)])
    assert (group.group, group.schedule, group.cells) == ("zb_few_microbatches", "one_f_one_b", 1)
    assert group.modelled == pytest.approx(0.5)
    assert group.mean == group.largest == abs(group.bias) == abs(scheduled_error(FEW) or 0.0)
