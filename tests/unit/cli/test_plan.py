"""Command `suite plan`: its table, its defaults, and refusals that name a legal value."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import yaml

from suite.cli import plan
from suite.cli.main import main
from suite.config.families import content
from suite.core.exit_codes import Exit
from suite.simulate.operations.setup import TrainingSetup
from suite.simulate.validation.calibrate import constants, shares

LINE = "model=llama3_8b machine=h100 devices=8 batch=16 top=3"
ROW = re.compile(
    r"^ *(\d+) +(\d+) x (\d+) x (\d+) +(\w+) +(\w+) +(\d+) +(\d+) +(\w+) +([\d.]+) +([\d,]+) +([\d.]+) +([\d.]+)$"
)


def setup_of(line: str) -> tuple[TrainingSetup, int]:
    """Setup of one device for a command line, and the number of devices."""
    return plan.setup_of(plan.main.read(line.split()), shares(constants()))


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """Lines of one plan."""
    with redirect_stdout(StringIO()) as text:
        assert main(["plan", *LINE.split()]) == Exit.OK
    return text.getvalue().splitlines()


def rows_of(lines: list[str]) -> list[tuple[str, ...]]:
    return [match.groups() for line in lines if (match := ROW.match(line))]


def test_plans_are_printed_fastest_first(printed: list[str]) -> None:
    tried, fit = map(int, re.match(r"(\d+) layouts tried; (\d+) fit the 84\.9 GB", printed[1]).groups())  # type: ignore[union-attr]
    assert 100 < fit < tried
    rows = rows_of(printed)
    assert [int(row[0]) for row in rows] == [1, 2, 3]
    seconds = [float(row[9]) for row in rows]
    assert seconds == sorted(seconds)
    for row in rows:
        assert int(row[1]) * int(row[2]) * int(row[3]) == 8
        assert float(row[10].replace(",", "")) == pytest.approx(16 * 8192 / float(row[9]) / 8, rel=1e-3)
        assert float(row[12]) <= 84.9
    assert max(map(len, printed)) <= 120


LEGAL = {"model": "llama3_8b", "machine": "h100", "devices": "8"}
WRONG: tuple[tuple[dict[str, str | None], str, str], ...] = (  # changes, words of the refusal, legal value
    ({"modle": "llama3_8b", "model": None}, "'modle'", "'model'?"),
    ({"model": "alexnet"}, "model=alexnet", "model=llama3_8b"),
    ({"machine": "perlmutter"}, "machine=perlmutter", "machine=h100"),
    ({"devices": "0"}, "devices=0", "devices=64"),
    ({"batch": "1.5"}, "batch=1.5", "batch=512"),
    ({"top": "all"}, "top=all", "top=5"),
    ({"generation": "compild"}, "generation", "'compiled'?"),
    ({"machine": "a100", "generation": "fp8"}, "generation=fp8 on machine=a100", "generation=compiled"),
    ({"model": None}, "without model=", "model=llama3_8b"),
    ({"devices": "97", "batch": "1"}, "devices=97", "batch=97"),
)


def test_wrong_keys_are_refused_with_a_legal_value(capsys: pytest.CaptureFixture[str]) -> None:
    for changes, words, legal in WRONG:
        line = [f"{key}={value}" for key, value in (LEGAL | changes).items() if value is not None]
        assert main(["plan", *line]) == Exit.NOTHING
        out, err = capsys.readouterr()
        assert not out
        assert words in err
        assert err.strip().endswith(legal), err


def test_models_and_machines_of_a_folder_are_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, machine = dict(content("model", "llama3_8b").keys), dict(content("machine", "h100").keys)
    model["shape"] = model["shape"] | {"layers": 16}
    for group, keys in (("model", model), ("machine", machine | {"memory": 41.5e9})):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(yaml.safe_dump(keys | {"name": "mine"}))
    words = ["model=mine", "machine=mine", "devices=8", "batch=16", "top=1"]
    assert main(["plan", f"launch.python_path=[{tmp_path}]", *words]) == Exit.OK
    printed = capsys.readouterr().out
    assert "the 41.5 GB of a device" in printed
    setup, _ = setup_of(" ".join([f"launch.python_path=[{tmp_path}]", *words]))
    assert (setup.model.layers, setup.machine.name) == (16, "mine")
    assert main(["plan", *words]) == Exit.NOTHING
