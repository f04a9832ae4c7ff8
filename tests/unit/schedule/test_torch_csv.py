"""Schedule files of torch: reading, writing, and the faults that a file may have."""

from __future__ import annotations

import pytest

from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Schedule
from suite.schedule.check import check
from suite.schedule.controllable_memory import ControllableMemory
from suite.schedule.dual_pipe_v import DualPipeV
from suite.schedule.staircase import Staircase
from suite.schedule.torch_csv import ListedSchedule, read, write
from suite.schedule.zbv import ZBV
from tests.support.refusals import refused

SCHEDULES = [Staircase(), Staircase(2), Staircase(2, split=True), ZBV(), DualPipeV(), ControllableMemory("half")]


def flush(microbatches: int) -> FlushInterval:
    return FlushInterval(0, microbatches, None, 0)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_file_keeps_order_and_placement(schedule: Schedule) -> None:
    timeline = check(schedule, 3, flush(7))
    orders = [timeline.order(rank) for rank in range(3)]
    listed = read(write(orders))
    again = check(listed, 3, flush(7))
    assert [again.order(rank) for rank in range(3)] == orders
    assert listed.homes == tuple(timeline.places[0].rank_of(stage) for stage in range(timeline.stages))


def test_messages_and_sharding_are_derived_not_read() -> None:
    text = "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD\n"
    assert [[str(op) for op in order] for order in read(text).orders] == [["0F0", "0B0"], ["1F0", "1B0"]]


def test_overlapped_pair_is_two_ops() -> None:
    assert read('"0F0","(0F1;0B0)OVERLAP_F_B",0B1\n').orders == (
        (Op(0, Kind.FORWARD, 0), Op(0, Kind.FORWARD, 1), Op(0, Kind.BACKWARD, 0), Op(0, Kind.BACKWARD, 1)),
    )


def test_any_placement_is_legal() -> None:
    listed = read("1F0,2F0,2B0,1B0\n0F0,0B0\n")
    assert listed.homes == (1, 0, 0)
    timeline = check(listed, 2, flush(1))
    assert [str(op) for op in timeline.order(0)] == ["1F0", "2F0", "2B0", "1B0", "1U0"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("0F0,0B0\n0F1\n", "a stage is on one rank"),
        ("0F0,2F0,2B0,0B0\n", "without a gap"),
        ("0F0,0B0\n\n", "one row per rank"),
        ("0F0x,0B0\n", "stage, one of F I B W"),
        ("0G0\n", "stage, one of F I B W"),
    ],
)
def test_malformed_files_are_refused(text: str, fault: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(text)
    assert fault in str(caught.value.rule)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("0F0,0B0,0F1\n1F0,1B0,1F1,1B1\n", "0U0 comes before the backward of microbatch 1"),
        ("0F0,0F0,0B0\n1F0,1B0\n", "0F0 runs twice"),
        ("0B0,0F0\n1F0,1B0\n", "deadlock"),
    ],
)
def test_illegal_files_are_named(text: str, fault: str) -> None:
    listed = read(text)
    with pytest.raises(IllegalSchedule, match=fault):
        check(listed, 2, flush(listed.microbatches))


def test_other_numbers_of_ranks_or_microbatches_are_refused() -> None:
    listed: ListedSchedule = read("0F0,0B0\n1F0,1B0\n")
    with refused(InvalidRequest, rule="the number of microbatches in the file"):
        check(listed, 2, flush(2))
    with refused(InvalidRequest, "grid.inter", "3"):
        check(listed, 3, flush(1))
