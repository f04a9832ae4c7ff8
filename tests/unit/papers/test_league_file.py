"""league.json, league.csv, published errors of other simulators, and the command that writes the files."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from suite.cli.league import main
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.papers.public.cells import CELLS, PublicCell, load_cells
from suite.papers.public.league import constants
from suite.papers.public.league_file import ANSWERS, LEAGUE, MAX_BYTES, published_errors, read_league
from suite.papers.public.null_models import NULL_MODELS, null_errors
from tests.support.league import league_file
from tests.support.refusals import refused

DAMAGES: tuple[tuple[tuple[str | int, ...], Any, str], ...] = (  # path, value, key of the refusal
    (("score", "mean"), "0.2", "league.score.mean"),
    (("score", "mean"), float("nan"), "league.score.mean"),
    (("score", "oom"), [1], "league.score.oom"),
    (("groups",), [], "league.groups"),
    (("groups", 1, "cells"), None, "league.groups.1.cells"),
    (("groups", 1, "mean"), -0.5, "league.groups.far.mean"),
    (("nulls", "one share"), True, "league.nulls.one share"),
    (("ranges", 0, "inside"), "4", "league.ranges.0.inside"),
    (("memory", 1, "mean"), "0.1", "league.memory.1.mean"),
    (("schedules", 0, "modelled"), None, "league.schedules.0.modelled"),
    (("answers",), [], "league.answers"),
)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    assert read_league(tmp_path) is None
    content = league_file()
    assert content.write(tmp_path) == tmp_path / LEAGUE
    assert read_league(tmp_path) == content
    path = tmp_path / LEAGUE
    text = path.read_text()
    for (*parents, last), value, key in DAMAGES:
        inner = data = json.loads(text)
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
        path.write_text(json.dumps(data))
        with refused(InvalidRequest, key, legal="suite league"):
            read_league(tmp_path)
    path.write_text("[]")
    with refused(InvalidRequest, "league", legal="suite league"):
        read_league(tmp_path)
    for damaged in (b"", b'{"score": ', b"\xff\xfe", b"[" * 100_000):
        path.write_bytes(damaged)
        with refused(InvalidRequest, subject="league.json cannot be read", legal="suite league"):
            read_league(tmp_path)
    path.write_text(text + " " * MAX_BYTES)
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
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert any("mean over 1 group: " in line for line in lines), "no mean of the groups that print memory"
    content = read_league(folder)
    groups = [(group.group, group.cells) for group in content.groups]
    assert [tuple(line.split()[:2]) for line in lines[: len(groups)]] == [(name, str(cells)) for name, cells in groups]
    assert set(groups) >= {("zb_schedules", 1), ("mpt_a100_80_node", 2)}
    assert lines[-1] == f"{folder / LEAGUE}, {folder / ANSWERS}"
    with (folder / ANSWERS).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["device"]) for row in rows] == [(cell.id, cell.machine.gpu) for cell in few]
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
    assert [(one.group, one.cells) for one in content.ranges] == [("zb_schedules", 1), ("mpt_a100_80_node", 2)]
    assert [(one.schedule, one.cells) for one in content.schedules] == [("zb_h1", 1)]
    assert (content.memory[0].cells, content.memory[-1].oom[1]) == (1, 1)


@pytest.mark.slow("public measurements are scored")
def test_cells_of_one_group_are_compared_with_the_public_cells(few: tuple[PublicCell, ...], tmp_path: Path) -> None:
    path = file_of(tmp_path, *map(row_of, few[1:3]))
    assert main([f"cells={path}", f"reports={tmp_path}"]) == Exit.OK
    (group,) = read_league(tmp_path).groups
    public = [null_errors(load_cells(), model) for model in NULL_MODELS.values()]
    means = [fmean(abs(errors[cell.id]) for cell in few[1:3]) for errors in public]
    assert group.null == pytest.approx(min(means), abs=1e-3)
    assert group.left_out < 0.5, "a refused cell would count as 1"


def test_refused_cells_are_counted_and_files_without_scored_cells_are_refused(
    few: tuple[PublicCell, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, row_of(few[-1]))
    for cells in (path, tmp_path / "none.yaml", ""):
        assert main([f"cells={cells}", f"reports={tmp_path}"]) == Exit.NOTHING
    assert not (tmp_path / LEAGUE).exists()
    row = re.sub(r"\bprecision: \w+,", "precision: int3,", row_of(few[-1]))
    path = file_of(tmp_path, *map(row_of, few[:-1]), row)
    capsys.readouterr()
    assert main([f"cells={path}", f"reports={tmp_path}"]) == Exit.SOME_FAILED
    assert f"refused: {few[-1].id}: there is no precision named 'int3'" in capsys.readouterr().out
    content = read_league(tmp_path)
    assert content.score.refused == 1
