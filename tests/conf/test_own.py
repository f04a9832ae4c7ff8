"""A user's own folder: its modules and its YAMLs are found by `launch.python_path`, wherever a config is composed,
and nothing of it stays when it is not named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.config.compose import CONF, groups, own_folders, resolve, searched
from suite.core.errors import InvalidRequest, UnknownName
from suite.runner.runs import expand
from tests.support.refusals import refused

SCHEDULE = "from baselines.gpipe import GPipe\n\nclass {name}(GPipe):\n    pass\n"
SYSTEM = """# @package _global_
defaults: [override /schedule: null]
schedule: {{_target_: {module}.{name}}}
system: {{_target_: suite.engine.system.EngineSystem, name: {module}, description: a test}}
"""


@pytest.fixture
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose name wants quotes; what a test adds to sys.path goes with it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "it's, mine [1]"
    (folder / "system").mkdir(parents=True)
    (folder / "own_order.py").write_text(SCHEDULE.format(name="Order"))
    (folder / "system" / "own_order.yaml").write_text(SYSTEM.format(module="own_order", name="Order"))
    return folder


def python_path(*folders: Path) -> str:
    quoted = ["'" + str(folder).replace("'", "\\'") + "'" for folder in folders]
    return f"launch.python_path=[{','.join(quoted)}]"


def test_user_system_is_composed_and_built(user_folder: Path) -> None:
    config = resolve([python_path(user_folder), "system=own_order"])
    assert config.schedule.data() == {"_target_": "own_order.Order"}, "the default schedule is replaced"
    assert config.launch.python_path == [str(user_folder)]
    assert "hydra" not in config.more
    (run,) = expand([python_path(user_folder), "system=own_order", "grid.inter=2"])
    assert run.refusal is None, run.refusal
    assert run.label == "own_order 2x1"


def test_user_choice_needs_its_folder(user_folder: Path) -> None:
    assert "own_order" in groups([python_path(user_folder)])["system"]
    assert "own_order" not in groups()["system"]
    assert groups([python_path(user_folder)])["model"] == groups()["model"]
    resolve([python_path(user_folder), "system=own_order"])
    with refused(UnknownName, "system", "own_order"):
        resolve(["system=own_order"])
    with refused(UnknownName, "system", "own_ordr", legal="did you mean 'own_order'?"):
        resolve([python_path(user_folder), "system=own_ordr"])


def test_unknown_key_is_explained_with_user_folders(user_folder: Path) -> None:
    with refused(UnknownName, "grid.intr", legal="did you mean 'grid.inter'?"):
        resolve([python_path(user_folder), "system=own_order", "grid.intr=2"])


def test_user_experiment_names_a_user_system(user_folder: Path) -> None:
    (user_folder / "experiment").mkdir()
    text = (CONF / "experiment" / "smoke.yaml").read_text().replace("name: smoke", "name: own_smoke")
    (user_folder / "experiment" / "own_smoke.yaml").write_text(text.replace("[system=axonn]", "[system=own_order]"))
    runs = expand([python_path(user_folder), "experiment=own_smoke"])
    assert [run.label for run in runs] == ["pytorch 1x1", "own_order 1x1"]
    assert all(run.refusal is None for run in runs)


def test_several_folders_are_searched(user_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "system").mkdir(parents=True)
    (other / "own_second.py").write_text(SCHEDULE.format(name="Second"))
    (other / "system" / "own_second.yaml").write_text(SYSTEM.format(module="own_second", name="Second"))
    for name in ("own_order", "own_second"):
        (run,) = expand([python_path(user_folder, other), f"system={name}"])
        assert run.refusal is None, run.refusal


def test_duplicate_system_name_is_refused(user_folder: Path) -> None:
    """Hydra would run the suite's without a word."""
    (user_folder / "system" / "axonn.yaml").write_text(SYSTEM.format(module="own_order", name="Order"))
    with refused(InvalidRequest, rule="there is a system=axonn already", legal="system=axonn_of_mine"):
        resolve([python_path(user_folder), "system=own_order"])


@pytest.mark.parametrize("value", ["[no/such/folder]", "no/such/folder", "[.,no/such/folder]"])
def test_missing_folder_is_refused(value: str) -> None:
    with refused(InvalidRequest, "launch.python_path", subject="no folder no/such/folder"):
        resolve([f"launch.python_path={value}"])


def test_without_a_folder_nothing_is_searched() -> None:
    assert own_folders(["launch.python_path=[]", "system=axonn"]) == []
    assert searched(["grid.inter=2"]) == []
    with pytest.raises(InvalidRequest):
        resolve(["launch.python_path=[unclosed"])


def test_sweep_searches_user_folders(user_folder: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "suite", "sweep", python_path(user_folder), "system=own_order,gpipe"]
    line += ["batch.size=7", f"reports={tmp_path}"]  # refused: no rank starts
    env = {**os.environ, "PYTHONPATH": str(CONF.parent)}
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)
    records = [json.loads(path.read_text()) for path in (tmp_path / "records").glob("*.json")]
    assert {record["system"] for record in records} == {"own_order", "gpipe"}, done.stdout + done.stderr
    assert all("batch.size=7" in record["reason"] for record in records)
