"""A user's own folder: its modules and its YAMLs are found by `launch.python_path`, wherever a config is composed,
and nothing of it stays when it is not named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from suite.cli.main import main
from suite.config.compose import own_folders, resolve
from suite.config.families import CONF
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.exit_codes import Exit
from suite.core.record import Record
from tests.support.refusals import refused

SYSTEM = """# @package _global_
defaults: [override /schedule: null]
schedule: {{_target_: {name}.Order}}
system: {{_target_: suite.engine.system.EngineSystem, name: {name}, description: a test}}
"""


def write_system(folder: Path, name: str) -> None:
    (folder / "system").mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text("from baselines.gpipe import GPipe\n\nclass Order(GPipe):\n    pass\n")
    (folder / "system" / f"{name}.yaml").write_text(SYSTEM.format(name=name))


def python_path(*folders: Path) -> str:
    quoted = ["'" + str(folder).replace("'", "\\'") + "'" for folder in folders]
    return f"launch.python_path=[{','.join(quoted)}]"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose name wants quotes; what a test adds to sys.path goes with it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "it's, mine [1]"
    write_system(folder, "own_order")
    return folder


def test_user_choice_needs_its_folder(mine: Path) -> None:
    resolve([python_path(mine), "system=own_order"])
    with refused(UnknownName, "system", "own_order"):
        resolve(["system=own_order"])
    with refused(UnknownName, "system", "own_ordr", legal="did you mean 'own_order'?"):
        resolve([python_path(mine), "system=own_ordr"])
    with refused(UnknownName, "grid.intr", legal="did you mean 'grid.inter'?"):
        resolve([python_path(mine), "system=own_order", "grid.intr=2"])


def test_wrong_folders_are_refused(mine: Path) -> None:
    (mine / "system" / "axonn.yaml").write_text(SYSTEM.format(name="own_order"))  # Hydra would run the suite's
    with refused(InvalidRequest, rule="there is a system=axonn already", legal="system=axonn_of_mine"):
        resolve([python_path(mine), "system=own_order"])
    assert own_folders(["launch.python_path=[]", "system=axonn"]) == []
    with pytest.raises(InvalidRequest):
        resolve(["launch.python_path=[unclosed"])


def test_sweep_searches_user_folders(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CONF.parent))
    monkeypatch.chdir(tmp_path)
    refused_values = ["batch.size=7", f"reports={tmp_path}"]  # no rank starts
    assert main(["sweep", python_path(mine), "system=own_order", *refused_values]) == Exit.NOTHING
    (record,) = [Record.read(path) for path in (tmp_path / "records").glob("*.json")]
    assert record.system == "own_order"
    assert "batch.size=7" in record.reason
