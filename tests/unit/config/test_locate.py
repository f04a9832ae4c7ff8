"""A class path leads to a part of the suite or of the user's folders, or is refused with the nearest legal one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from suite.config.locate import locate, module, search
from suite.core.errors import InvalidRequest, MissingDependency, UnknownName
from tests.support.refusals import refused

OUTSIDE = "a module of the suite, its baselines, or a folder of"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("suite.config.locate._folders", [])
    search([tmp_path])
    return tmp_path


def test_misspelled_path_gets_the_nearest(mine: Path) -> None:
    (mine / "my_orders.py").write_text("raise SystemExit('it ran')\nclass Waves: ...\n")
    for path, nearest in (
        ("suite.core.grid.Gird", "suite.core.grid.Grid"),
        ("suite.core.gird.Grid", "suite.core.grid"),
        ("suit.schedule.OneFOneB", "suite.schedule"),
        ("my_order.Wave", "my_orders"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            locate(path)
        assert caught.value.legal == f"did you mean {nearest!r}?"
    assert "my_orders" not in sys.modules
    with refused(UnknownName, "module", "zzz.yyy", legal="a class in a folder of launch.python_path"):
        locate("zzz.yyy.Thing")


def test_missing_package_is_named(mine: Path) -> None:
    """Also where the absent package's name is a prefix of the module's name."""
    for name in ("needs_an_absent_one", "absent_package_user"):
        (mine / f"{name}.py").write_text("import absent_package\n")
        with pytest.raises(MissingDependency, match=r"absent_package is not on this machine"):
            locate(f"{name}.Thing")


# -- a config runs nothing but parts of the suite and what the user has chosen ---------------------------------------


def test_path_outside_the_suite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "from_nowhere", ModuleType("from_nowhere"))
    for path in ("suite.nowhere.Grid", "from_nowhere.Thing", "suite.runner.launch.processes.subprocess.Popen"):
        with refused(UnknownName, "module", path.rpartition(".")[0]):
            locate(path)
    for path, subject, rule in (
        ("Grid", "'Grid' is not a class path", "package.module.Name"),
        ("", "'' is not a class path", "package.module.Name"),
        *((path, "in no such folder", OUTSIDE) for path in ("os.system", "builtins.eval", "torch.load")),
        # by way of a module of the suite
        ("suite.config.locate.Path", "pathlib", "defined there"),
        ("suite.config.plugins.partial", "functools", "defined there"),
        ("suite.engine.system.torch", "module", "a public class or function"),
        ("suite.schedule.__getattribute__", "", "a public class or function"),
    ):
        with refused(InvalidRequest, subject=subject, rule=rule):
            locate(path)


def test_refused_module_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not from where Python itself would look: the current folder is no choice."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lying_around.py").write_text("raise SystemExit('it ran')\n")
    with refused(InvalidRequest, subject="lying_around is in no such folder", legal="launch.python_path"):
        module("lying_around")
    with refused(InvalidRequest, subject="lying_around.deep is in no such folder"):
        locate("lying_around.deep.Thing")
    assert "lying_around" not in sys.modules


def test_user_module_is_legal_and_its_imports_are_not(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "chosen_plain.py": "import os, subprocess\nfrom os import system\nfrom suite.core.grid import Grid\n"
        "class Mine: ...\ndef made(): ...\nalias = os.system\n",
        "chosen_package/__init__.py": "from chosen_plain import Mine\n",
        "chosen_package/inner.py": "class Inner: ...\n",
        "chosen_space/inner.py": "class Inner: ...\n",  # without an __init__.py
        "venv/site-packages/some_package.py": "class Thing: ...\n",
    }.items():
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text(text)
    for path in ("chosen_plain.Mine", "chosen_plain.made", "chosen_plain.Grid", "chosen_package.Mine"):
        assert callable(locate(path))
    for package in ("chosen_package", "chosen_space"):
        assert locate(f"{package}.inner.Inner").__module__ == f"{package}.inner"
    with refused(UnknownName, "module", "chosen_plain.subprocess"):
        locate("chosen_plain.subprocess.run")
    for path in ("chosen_plain.system", "chosen_plain.alias", "chosen_plain.os"):
        with refused(InvalidRequest, legal="a class in a folder of launch.python_path"):
            locate(path)
    monkeypatch.syspath_prepend(str(mine / "venv" / "site-packages"))  # an environment inside the folder
    with refused(InvalidRequest, subject="some_package is in no such folder", rule=OUTSIDE):
        locate("some_package.Thing")
