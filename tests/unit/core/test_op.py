"""Ops, places and flush intervals: names, neighbours, groups of updates.

Indices never restart, so an off-by-one in a work's groups would put a gradient into the wrong update, silently.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.core.errors import InvalidRequest
from suite.core.op import SENDS_GRADIENT, FlushInterval, Kind, Op, Place, feeds, message_of, needs
from tests.support.refusals import refused

ops = st.builds(Op, st.integers(0, 4000), st.sampled_from(Kind), st.integers(0, 10**9))


@given(ops)
def test_an_op_reads_what_it_prints(op: Op) -> None:
    assert Op.parse(str(op)) == op


def test_an_op_prints_stage_kind_and_index() -> None:
    assert str(Op(2, Kind.FORWARD, 7)) == "2F7"
    assert Op.parse("12B345") == Op(12, Kind.BACKWARD, 345)


@pytest.mark.parametrize("text", ["", "F7", "2F", "2X7", "2FB7", "2f7", " 2F7", "2F7 ", "-1F7", "2F-7", "2F7.0"])
def test_other_text_is_refused_with_a_legal_op(text: str) -> None:
    with refused(InvalidRequest, legal="'2F7'"):
        Op.parse(text)


def test_neighbours_in_a_pipeline_of_three() -> None:
    read = Op.parse
    assert [needs(read(t), 3) for t in ("0F5", "1F5", "2F5")] == [None, read("0F5"), read("1F5")]
    assert [needs(read(t), 3) for t in ("0B5", "1B5", "2B5")] == [read("1B5"), read("2B5"), None]
    assert [needs(read(t), 3) for t in ("0I5", "1I5", "2I5")] == [read("1B5"), read("2B5"), None]
    assert [needs(read(t), 3) for t in ("0W5", "1W5", "2W5")] == [None, None, None]
    assert [needs(read(t), 3) for t in ("0E5", "1E5", "2E5")] == [None, read("0E5"), read("1E5")]
    assert [needs(read(t), 3) for t in ("0U5", "1U5", "2U5")] == [None, None, None]


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


def test_place_knows_its_ends() -> None:
    assert [(Place(s, 3).first, Place(s, 3).last) for s in range(3)] == [(True, False), (False, False), (False, True)]
    assert (Place(0, 1).first, Place(0, 1).last) == (True, True)


def test_a_flush_is_one_group() -> None:
    interval = FlushInterval(first=8, microbatches=5, update_interval=None, update=3)
    assert (interval.end, interval.microbatches_per_update, interval.updates) == (13, 5, 1)
    assert [interval.update_of(i) for i in range(8, 13)] == [3] * 5
    assert [interval.group_size(i) for i in range(8, 13)] == [5] * 5
    assert [interval.completes_update(i) for i in range(8, 13)] == [False, False, False, False, True]


def test_a_short_last_group_updates_too() -> None:
    """Eight microbatches from number 10, three to an update: groups 10-12, 13-15 and the short 16-17."""
    interval = FlushInterval(first=10, microbatches=8, update_interval=3, update=4)
    indices = range(10, 18)
    assert (interval.end, interval.microbatches_per_update, interval.updates) == (18, 3, 3)
    assert [interval.update_of(i) for i in indices] == [4, 4, 4, 5, 5, 5, 6, 6]
    assert [interval.group_size(i) for i in indices] == [3, 3, 3, 3, 3, 3, 2, 2]
    assert [interval.completes_update(i) for i in indices] == [False, False, True, False, False, True, False, True]


@given(st.integers(0, 50), st.integers(1, 40), st.none() | st.integers(1, 50), st.integers(0, 9))
def test_groups_partition_the_work(first: int, microbatches: int, every: int | None, update: int) -> None:
    interval = FlushInterval(first, microbatches, every, update)
    groups: dict[int, list[int]] = {}
    for index in range(interval.first, interval.end):
        groups.setdefault(interval.update_of(index), []).append(index)
    assert sorted(groups) == list(range(update, update + interval.updates))
    for members in groups.values():
        assert {interval.group_size(index) for index in members} == {len(members)}
        assert [index for index in members if interval.completes_update(index)] == members[-1:]


@pytest.mark.parametrize(
    ("microbatches", "every", "expected"),
    [
        (0, None, ("microbatches", 0)),
        (-1, 2, ("microbatches", -1)),
        (4, 0, ("update_interval", 0)),
        (4, -3, ("update_interval", -3)),
    ],
)
def test_work_refuses_with_a_legal_value(microbatches: int, every: int | None, expected: tuple[str, int]) -> None:
    with refused(InvalidRequest, *expected, legal="1"):
        FlushInterval(0, microbatches, every, 0)
