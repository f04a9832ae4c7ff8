"""Laws of schedule files: each broken one is named with its row, column and action. Every form is read."""

from __future__ import annotations

import pytest

from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.core.op import FlushInterval
from suite.core.protocols import Schedule
from suite.schedule import ZBV, ControllableMemory, DualPipeV, LoopedBFS, MessageDrivenV, Staircase
from suite.schedule.check import check
from suite.schedule.csv_laws import check_schedule_file, waits
from suite.schedule.torch_csv import FORMATS, parse, read, write
from tests.support.refusals import refused

SCHEDULES: list[Schedule] = [
    *(Staircase(), Staircase(lead=2, split=True), Staircase(3), Staircase(2, split=True), LoopedBFS(2)),
    *(ZBV(), ControllableMemory("half"), DualPipeV(), MessageDrivenV()),
]
PAIR = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"
TWO = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
V = "0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0RECV_B0,0B0\n1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,1B0,1SEND_B0\n"


def fault_of(text: str) -> str:
    with pytest.raises(IllegalSchedule) as caught:
        check_schedule_file(parse(text, "a.csv"), "a.csv")
    return str(caught.value).partition("\n")[0]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("form", FORMATS)
def test_written_file_is_legal_at_any_wait(schedule: Schedule, form: str) -> None:
    for ranks, microbatches in ((1, 2), (2, 4), (3, 7), (4, 9)):
        timeline = check(schedule, ranks, FlushInterval(0, microbatches, None, 0))
        orders = [timeline.order(rank) for rank in range(ranks)]
        file = parse(write(orders, form))
        again = check_schedule_file(file)
        assert [again.order(rank) for rank in range(ranks)] == orders
        assert not waits(file, receives=True)
        assert not waits(file, receives=True, sends=True)
        assert file.form == form


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("0F0,0B0,0F0\n1F0,1B0\n", "a.csv, row 1 (rank 0), column 3: 0F0 runs twice, first in column 1"),
        ("0F0,,0B0,0W0\n1F0,1B0\n", "column 4: 0W0 follows 0B0 (column 3), and a microbatch has one backward pass"),
        ("0F0\n1F0,1B0\n", "row 1 (rank 0): 0B0 or 0I0 is missing; it has 0F0 (column 1)"),
        ("0F0,0I0\n1F0,1B0\n", "row 1 (rank 0): 0W0 is missing; it has 0F0 (column 1) and 0I0 (column 2)"),
        ("0F0,0W0\n1F0,1B0\n", "row 1 (rank 0): 0I0 is missing"),
        (
            "0F0,0F1,0B0,0B1\n1F0,1B0\n",
            "row 2 (rank 1): 1F1 is missing; the file has microbatch 1 (0F1, row 1 (rank 0)",
        ),
        ("0F0,0B0\n1B0,1F0\n", "row 2 (rank 1), column 1: 1B0 comes before its forward"),
        ("0F0,0W0,0I0\n1F0,1B0\n", "row 1 (rank 0), column 2: 0W0 comes before its input gradient"),
        (
            "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n",
            "a.csv: deadlock: 0B0 (row 1 (rank 0), column 2) waits for 1B0; 1F1 (row 2 (rank 1), column 2) waits for ",
        ),
        ("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n", "deadlock: 0B0 (row 1 (rank 0), column 2) waits for 1B0"),
    ],
)
def test_broken_order_is_named_with_its_cell(text: str, fault: str) -> None:
    assert fault in fault_of(text)


@pytest.mark.parametrize(
    ("base", "old", "new", "fault"),
    [
        (PAIR, "0SEND_F0,", "", "row 2 (rank 1), column 1: 1RECV_F0 has no partner: 0SEND_F0 is missing in row 1"),
        (PAIR, "1SEND_B0", "", "row 1 (rank 0), column 3: 0RECV_B0 has no partner: 1SEND_B0 is missing in row 2"),
        (PAIR, "1RECV_F0,", "", "row 2 (rank 1), column 1: 1F0 comes before its receive 1RECV_F0"),
        (PAIR, "0RECV_B0,0B0", "0B0,0RECV_B0", "row 1 (rank 0), column 3: 0B0 comes before its receive 0RECV_B0"),
        (PAIR, "0F0,0SEND_F0", "0SEND_F0,0F0", "column 1: 0SEND_F0 comes before 0F0, which it sends"),
        (PAIR, "0SEND_F0", "0SEND_F0,0SEND_F0", "column 3: 0SEND_F0 runs twice, first in column 2"),
        (PAIR, "0SEND_F0", "0SEND_F0,0SEND_B0", "0SEND_B0: stage 0 is the first one, with no peer"),
        (PAIR, "1F0", "1F0,1SEND_F0", "1SEND_F0: stage 1 is the last one, with no peer"),
        (PAIR, "0F0,", "0RECV_F0,0F0,", "0RECV_F0: stage 0 is the first one, with no peer"),
        (V, "1F0,", "1F0,1SEND_F0,", "1SEND_F0: stage 2 is on the same rank, which hands the value over"),
        (
            *(TWO, "0SEND_F0,0F1,0SEND_F1", "0F1,0SEND_F1,0SEND_F0"),
            "row 2 (rank 1), column 1: 1RECV_F0 would receive the value of 0SEND_F1 (row 1 (rank 0), column 3)",
        ),
        (
            *(PAIR, "0SEND_F0,0RECV_B0,0B0", "0RECV_B0,0B0,0SEND_F0"),
            "deadlock: 0B0 (row 1 (rank 0), column 3) waits for 1B0; 1F0 (row 2 (rank 1), column 2) waits for 0F0",
        ),
    ],
)
def test_broken_message_is_named_with_its_cell(base: str, old: str, new: str, fault: str) -> None:
    assert check_schedule_file(parse(base)).makespan > 0
    assert old in base
    assert fault in fault_of(base.replace(old, new))


