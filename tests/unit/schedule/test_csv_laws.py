"""Laws of schedule files: each broken one is named with its row, column and action. Every form is read."""

from __future__ import annotations

import re

import pytest

from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.schedule.check import check
from suite.schedule.csv_laws import check_schedule_file, waits
from suite.schedule.torch_csv import FORMATS, parse, read, write
from tests.support.drawn import cells
from tests.support.refusals import refused
from tests.support.schedules import SCHEDULES, flush, serves

PAIR = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"
TWO = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
V = "0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0RECV_B0,0B0\n1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,1B0,1SEND_B0\n"


@pytest.mark.parametrize(("name", "form"), cells(SCHEDULES, FORMATS, n=8))
def test_written_file_is_legal_at_any_wait(name: str, form: str) -> None:
    for ranks, microbatches in ((1, 2), (2, 4), (3, 7), (4, 9)):
        if serves(SCHEDULES[name], ranks, microbatches):
            timeline = check(SCHEDULES[name], ranks, flush(microbatches))
            orders = [timeline.order(rank) for rank in range(ranks)]
            file = parse(write(orders, form))
            again = check_schedule_file(file)
            assert [again.order(rank) for rank in range(ranks)] == orders
            assert not waits(file, receives=True)
            assert not waits(file, receives=True, sends=True)
            assert file.form == form


def assert_refused(text: str, fault: str) -> None:
    with pytest.raises(IllegalSchedule, match=re.escape(fault)) as caught:
        check_schedule_file(parse(text, "a.csv"), "a.csv")
    assert str(caught.value).startswith("a.csv")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("0F0,0B0,0F0\n1F0,1B0\n", ", row 1 (rank 0), column 3: 0F0 runs twice, first in column 1"),
        ("0F0,,0B0,0W0\n1F0,1B0\n", "column 4: 0W0 follows 0B0 (column 3)"),
        ("0F0\n1F0,1B0\n", "row 1 (rank 0): 0B0 or 0I0 is missing; it has 0F0 (column 1)"),
        ("0F0,0I0\n1F0,1B0\n", "row 1 (rank 0): 0W0 is missing; it has 0F0 (column 1) and 0I0 (column 2)"),
        ("0F0,0W0\n1F0,1B0\n", "row 1 (rank 0): 0I0 is missing"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0\n", "row 2 (rank 1): 1F1 is missing; the file has microbatch 1 (0F1, row 1"),
        ("0F0,0B0\n1B0,1F0\n", "row 2 (rank 1), column 1: 1B0 comes before its forward"),
        ("0F0,0W0,0I0\n1F0,1B0\n", "row 1 (rank 0), column 2: 0W0 comes before its input gradient"),
        # the other rank has ended
        ("0F0,0F1,0I0,0W0,0W1,0I1\n1F0,1B0,1F1,1B1\n", "row 1 (rank 0), column 5: 0W1 comes before its input"),
        (
            "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n",
            ": deadlock: 0B0 (row 1 (rank 0), column 2) waits for 1B0; 1F1 (row 2 (rank 1), column 2) waits for ",
        ),
        ("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n", "deadlock: 0B0 (row 1 (rank 0), column 2) waits for 1B0"),
    ],
)
def test_broken_order_is_named_with_its_cell(text: str, fault: str) -> None:
    assert_refused(text, fault)


