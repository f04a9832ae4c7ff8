"""`suite check FILE.csv`, `suite draw FILE.csv` and `suite draw --csv FILE`."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.cli.check import main as check
from suite.cli.draw import main as draw
from suite.config.families import groups
from suite.core.exit_codes import Exit
from tests.support.drawn import few

TABLE = "1F0,2F0,2B0,1B0\n0F0,0B0\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "zbv.csv"
    draw(["schedule=zbv", "grid.inter=2", "batch.size=6", "--csv", str(path)])
    return path


def test_legal_file_is_reported(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert check([str(file)]) == Exit.OK
    assert capsys.readouterr().out.splitlines() == [
        f"{file} is legal",
        "ranks 2, stages 4, microbatches 3, ops 36",
        "ranks of stages 0, 1, ...: 0 1 1 0",
        "makespan: 19 ticks (F 1, B 2, I 1, W 1; messages take none)",
        "bubble: 5.3% of all ranks, 1 of 19 ticks on the busiest one",
        "stage time, the longest from the first to the last op of a rank: 18 ticks",
        "weight gradients owed (I without W): at most 1, 3 per rank",
        "activations alive (without B or W): at most 4, 4 per rank",
        "messages: neighbouring stages run their passes in one order, so a transport without a choice can run it",
    ]


CHOICES = [choice for choice in groups()["schedule"] if choice != "torch_csv"]


@pytest.mark.parametrize("choice", few(CHOICES, 4))
def test_every_schedule_is_exported(choice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.csv"
    words = [f"schedule={choice}", "grid.inter=3", "batch.size=14", "--csv", str(path)]
    assert draw(words) == Exit.OK
    drawn = capsys.readouterr().out.splitlines()
    assert check([str(path)]) == Exit.OK
    report = capsys.readouterr().out
    assert "is legal" in report
    assert f"makespan: {drawn[3].partition(',')[0].removeprefix('makespan ')} ticks" in report
    assert draw([str(path)]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[:4] == drawn[:4]


ILLEGAL: tuple[tuple[str | None, list[str], str], ...] = (  # text, words, and words of the refusal
    ("0F0,0B0\n1B0,1F0\n", [], "1B0 (row 2, column 1): 1B0 comes before its forward"),
    ("0F0,2F0x\n", [], "row 1, column 2 is '2F0x'"),
    ("", [], "has no op of stage 0"),
    ("\udcff", [], "UTF-8"),
    (None, [], "No such file or directory"),
    (TABLE, ["grid.inter=2"], "'grid.inter'"),
    (TABLE, ["executor.ticks.forward=0"], "executor.ticks.forward=0"),
    (TABLE, ["executor.ticks.forward=x"], "executor.ticks.forward=x"),
    ("0F0,0I0,0W0\n", ["executor.ticks.weight=2"], "executor.ticks.weight=2"),
)


def test_illegal_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, (text, words, message) in enumerate(ILLEGAL):
        path = tmp_path / f"{number}.csv"
        if text is not None:
            path.write_bytes(text.encode(errors="surrogateescape"))
        assert check([str(path), *words]) == Exit.NOTHING
        captured = capsys.readouterr()
        assert captured.out == ""
        assert message in captured.err
    assert draw(["system=pipeoptim", "--csv", str(tmp_path / "a.csv")]) == Exit.NOTHING
    assert "update_interval=1" in capsys.readouterr().err
    assert not (tmp_path / "a.csv").exists()
    for command in (check, draw):
        assert command(["pipeoptim"]) == Exit.NOTHING
        assert capsys.readouterr().err.strip().endswith("legal: system=pipeoptim")