def test_early_receive_runs_in_torch_and_deadlocks_where_receives_wait() -> None:
    file = parse("0RECV_B0,0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")
    assert check_schedule_file(file).makespan == 6
    assert waits(file) == ""
    stuck = (
        "0RECV_B0 (row 1 (rank 0), column 1) waits for 1SEND_B0; 1RECV_F0 (row 2 (rank 1), column 1) waits for 0SEND_F0"
    )
    assert waits(file, receives=True) == stuck


def test_late_receives_deadlock_where_sends_wait_too() -> None:
    """Both ranks send before they receive, as in pytorch issue 172668."""
    first = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1"
    file = parse(f"{first}\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n")
    assert check_schedule_file(file)
    assert not waits(file, receives=True)
    assert "0SEND_F1 (row 1 (rank 0), column 4) waits for 1RECV_F1" in waits(file, receives=True, sends=True)


@pytest.mark.parametrize(
    ("text", "fault", "legal"),
    [
        ("", "a.csv has no op of stage 0, and it is empty", "0F0"),
        ("\n\n", "a.csv, row 1 has no op", "0F0,0B0"),
        (",,\n", "a.csv, row 1 has no op", "0F0,0B0"),
        ("0F0,0B0\n1UNSHARD\n", "a.csv, row 2 has no op", "0F0,0B0"),
        ("0F0,2F0x\n", "a.csv, row 1 (rank 0), column 2 is '2F0x'", "2F0"),
        ("0F0,0X0\n", "column 2 is '0X0'", "0F0"),
        ("0F0,F0\n", "column 2 is 'F0'", "0F0"),
        ("0F0,0F\n", "column 2 is '0F'", "0F0"),
        ("0F0,0U0\n", "column 2 is '0U0'", "0F0"),
        ("0F0,-1B0\n", "column 2 is '-1B0'", "0F0"),
        ("0F0,0UNSHARD0\n", "column 2 is '0UNSHARD0'", "0UNSHARD"),
        ("0F0,0F\u0663\n", "column 2 is '0F\u0663'", "0F0"),
        ("0F0,0F99999999999\n", "column 2 is '0F99999999999'", "0F999999999"),
        ("0F0,0B0\n1F0,1B0,0F1\n", "row 2 (rank 1), column 3 has 0F1", "0F1 in row 1"),
        ("0F0,2F0,2B0,0B0\n", "a.csv has no op of stage 1, and its 2 stages end with 2", "1F0"),
        ("0F0,(0F1;0F2)OVERLAP_F_B\n", "column 2 is '(0F1;0F2)OVERLAP_F_B'", "(0F1;0B0)"),
        ("0F0,(0F1)OVERLAP_F_B\n", "column 2 is '(0F1)OVERLAP_F_B'", "(0F1;0B0)"),
        ("0F0,()OVERLAP_F_B\n", "column 2 is '()OVERLAP_F_B'", "0F0"),
        ("0F0,(0F1;0B0)OVERLAP\n", "column 2 is '(0F1;0B0)OVERLAP'", "0F0"),
        ("0F0,(0F1;0SEND_F0)OVERLAP_F_B\n", "'(0F1;0SEND_F0)OVERLAP_F_B'", "(0F1;0B0)"),
        ('0F0,"0B0\n', "a.csv is not a CSV file", "0F0,0B0"),
    ],
)
def test_malformed_file_is_refused_with_its_cell(text: str, fault: str, legal: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(text, "a.csv")
    assert fault in str(caught.value)
    assert legal in caught.value.legal
    assert caught.value.rule


def test_byte_order_mark_windows_lines_quotes_and_spaces_are_read() -> None:
    assert [len(row) for row in parse('\ufeff"0F0", 0B0 ,\r\n1F0,,1B0\r\n').rows] == [2, 2]


def test_a_file_too_large_to_check_is_refused() -> None:
    with refused(
        InvalidRequest,
        subject="microbatches on 1 stages",
        rule="2 * microbatches * stages^2 is 200000000, at most 100000000",
    ):
        check_schedule_file(parse("0F99999999,0B99999999\n"))


def test_messages_of_a_deadlock_cannot_be_written() -> None:
    orders = parse("0B0,0F0\n1F0,1B0\n").schedule.orders
    with pytest.raises(IllegalSchedule, match="deadlock"):
        write(orders, "compute_comms")


def test_messages_and_sharding_are_derived_not_read() -> None:
    text = "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD\n"
    assert [[str(op) for op in order] for order in read(text).orders] == [["0F0", "0B0"], ["1F0", "1B0"]]


def test_any_placement_is_legal() -> None:
    listed = read("1F0,2F0,2B0,1B0\n0F0,0B0\n")
    assert listed.homes == (1, 0, 0)
    timeline = check(listed, 2, FlushInterval(0, 1, None, 0))
    assert [str(op) for op in timeline.order(0)] == ["1F0", "2F0", "2B0", "1B0", "1U0"]


def test_other_numbers_of_ranks_or_microbatches_are_refused() -> None:
    listed = read("0F0,0B0\n1F0,1B0\n")
    with refused(InvalidRequest, rule="the number of microbatches in the file"):
        check(listed, 2, FlushInterval(0, 2, None, 0))
    with refused(InvalidRequest, "grid.inter", "3"):
        check(listed, 3, FlushInterval(0, 1, None, 0))
