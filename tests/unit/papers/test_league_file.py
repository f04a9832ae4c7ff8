"""league.json, league.csv, published errors of other simulators, and the command that writes the files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite.cli.league import main
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.papers.public.cells import CELLS, PublicCell, load_cells
from suite.papers.public.league import constants
from suite.papers.public.league_file import ANSWERS, LEAGUE, MAX_BYTES, published_errors, read_league
from tests.support.league import league_file
from tests.support.refusals import refused


def test_file_holds_what_was_written(tmp_path: Path) -> None:
    assert read_league(tmp_path) is None
    content = league_file()
    assert content.write(tmp_path) == tmp_path / LEAGUE
    assert read_league(tmp_path) == content


def changed(*path: str | int, value: Any) -> Callable[[Any], Any]:
    """A function that sets the value at a path of plain data."""

    def change(data: Any) -> Any:
        *parents, last = path
        inner = data
        for key in parents:
            inner = inner[key]
        inner[last] = value
        return data

    return change


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (changed("score", "mean", value="0.2"), "league.score.mean"),
        (changed("score", "mean", value=float("nan")), "league.score.mean"),
        (changed("score", "oom", value=[1]), "league.score.oom"),
        (changed("groups", value=[]), "league.groups"),
        (changed("groups", 1, "cells", value=None), "league.groups.1.cells"),
        (changed("groups", 1, "mean", value=-0.5), "league.groups.far.mean"),
        (changed("nulls", "one share", value=True), "league.nulls.one share"),
        (changed("ranges", 0, "inside", value="4"), "league.ranges.0.inside"),
        (changed("memory", 1, "mean", value="0.1"), "league.memory.1.mean"),
        (changed("schedules", 0, "modelled", value=None), "league.schedules.0.modelled"),
        (changed("answers", value=[]), "key of league"),
        (lambda _: [], "league"),
    ],
)
def test_damaged_field_is_refused_by_its_name(change: Callable[[Any], Any], key: str, tmp_path: Path) -> None:
    league_file().write(tmp_path)
    path = tmp_path / LEAGUE
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with refused(InvalidRequest, key, legal="suite league"):
        read_league(tmp_path)


@pytest.mark.parametrize(
    "text", [b"", b'{"score": ', b"\xff\xfe", b"[" * 100_000], ids=["empty", "cut", "bytes", "deep"]
)
def test_text_that_is_no_json_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / LEAGUE).write_bytes(text)
    with refused(InvalidRequest, subject="league.json cannot be read", legal="suite league"):
        read_league(tmp_path)


def test_large_file_is_refused(tmp_path: Path) -> None:
    league_file().write(tmp_path)
    path = tmp_path / LEAGUE
    path.write_text(path.read_text() + " " * MAX_BYTES)
    with pytest.raises(InvalidRequest) as refusal:
        read_league(tmp_path)
    assert f"at most {MAX_BYTES} B" in refusal.value.rule


def test_published_errors_name_groups_with_cells(tmp_path: Path) -> None:
    rows = published_errors()
    assert [row.name for row in rows] == ["Calculon", "vTrain", "vTrain", "Primus projection"]
    assert all(row.largest is None or row.largest > row.mean for row in rows)
    assert {row.group for row in rows} - {""} <= {cell.group for cell in load_cells()}
    path = tmp_path / "others.yaml"
    path.write_text("simulators: [{name: x, cells: one, source: here}]")
    with refused(InvalidRequest, "others.simulators.0.mean", rule="required"):
        published_errors(path)


def row_of(cell: PublicCell) -> str:
    """The line of a cell in cells.yaml."""
    [line] = [line for line in CELLS.read_text(encoding="utf-8").splitlines() if line.startswith(f"- {{id: {cell.id},")]
    return line


@pytest.fixture(scope="module")
def few() -> tuple[PublicCell, ...]:
    """A pipelined cell, two cells of another group, and a row that did not fit; no constant is fitted to them."""
    fitted = {one.cell for one in constants()}
    cells = [cell for cell in load_cells() if cell.id not in fitted]
    pipelined = [cell for cell in cells if cell.group == "zb_schedules" and cell.schedule == "zb_1p"]
    others = [cell for cell in cells if cell.group == "mpt_a100_80_node" and cell.scored]
    failed = [cell for cell in cells if cell.status == "oom"]
    return (pipelined[0], *others[:2], failed[0])


def file_of(folder: Path, *rows: str) -> Path:
    path = folder / "few.yaml"
    path.write_text("\n".join(rows))
    return path


def test_command_scores_a_file_of_cells(
    few: tuple[PublicCell, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = file_of(tmp_path, *map(row_of, few)), tmp_path / "new"
    assert main([f"cells={path}", f"reports={folder}"]) == Exit.OK
    first, heading, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("scoring 4 cells;")
    assert heading.split()[:5] == ["group", "cells", "mean", "largest", "bias"]
    content = read_league(folder)
    assert content is not None
    assert [line.split()[:2] for line in lines[: len(content.groups)]] == [
        [group.group, str(group.cells)] for group in content.groups
    ]
    assert {(group.group, group.cells) for group in content.groups} >= {("zb_schedules", 1), ("mpt_a100_80_node", 2)}
    totals = "\n".join(lines)
    for text in ("mean over 2 groups: ", "90th percentile over cells: ", "rows that did not fit: ", "rows that ran: "):
        assert text in totals
    for text in ("range over unknown settings: ", "where it is printed, mean over 1 group: ", "mean over 1 cell: "):
        assert text in totals
    for text in ("blind, before anything was fitted: ", "each family left out of the fit: ", *content.nulls):
        assert text in totals
    assert lines[-1] == f"{folder / LEAGUE}, {folder / ANSWERS}"


def test_table_of_answers_has_a_row_for_each_cell(few: tuple[PublicCell, ...], tmp_path: Path) -> None:
    assert main([f"cells={file_of(tmp_path, *map(row_of, few))}", f"reports={tmp_path}"]) == Exit.OK
    with (tmp_path / ANSWERS).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [cell.id for cell in few]
    assert [row["device"] for row in rows] == [cell.machine.gpu for cell in few]
    first, last = rows[0], rows[-1]
    assert first["schedule"] == "zb_h1"
    error = float(first["simulated tokens/s per device"]) / float(first["measured tokens/s per device"]) - 1
    assert float(first["error"]) == pytest.approx(error, abs=1e-3)
    assert (last["status"], last["error"]) == ("oom", "")
    assert "vpp" not in first["assumed"].split()
    assert {row["fits"] for row in rows} <= {"yes", "no"}
    low, high = (float(first[f"{end} tokens/s per device"]) for end in ("low", "high"))
    assert low <= float(first["simulated tokens/s per device"]) <= high
    assert low < high
    assert last["low tokens/s per device"] == last["high tokens/s per device"] == ""
    content = read_league(tmp_path)
    assert content is not None
    assert [(one.group, one.cells) for one in content.ranges] == [("zb_schedules", 1), ("mpt_a100_80_node", 2)]
    assert [(one.schedule, one.cells) for one in content.schedules] == [("zb_h1", 1)]
    assert content.memory[0].cells == 1
    assert content.memory[-1].oom[1] == 1


def test_refused_cell_is_a_row_and_the_exit_status(
    few: tuple[PublicCell, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = re.sub(r"\bprecision: \w+,", "precision: int3,", row_of(few[-1]))
    path = file_of(tmp_path, *map(row_of, few[:-1]), row)
    assert main([f"cells={path}", f"reports={tmp_path}"]) == Exit.SOME_FAILED
    assert f"refused: {few[-1].id}: there is no precision named 'int3'" in capsys.readouterr().out
    content = read_league(tmp_path)
    assert content is not None
    assert content.score.refused == 1


def test_files_without_scored_cells_are_refused(
    few: tuple[PublicCell, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, row_of(few[-1]))
    assert main([f"cells={path}", f"reports={tmp_path}"]) == Exit.NOTHING
    assert "rule: at least one measured cell" in capsys.readouterr().err
    assert main([f"cells={tmp_path / 'none.yaml'}", f"reports={tmp_path}"]) == Exit.NOTHING
    assert main(["cells=", f"reports={tmp_path}"]) == Exit.NOTHING
    assert not (tmp_path / LEAGUE).exists()
