"""`suite check FILE.csv`, `suite draw FILE.csv` and `draw.csv=FILE`."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.cli import Command
from suite.cli.check import COMMAND as CHECK
from suite.cli.draw import COMMAND as DRAW
from suite.config.compose import groups
from suite.core.exit_codes import Exit

TABLE = "1F0,2F0,2B0,1B0\n0F0,0B0\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "zbv.csv"
    DRAW.main(["schedule=zbv", "grid.inter=2", "draw.microbatches=3", f"draw.csv={path}"])
    return path


def test_legal_file_is_reported(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert CHECK.main([str(file)]) == Exit.OK
    assert capsys.readouterr().out.splitlines() == [
        f"{file} is legal (compute_only)",
        "2 ranks, 4 stages, 3 microbatches, 36 ops",
        "placement: fold (V), 2 stages per rank: every second chunk returns",
        "makespan: 19 ticks (F 1, B 2, I 1, W 1; messages take none)",
        "bubble: 5.3% of all ranks, 1 of 19 ticks on the busiest one",
        "stage time, the longest from the first to the last op of a rank: 18 ticks",
        "forward passes in flight (without B or I): at most 4, 4 per rank",
        "weight gradients owed (I without W): at most 1, 3 per rank",
        "activations alive (without B or W): at most 4, 4 per rank",
        "messages: neighbouring stages run their passes in one order, so a transport without a choice can run it",
    ]


@pytest.mark.parametrize("choice", [choice for choice in groups()["schedule"] if choice != "torch_csv"])
@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
def test_every_schedule_is_exported(choice: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.csv"
    words = [f"schedule={choice}", "grid.inter=3", "draw.microbatches=7", f"draw.csv={path}", f"draw.csv_format={form}"]
    assert DRAW.main(words) == Exit.OK
    drawn = capsys.readouterr().out.splitlines()
    assert CHECK.main([str(path)]) == Exit.OK
    report = capsys.readouterr().out
    assert f"is legal ({form})" in report
    assert f"makespan: {drawn[3].partition(',')[0].removeprefix('makespan ')} ticks" in report
    assert report.count("it runs to its end") == (2 if form == "compute_comms" else 0)
    assert DRAW.main([str(path)]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[:4] == drawn[:4]


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        ("0F0,0B0\n1F0,1B0\n", "one stage per rank"),
        ("0F0,2F0,2B0,0B0\n1F0,1B0\n", "table: stages 0, 1, ... on ranks 0 1 0"),
        ("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n", "loop, 2 stages per rank: stage s on rank s mod 2"),
        (TABLE, "table: stages 0, 1, ... on ranks 1 0 0"),
    ],
)
def test_placement_is_named(text: str, placement: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert CHECK.main([str(tmp_path / "a.csv")]) == Exit.OK
    assert f"\nplacement: {placement}\n" in capsys.readouterr().out


def test_ticks_of_a_file_are_keys(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert CHECK.main([str(file), "executor.ticks.backward=4", "executor.ticks.forward=2"]) == Exit.OK
    report = capsys.readouterr().out
    assert "makespan: 19 ticks (F 1, B 2, I 1, W 1;" in report
    assert "ticks (F 2, B 4, I 3, W 1;" in report
    assert DRAW.main([str(file), "draw.forward=2"]) == Exit.OK
    assert "F0  ==" in capsys.readouterr().out


def test_another_message_order_and_a_deadlock_of_waiting_receives_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1\n")
    assert CHECK.main([str(tmp_path / "a.csv")]) == Exit.OK
    assert "cannot run it: 1F1 would receive the message of 0F0" in capsys.readouterr().out
    (tmp_path / "b.csv").write_text("0RECV_B0,0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")
    assert CHECK.main([str(tmp_path / "b.csv")]) == Exit.OK
    assert "with receives that wait: deadlock: 0RECV_B0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("0F0,0B0\n1B0,1F0\n", [], "row 2 (rank 1), column 1: 1B0 comes before its forward"),
        ("0F0,2F0x\n", [], "row 1 (rank 0), column 2 is '2F0x'; rule: stage, one of F I B W"),
        ("", [], "has no op of stage 0, and it is empty"),
        ("\udcff", [], "it is not UTF-8 text"),
        (None, [], "No such file or directory; rule: a schedule file"),
        (TABLE, ["grid.inter=2"], "there is no key of a schedule file named 'grid.inter'"),
        (TABLE, ["executor.ticks.forward=0"], "executor.ticks.forward=0; rule: a whole number of ticks"),
        (TABLE, ["executor.ticks.forward=x"], "executor.ticks.forward=x; rule: a whole number of ticks"),
        ("0F0,0I0,0W0\n", ["executor.ticks.weight=2"], "executor.ticks.weight=2; rule: less than the 2 ticks"),
    ],
)
def test_illegal_file_is_refused(
    text: str | None, words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    assert CHECK.main([str(path), *words]) == Exit.NOTHING
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


@pytest.mark.parametrize("command", [CHECK, DRAW], ids=["check", "draw"])
def test_another_argument_is_refused_as_before(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    for argument, legal in (("pipeoptim", "system=pipeoptim"), ("gpt_tiny", "model=gpt_tiny")):
        assert command.main([argument]) == Exit.NOTHING
        assert f"unknown argument {argument!r}; rule: KEY=VALUE; legal: {legal}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["system=pipeoptim"], "rule: a schedule file has no updates"),
        (["draw.csv_format=both"], "draw.csv_format=both"),
    ],
)
def test_export_is_refused(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert DRAW.main([*words, f"draw.csv={tmp_path / 'a.csv'}"]) == Exit.NOTHING
    assert message in capsys.readouterr().err
    assert not (tmp_path / "a.csv").exists()
