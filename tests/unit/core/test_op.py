"""Ops, places, flush intervals and grids: names, neighbours, groups of updates, and one rank for each place.

Indices never restart, so an off-by-one in the groups of an interval would put a gradient into the wrong update,
silently. Two ranks that disagree about who stands where exchange the wrong tensors and may still converge.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import SENDS_GRADIENT, FlushInterval, Kind, Op, feeds, message_of, needs
from tests.support.refusals import refused

sizes = st.integers(1, 5)
grids = st.builds(Grid, data=sizes, inter=sizes, tensor=st.integers(1, 3))


@given(st.builds(Op, st.integers(0, 4000), st.sampled_from(Kind), st.integers(0, 10**9)))
def test_an_op_reads_what_it_prints(op: Op) -> None:
    assert Op.parse(str(op)) == op


def test_an_op_prints_stage_kind_and_index() -> None:
    assert str(Op(2, Kind.FORWARD, 7)) == "2F7"
    assert Op.parse("12B345") == Op(12, Kind.BACKWARD, 345)
    for text in ("", "F7", "2F", "2X7", "2FB7", "2f7", " 2F7", "2F7 ", "-1F7", "2F-7", "2F7.0"):
        with refused(InvalidRequest, legal="'2F7'"):
            Op.parse(text)


@given(st.integers(1, 8), st.data())
def test_needs_and_feeds_are_inverse(stages: int, data: st.DataObject) -> None:
    op = Op(data.draw(st.integers(0, stages - 1)), data.draw(st.sampled_from(Kind)), data.draw(st.integers(0, 99)))
    need, fed = needs(op, stages), feeds(op, stages)
    if need is not None:
        assert 0 <= need.stage < stages
        assert feeds(need, stages) == message_of(op)
    if fed is not None:
        assert 0 <= fed.stage < stages
        assert needs(fed, stages) == message_of(op)
    if op.kind not in (Kind.UPDATE, Kind.WEIGHT):
        # only at the two ends of a pipeline does an op receive or send no message
        ends = (stages - 1, 0) if op.kind in SENDS_GRADIENT else (0, stages - 1)
        assert (need is None, fed is None) == (op.stage == ends[0], op.stage == ends[1])


def test_groups_of_updates_by_hand() -> None:
    """A flush is one group. Eight microbatches from 10, three to an update: 10-12, 13-15 and the short 16-17."""
    for interval, end, per_update, groups in (
        (FlushInterval(first=8, microbatches=5, update_interval=None, update=3), 13, 5, {3: 5}),
        (FlushInterval(first=10, microbatches=8, update_interval=3, update=4), 18, 3, {4: 3, 5: 3, 6: 2}),
        (FlushInterval(first=0, microbatches=2, update_interval=5, update=1), 2, 5, {1: 2}),
    ):
        indices = range(interval.first, end)
        assert (interval.end, interval.microbatches_per_update, interval.updates) == (end, per_update, len(groups))
        updates = [update for update, size in groups.items() for _ in range(size)]
        assert [interval.update_of(index) for index in indices] == updates
        assert [interval.group_size(index) for index in indices] == [groups[update] for update in updates]
        last = [place == size - 1 for size in groups.values() for place in range(size)]
        assert [interval.completes_update(index) for index in indices] == last


def test_ranks_of_small_grids() -> None:
    """AxoNN Figure 2 as rows: a replica's pipeline is consecutive ranks, and tensor ranks are fastest."""
    grid = Grid(data=2, inter=3)
    assert [grid.position(rank) for rank in range(6)] == [(data, inter, 0) for data in range(2) for inter in range(3)]
    assert (grid.data_parallel_group(4), str(grid)) == ((1, 4), "3x2")
    grid = Grid(data=2, inter=2, tensor=2)
    assert (grid.size, str(Grid(data=6, inter=2, tensor=3))) == (8, "2x6x3")
    assert [grid.position(rank).inter for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert grid.rank(data=1, inter=0, tensor=1) == 5
    assert grid.pipeline(5) == grid.pipeline(7) == (5, 7)
    assert grid.data_parallel_group(5) == (1, 5)


@given(grids)
def test_ranks_and_places_are_a_bijection(grid: Grid) -> None:
    seen = set()
    for rank in range(grid.size):
        data, inter, tensor = grid.position(rank)
        assert grid.rank(data=data, inter=inter, tensor=tensor) == rank
        seen.add((data, inter, tensor))
        pipeline, column = grid.pipeline(rank), grid.data_parallel_group(rank)
        assert [grid.position(each) for each in pipeline] == [(data, each, tensor) for each in range(grid.inter)]
        assert [grid.position(each) for each in column] == [(each, inter, tensor) for each in range(grid.data)]
    assert len(seen) == grid.size == grid.data * grid.inter * grid.tensor
