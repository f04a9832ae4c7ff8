"""Laws of schedule files: each broken one is named with its row, column and action. Every form is read."""

from __future__ import annotations

import re

import pytest

from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.schedule.check import check
from suite.schedule.torch_csv import check_schedule_file, parse, write
from tests.support.drawn import few
from tests.support.refusals import refused
from tests.support.schedules import SCHEDULES, flush, serves


@pytest.mark.parametrize("name", few(sorted(SCHEDULES), 6))
def test_written_file_is_legal(name: str) -> None:
    for ranks, microbatches in ((1, 2), (2, 4), (3, 7), (4, 9)):
        if serves(SCHEDULES[name], ranks, microbatches):
            timeline = check(SCHEDULES[name], ranks, flush(microbatches))
            orders = [timeline.order(rank) for rank in range(ranks)]
            file = parse(write(orders))
            again = check_schedule_file(file)
            assert [again.order(rank) for rank in range(ranks)] == orders
            assert file.left_out == 0


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("0F0,0B0,0F0\n1F0,1B0\n", "0F0 (row 1, column 3): 0F0 runs twice"),
        ("0F0,,0B0,0W0\n1F0,1B0\n", "0W0 (row 1, column 4): 0W0 comes before its input gradient"),
        ("0F0,0I0\n1F0,1B0\n", "0U0 comes before the weight gradient of microbatch 0"),
        ("0F0,0B0\n1B0,1F0\n", "1B0 (row 2, column 1): 1B0 comes before its forward"),
        # the other rank has ended
        ("0F0,0F1,0I0,0W0,0W1,0I1\n1F0,1B0,1F1,1B1\n", "0W1 (row 1, column 5): 0W1 comes before its input"),
        ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "deadlock: stage 0 waits for 1B0; stage 1 waits for 0F1"),
        # a pair waits for the values of both of its passes
        (
            "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n",
            "deadlock: these wait for each other: 0F1 and 0B0 (row 1, ",
        ),
    ],
)
def test_broken_order_is_named_with_its_cell(text: str, fault: str) -> None:
    with pytest.raises(IllegalSchedule, match=re.escape(fault)) as caught:
        check_schedule_file(parse(text, "a.csv"))
    assert str(caught.value).startswith("a.csv: ")


def test_pairs_whose_values_come_in_time_are_legal() -> None:
    file = parse("0F0,0F1,0B0,(0F2;0B1)OVERLAP_F_B,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n")
    assert check_schedule_file(file).makespan > 0


@pytest.mark.parametrize(
    ("text", "fault", "legal"),
    [
        ("", "a.csv has no op of stage 0", "0F0"),
        ("0F0,0B0\n1UNSHARD\n", "a.csv, row 2 has no op", "0F0,0B0"),
        ("0F0,2F0x\n", "a.csv, row 1, column 2 is '2F0x'", "2F0"),
        *(
            (f"0F0,{cell}\n", f"column 2 is '{cell}'", "0F0")
            for cell in ("0U0", "0F\u0663", "()OVERLAP_F_B", "(0F1;0B0)OVERLAP")
        ),
        ("0F0,0UNSHARD0\n", "column 2 is '0UNSHARD0'", "0UNSHARD"),
        ("0F0,0F99999999999\n", "column 2 is '0F99999999999'", "0F999999999"),
        ("0F0,0B0\n1F0,1B0,0F1\n", "0F1 (row 2, column 3)", ""),
        ("0F0,2F0,2B0,0B0\n", "a.csv has no op of stage 1", "1F0"),
        *(
            (f"0F0,{cell}\n", f"column 2 is '{cell}'", "(0F1;0B0)")
            for cell in ("(0F1;0F2)OVERLAP_F_B", "(0F1;0SEND_F0)OVERLAP_F_B")
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
    file = parse(text)
    assert [[str(op) for op in order] for order in file.schedule.orders] == [["0F0", "0B0"], ["1F0", "1B0"]]
    assert file.left_out == 7
    listed = parse("1F0,2F0,2B0,1B0\n0F0,0B0\n").schedule  # any placement is legal
    assert listed.homes == (1, 0, 0)
    assert [str(op) for op in check(listed, 2, flush(1)).order(0)] == ["1F0", "2F0", "2B0", "1B0", "1U0"]


def test_files_that_cannot_run_are_refused() -> None:
    with refused(InvalidRequest, rule="2 * microbatches * stages^2 is 200000000, at most 100000000"):
        check_schedule_file(parse("0F99999999,0B99999999\n"))
    listed = parse("0F0,0B0\n1F0,1B0\n").schedule
    with refused(InvalidRequest, rule="the number of microbatches in the file"):
        check(listed, 2, flush(2))
    with refused(InvalidRequest, "grid.inter", "3"):
        check(listed, 3, flush(1))
