"""accuracy.csv, the tables that are grouped from it, and the command that writes it."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from suite.cli.accuracy import main
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.simulate.validation import tables
from suite.simulate.validation.accuracy import NULL_MODELS, null_errors
from suite.simulate.validation.calibrate import constants
from suite.simulate.validation.cells import CELLS, PublicCell, load_cells
from suite.simulate.validation.tables import ACCURACY, MAX_BYTES
from tests.support.accuracy import steps, write
from tests.support.refusals import refused


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    assert tables.read(tmp_path) is None
    write(tmp_path)
    read = tables.read(tmp_path)
    assert read is not None
    assert read[0]["error"].tolist() == [0.0, 1.1]
    path = tmp_path / ACCURACY
    text = path.read_text()
    header = text.splitlines()[0]
    for damaged in (
        *(b"", b"\xff\xfe", b"a,b\n1,2\n", f"{header}\n".encode(), text.replace("error", "eror", 1).encode()),
        *(text.replace("1.1", word).encode() for word in ("x", "1e999")),
        *(text.replace("True", word).encode() for word in ("False", "", "7")),
        text.encode() + b"\n" * MAX_BYTES,
    ):
        path.write_bytes(damaged)
        with refused(InvalidRequest, subject=f"{path} cannot be read", legal="suite accuracy"):
            tables.read(tmp_path)


def test_errors_are_averaged_over_groups() -> None:
    frame = steps({"error": -0.1}, {"error": 0.3}, {"group": "far", "error": -0.5}, {"scored": False, "error": 9.0})
    found = tables.groups(frame)
    assert found["cells"].to_dict() == {"near": 2, "far": 1}
    assert found["mean error"].tolist() == pytest.approx([0.2, 0.5])
    assert found[["largest", "median", "null model"]].loc["near"].tolist() == pytest.approx([0.3, 0.1, 0.5])
    total = tables.totals(frame)["mean error"]
    assert total["fitted, without the cells of the fit"] == pytest.approx(0.35)
    assert total["null model: one share"] == pytest.approx(0.5)
    refusals = steps({"error": 1.0, "simulated": None, "null model: one share": None, "without its family": None})
    assert tables.groups(refusals)[["mean error", "null model", "without its family"]].loc["near"].tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"measured": 100.0, "simulated": 120.0}, {"measured": 110.0, "simulated": 110.0}, (0, 1)),
        ({"measured": 100.0, "simulated": 100.0}, {"measured": 110.0, "simulated": 110.0}, (1, 1)),
        ({"measured": 100.0, "simulated": 120.0}, {"measured": 102.0, "simulated": 1.0}, (0, 0)),  # noise
        ({"measured": 100.0, "quality": "low"}, {"measured": 130.0, "simulated": 200.0}, (0, 0)),
        ({"measured": 100.0, "simulated": None}, {"measured": 130.0, "simulated": 200.0}, (0, 1)),  # refused
        ({"measured": 100.0}, {"measured": 130.0, "group": "far"}, (0, 0)),
    ],
)
def test_orders_of_a_group_are_counted(
    first: dict[str, Any], second: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert tables.orders(steps(first, second)) == expected


def test_memory_has_errors_and_both_confusions() -> None:
    oom = {"status": "oom", "measured": None, "error": None, "scored": False}
    rows = [{"memory error": 0.1}, {"memory error": -0.2, "fits": 0.0}, {"memory error": 0.0}]
    frame = steps(*rows, oom | {"fits": 0.0}, oom, {"group": "far"}, oom | {"group": "oom", "fits": 0.0})
    found = tables.memory(frame)
    assert list(found.index) == ["these groups", "near", "oom"]
    assert found.loc["near"].tolist() == [3, pytest.approx(0.1), 0.2, 0.0, "1 of 2", "2 of 3"]
    assert found.loc["these groups"].tolist()[4:] == ["2 of 3", "2 of 3"]
    assert np.isnan(found.loc["oom", "mean error"])
    assert tables.memory(steps({})).empty


def test_measurements_inside_a_range_are_counted_with_their_distance() -> None:
    ends = {"low": 80.0, "high": 110.0}
    frame = steps(
        *({"measured": m, "simulated": 100.0, **ends} for m in (100.0, 50.0, 200.0)), ends | {"scored": False}
    )
    found = tables.ranges(frame).loc["near"]
    assert found[["cells", "measured inside"]].tolist() == [3, "1 of 3"]
    assert found[["least answer", "largest answer"]].tolist() == pytest.approx([80 / 100 - 1, 110 / 100 - 1])
    assert found["distance"] == pytest.approx((0.0 + (80 / 50 - 1) + (1 - 110 / 200)) / 3)
    assert tables.ranges(steps({})).empty


def test_the_first_choice_is_compared_with_the_measured_best() -> None:
    def sweep(*simulated: float, **fits: float) -> tuple[int, float, str, str]:
        rows = [{"sweep": "s", "measured": 100.0 - n, "simulated": value} for n, value in enumerate(simulated)]
        (found,) = tables.sweeps(steps(rows[0] | fits, *rows[1:])).itertuples(index=False)
        return tuple(found)[1:]  # type: ignore[return-value]

    assert sweep(9.0, 8.0, 7.0, 6.0, 5.0) == (1, 0.0, "0", "0")
    assert sweep(8.0, 9.0, 7.0, 6.0, 5.0) == (2, pytest.approx(0.01), "1", "0")
    assert sweep(9.0, 8.0, 7.0, 6.0, 5.0, fits=0.0) == (0, pytest.approx(0.01), "1", "0")
    assert tables.sweeps(steps({"sweep": "s"})).empty


def test_printed_times_stand_next_to_the_cost_model() -> None:
    rows = ({"with printed times": -0.1, "error": 0.5, "schedule": "zbv"}, {"schedule": "zbv"})
    (found,) = tables.schedules(steps(*rows)).itertuples()
    assert tuple(found) == ("near", "zbv", 1, 0.1, 0.1, -0.1, pytest.approx(0.5))


def test_our_error_stands_next_to_a_published_one_on_the_same_group() -> None:
    found = tables.published(steps({"group": "megatron_a100_recompute", "error": 0.07}))
    assert list(found.index) == ["Calculon", "vTrain", "vTrain", "Primus projection"]
    assert found.loc["Calculon", ["mean error", "ours: mean error"]].tolist() == pytest.approx([0.0365, 0.07])
    assert np.isnan(found.loc["Primus projection", "ours: mean error"])
    assert (found["largest"].isna() | (found["largest"] > found["mean error"])).all()


# -- the command -----------------------------------------------------------------------------------------------------


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
    folder = tmp_path / "new"
    assert main([f"cells={file_of(tmp_path, *map(row_of, few))}", f"reports={folder}"]) == Exit.OK
    assert capsys.readouterr().out.endswith(f"{folder / ACCURACY}\n")
    read = tables.read(folder)
    assert read is not None
    frame, fitted = read
    first, last = frame.iloc[0], frame.iloc[-1]
    assert frame["id"].tolist() == [cell.id for cell in few]
    assert {"zb_schedules": 1, "mpt_a100_80_node": 2}.items() <= tables.groups(frame)["cells"].to_dict().items()
    assert first["error"] == pytest.approx(first["simulated"] / first["measured"] - 1, abs=1e-4)
    assert first["schedule"] == "zb_h1"
    assert "vpp" not in first["assumed"].split()
    assert first["low"] <= first["simulated"] <= first["high"]
    assert first["low"] < first["high"]
    assert last["status"] == "oom"
    assert last[["error", "low"]].isna().all()
    assert set(tables.tables(frame, fitted)) >= {"Totals", "Schedules with printed pass times", "Fitted constants"}


@pytest.mark.slow("public measurements are scored")
def test_cells_of_one_group_are_compared_with_the_public_cells(few: tuple[PublicCell, ...], tmp_path: Path) -> None:
    path = file_of(tmp_path, *map(row_of, few[1:3]))
    assert main([f"cells={path}", f"reports={tmp_path}"]) == Exit.OK
    read = tables.read(tmp_path)
    assert read is not None
    (group,) = tables.groups(read[0]).to_dict("records")
    public = [null_errors(load_cells(), model) for model in NULL_MODELS.values()]
    means = [fmean(abs(errors[cell.id]) for cell in few[1:3]) for errors in public]
    assert group["null model"] == pytest.approx(min(means), abs=1e-3)
    assert group["without its family"] < 0.5, "a refused cell would count as 1"


def test_refused_cells_are_counted_and_files_without_scored_cells_are_refused(
    few: tuple[PublicCell, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, row_of(few[-1]))
    for cells in (path, tmp_path / "none.yaml", ""):
        assert main([f"cells={cells}", f"reports={tmp_path}"]) == Exit.NOTHING
    assert not (tmp_path / ACCURACY).exists()
    row = re.sub(r"\bprecision: \w+,", "precision: int3,", row_of(few[-1]))
    path = file_of(tmp_path, *map(row_of, few[:-1]), row)
    capsys.readouterr()
    assert main([f"cells={path}", f"reports={tmp_path}"]) == Exit.SOME_FAILED
    assert f"refused: {few[-1].id}: there is no precision named 'int3'" in capsys.readouterr().out
