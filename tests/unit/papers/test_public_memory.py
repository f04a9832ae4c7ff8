"""Errors of predicted memory on public cells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suite.core.errors import UnknownName
from suite.papers.public.cells import Measurement, PublicCell, load_cells
from suite.papers.public.memory_errors import memory_error, memory_groups
from suite.papers.public.score import CellAnswer
from tests.support.refusals import refused

PLAIN = next(cell for cell in load_cells() if cell.id == "megatron_a100_recompute.22b_full")


def printed(size: float | None, unit: str | None = "GB", status: str = "ok") -> PublicCell:
    return replace(PLAIN, group="a", status=status, measured=Measurement(1.0, size, unit))


def test_units_of_printed_memory() -> None:
    for unit, size in (("GB", 1e9), ("GiB", 2.0**30), ("MB", 1e6), ("MiB", 2.0**20)):
        assert printed(40.0, unit).measured.peak_bytes == 40.0 * size
        assert printed(None, unit).measured.peak_bytes is None
    with refused(UnknownName, "memory_unit", "gb", legal="GB"):
        memory_groups([CellAnswer(printed(40.0, "gb"), 1.0, 40e9, True)])


def test_error_is_simulated_over_measured_bytes() -> None:
    assert memory_error(CellAnswer(printed(40.0), 1.0, 44e9, True)) == pytest.approx(0.1)
    assert memory_error(CellAnswer(printed(None), 1.0, 44e9, True)) is None
    assert memory_error(CellAnswer(printed(40.0), refusal="no")) is None
    assert memory_error(CellAnswer(printed(40.0, status="oom"), 1.0, 44e9, True)) is None


def test_groups_hold_errors_and_both_confusions() -> None:
    given = [
        CellAnswer(printed(40.0), 1.0, 44e9, True),
        CellAnswer(printed(40.0), 1.0, 32e9, False),
        CellAnswer(printed(40.0), 1.0, 40e9, True),
        CellAnswer(printed(None, status="oom"), 1.0, 90e9, False),
        CellAnswer(printed(None, status="oom"), 1.0, 40e9, True),
    ]
    (group,) = memory_groups(given)
    assert (group.cells, group.oom, group.fit) == (3, (1, 2), (2, 3))
    assert (group.mean, group.largest, group.bias) == pytest.approx((0.1, 0.2, 0.0))
    (group,) = memory_groups([CellAnswer(printed(None, status="oom"), 1.0, 90e9, False)])
    assert (group.cells, group.oom, group.mean, group.largest, group.bias) == (0, (1, 1), None, None, None)
    assert memory_groups([CellAnswer(printed(None), 1.0, 90e9, False)]) == ()
