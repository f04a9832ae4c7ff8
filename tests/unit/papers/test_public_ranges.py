"""Ranges of answers on public cells over plausible values of unknown settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suite.papers.public.adapter import ToldSettings, plausible_setups, to_setup
from suite.papers.public.cells import load_cells
from suite.papers.public.ranges import AnswerRange, answer_range, answer_ranges, range_groups
from suite.papers.public.score import CellAnswer, answer

BY_ID = {cell.id: cell for cell in load_cells()}
PLAIN = BY_ID["megatron_a100_recompute.22b_full"]
UNKNOWN = replace(PLAIN, recompute=None, fused_norm=True, attention="fused_softmax", sequence_parallel=False)
SHARES = {("a100", "fused"): 0.6}


def test_range_holds_the_point_answer_and_every_changed_answer() -> None:
    point = answer(UNKNOWN, SHARES)
    found = answer_range(point, SHARES)
    assert found is not None
    assert found.setups == 2, "no and selective recomputation in place of full recomputation"
    others = [answer(replace(UNKNOWN, recompute=kind), SHARES).tokens_per_second for kind in ("none", "selective")]
    values = [point.tokens_per_second, *others]
    assert (found.low, found.high) == (min(values, key=lambda v: v or 0.0), max(values, key=lambda v: v or 0.0))
    assert found.low == point.tokens_per_second, "full recomputation is the slowest"
    assert found.low < found.high
    assert [found.holds(value) for value in (found.low, found.high)] == [True, True]
    assert [found.holds(value) for value in (0.999 * found.low, 1.001 * found.high)] == [False, False]


def test_setting_that_changes_no_setup_gives_no_range() -> None:
    alone = replace(UNKNOWN, recompute="full", sequence_parallel=None, tp=1, dp=8)
    assert to_setup(alone, ToldSettings(sequence_parallel=True)) == to_setup(alone)
    assert [name for name, _ in plausible_setups(alone)] == ["sequence_parallel=True"]
    assert answer_range(answer(alone, SHARES), SHARES) is None


def test_told_unmeasured_and_refused_cells_have_no_range() -> None:
    for changed in ({"recompute": "full"}, {"derived_tokens_per_second_per_gpu": None}, {"precision": "int3"}):
        answered = answer(replace(UNKNOWN, **changed), SHARES)  # type: ignore[arg-type]
        assert answer_range(answered, SHARES) is None, changed
        assert answer_ranges([answered], SHARES) == {}, changed


def test_groups_count_measurements_inside_and_their_distance() -> None:
    cells = [
        replace(PLAIN, id=f"a.{measured:g}", group="a", derived_tokens_per_second_per_gpu=measured)
        for measured in (100.0, 50.0, 200.0)
    ]
    given = [CellAnswer(cell, 100.0) for cell in cells]
    ranges = {cell.id: AnswerRange(80.0, 110.0, 2) for cell in cells}
    (group,) = range_groups(given, ranges)
    assert (group.group, group.cells, group.inside) == ("a", 3, 1)
    assert group.low == pytest.approx(80 / 100 - 1)
    assert group.high == pytest.approx(110 / 100 - 1)
    assert group.distance == pytest.approx((0.0 + (80 / 50 - 1) + (1 - 110 / 200)) / 3)
    (group,) = range_groups(given, ranges, frozenset(["a.100"]))
    assert (group.cells, group.inside) == (2, 0)
    low = [replace(one, cell=replace(one.cell, quality="low")) for one in given]
    assert range_groups(low, ranges) == ()