@pytest.mark.parametrize(
    ("base", "old", "new", "fault"),
    [
        (PAIR, "0SEND_F0,", "", "row 2 (rank 1), column 1: 1RECV_F0 has no partner: 0SEND_F0 is missing in row 1"),
        (PAIR, "1SEND_B0", "", "row 1 (rank 0), column 3: 0RECV_B0 has no partner: 1SEND_B0 is missing in row 2"),
        (PAIR, "1RECV_F0,", "", "row 2 (rank 1), column 1: 1F0 comes before its receive 1RECV_F0"),
        (PAIR, "0RECV_B0,0B0", "0B0,0RECV_B0", "row 1 (rank 0), column 3: 0B0 comes before its receive 0RECV_B0"),
        (PAIR, "0F0,0SEND_F0", "0SEND_F0,0F0", "column 1: 0SEND_F0 comes before 0F0"),
        (PAIR, "0SEND_F0", "0SEND_F0,0SEND_F0", "column 3: 0SEND_F0 runs twice, first in column 2"),
        (PAIR, "0SEND_F0", "0SEND_F0,0SEND_B0", "0SEND_B0: stage 0 is the first one"),
        (PAIR, "1F0", "1F0,1SEND_F0", "1SEND_F0: stage 1 is the last one"),
        (PAIR, "0F0,", "0RECV_F0,0F0,", "0RECV_F0: stage 0 is the first one"),
        (V, "1F0,", "1F0,1SEND_F0,", "1SEND_F0: stage 2 is on the same rank"),
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
    assert_refused(base.replace(old, new), fault)


def test_files_may_run_in_torch_and_deadlock_where_receives_or_sends_wait() -> None:
    """An early receive; and both ranks send before they receive, as in pytorch issue 172668."""
    early = parse("0RECV_B0,0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")
    assert (check_schedule_file(early).makespan, waits(early)) == (6, "")
    assert waits(early, receives=True) == (
        "0RECV_B0 (row 1 (rank 0), column 1) waits for 1SEND_B0; 1RECV_F0 (row 2 (rank 1), column 1) waits for 0SEND_F0"
    )
    both = parse(TWO)
    assert check_schedule_file(both)
    assert not waits(both, receives=True)
    assert "0SEND_F1 (row 1 (rank 0), column 4) waits for 1RECV_F1" in waits(both, receives=True, sends=True)


@pytest.mark.parametrize(
    ("text", "fault", "legal"),
    [
        ("", "a.csv has no op of stage 0", "0F0"),
        *((text, "a.csv, row 1 has no op", "0F0,0B0") for text in ("\n\n", ",,\n")),
        ("0F0,0B0\n1UNSHARD\n", "a.csv, row 2 has no op", "0F0,0B0"),
        ("0F0,2F0x\n", "a.csv, row 1 (rank 0), column 2 is '2F0x'", "2F0"),
        *(
            (f"0F0,{cell}\n", f"column 2 is '{cell}'", "0F0")
            for cell in ("0X0", "F0", "0F", "0U0", "-1B0", "0F\u0663", "()OVERLAP_F_B", "(0F1;0B0)OVERLAP")
        ),
        ("0F0,0UNSHARD0\n", "column 2 is '0UNSHARD0'", "0UNSHARD"),
        ("0F0,0F99999999999\n", "column 2 is '0F99999999999'", "0F999999999"),
        ("0F0,0B0\n1F0,1B0,0F1\n", "row 2 (rank 1), column 3 has 0F1", "0F1 in row 1"),
        ("0F0,2F0,2B0,0B0\n", "a.csv has no op of stage 1", "1F0"),
        *(
            (f"0F0,{cell}\n", f"column 2 is '{cell}'", "(0F1;0B0)")
            for cell in ("(0F1;0F2)OVERLAP_F_B", "(0F1)OVERLAP_F_B", "(0F1;0SEND_F0)OVERLAP_F_B")
        ),
        ('0F0,"0B0\n', "a.csv is not a CSV file", "0F0,0B0"),
    ],
)
def test_malformed_file_is_refused_with_its_cell(text: str, fault: str, legal: str) -> None:
    with refused(InvalidRequest, subject=fault, legal=legal):
        parse(text, "a.csv")


def test_every_form_of_a_file_is_read() -> None:
    assert [len(row) for row in parse('\ufeff"0F0", 0B0 ,\r\n1F0,,1B0\r\n').rows] == [2, 2]
    # messages and sharding are derived, not read
    text = "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD\n"
    assert [[str(op) for op in order] for order in read(text).orders] == [["0F0", "0B0"], ["1F0", "1B0"]]
    listed = read("1F0,2F0,2B0,1B0\n0F0,0B0\n")  # any placement is legal
    assert listed.homes == (1, 0, 0)
    assert [str(op) for op in check(listed, 2, flush(1)).order(0)] == ["1F0", "2F0", "2B0", "1B0", "1U0"]


def test_files_that_cannot_run_are_refused() -> None:
    with refused(InvalidRequest, rule="2 * microbatches * stages^2 is 200000000, at most 100000000"):
        check_schedule_file(parse("0F99999999,0B99999999\n"))
    with pytest.raises(IllegalSchedule, match="deadlock"):
        write(parse("0B0,0F0\n1F0,1B0\n").schedule.orders, "compute_comms")
    listed = read("0F0,0B0\n1F0,1B0\n")
    with refused(InvalidRequest, rule="the number of microbatches in the file"):
        check(listed, 2, flush(2))
    with refused(InvalidRequest, "grid.inter", "3"):
        check(listed, 3, flush(1))
