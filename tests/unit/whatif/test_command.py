"""Command `suite whatif`: it prints what the page shows, or all of it as JSON, and refuses a wrong word."""

from __future__ import annotations

import json

import pytest

from suite.cli.main import main
from suite.core.exit_codes import Exit
from suite.whatif.export import catalogue
from suite.whatif.page import Page

LINE = ["schedule=pipedream", "versus=one_f_one_b", "ranks=3", "microbatches=6", "link=0.25"]


def test_an_answer_is_printed_with_its_tables_and_charts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", "schedule=zbv", "versus=zb_h1", "ranks=2", "microbatches=4", "sweep=ranks"]) == Exit.OK
    blocks = capsys.readouterr().out.split("\n\n")
    assert blocks[0] == "zbv and zb_h1, 2 ranks, 4 microbatches"
    titles = {block.splitlines()[0] for block in blocks}
    assert titles >= {"Quantities", "Makespan over ranks: makespan over the ideal", "All schedules here"}
    chart = next(block for block in blocks if block.startswith("Makespan over ranks"))
    assert [line.split()[0] for line in chart.splitlines()[1:]] == ["zbv", "2", "4", "8", "16", "32"]


def test_json_holds_every_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", "--json", *LINE]) == Exit.OK
    printed = json.loads(capsys.readouterr().out)
    for ours, found in zip(Page(catalogue()).answer(LINE).timelines, printed["timelines"], strict=True):
        assert {name: list(values) for name, values in ours.columns.items()} == found["columns"]
        assert [list(steps.y) for steps in ours.versions] == [steps["y"] for steps in found["versions"]]


def test_a_wrong_word_is_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("ranks=0", "rank=4", "view=clutser", "schedule.chunks=2.0"):
        assert main(["whatif", "schedule=interleaved", word]) == Exit.NOTHING
        out, err = capsys.readouterr()
        assert not out
        assert err.startswith("refused: ")
        assert err.count("\n") == 1
