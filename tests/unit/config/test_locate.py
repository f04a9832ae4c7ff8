"""A class path leads to a part of the suite or of the user's folders, or is refused with the nearest legal one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from suite.config.locate import locate, module, search
from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.grid import Grid
from suite.memory import mixed
from tests.support.refusals import fault, refused


def test_locate_finds_classes_and_functions() -> None:
    assert locate("suite.core.grid.Grid") is Grid
    assert locate("suite.memory.mixed") is mixed


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("Grid", fault(subject="'Grid' is not a class path", rule="package.module.Name")),
        ("", fault(subject="'' is not a class path", rule="package.module.Name")),
        (
            "suite.nowhere.Grid",
            fault(subject="there is no module 'suite.nowhere'", rule="an importable module and a name in it"),
        ),
        (
            "nowhere.at.all.Grid",
            fault(subject="there is no module 'nowhere.at.all'", rule="an importable module and a name in it"),
        ),
    ],
)
def test_wrong_path_is_refused(path: str, expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        locate(path)


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the absent package's name is a prefix of the module's name."""
    monkeypatch.setattr("sys.path", [*sys.path])
    search([tmp_path])
    for name in ("needs_an_absent_one", "absent_package_user"):
        (tmp_path / f"{name}.py").write_text("import absent_package\n")
        with pytest.raises(MissingDependency, match=r"absent_package is not on this machine"):
            locate(f"{name}.Thing")


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("suite.core.grid.Gird", "suite.core.grid.Grid"),
        ("suite.core.gird.Grid", "suite.core.grid.Grid"),
        ("suit.schedule.OneFOneB", "suite.schedule.OneFOneB"),
        ("suite.shedule.OneF1B", "suite.schedule.OneFOneB"),
        ("suite.engin.optim.optimiser.AdmaW", "suite.engine.optim.optimizer.AdamW"),
        ("baseline.gpipe.Gpipe", "baselines.gpipe.GPipe"),
    ],
)
def test_misspelled_path_gets_the_nearest(path: str, nearest: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        locate(path)
    assert caught.value.legal == f"did you mean {nearest!r}?"


@pytest.mark.parametrize("path", ["suite.gnn.plans.dataclas", "quite.another.Thing"])
def test_only_legal_paths_are_suggested(path: str) -> None:
    with refused(InvalidRequest, subject="there is no module", rule="an importable module and a name in it") as caught:
        locate(path)
    assert "did you mean" not in str(caught.value)


def test_misspelled_user_path_gets_the_nearest(mine: Path) -> None:
    (mine / "my_orders.py").write_text("raise SystemExit('it ran')\nclass Waves: ...\n")
    with refused(InvalidRequest, legal="did you mean 'my_orders.Waves'?"):
        locate("my_order.Wave")
    assert "my_orders" not in sys.modules


# -- a config runs nothing but parts of the suite and what the user has chosen ---------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("os.system", fault(subject="in no such folder", rule="a module of the suite, its baselines, or a folder of")),
        (
            "builtins.eval",
            fault(subject="in no such folder", rule="a module of the suite, its baselines, or a folder of"),
        ),
        ("torch.load", fault(subject="in no such folder", rule="a module of the suite, its baselines, or a folder of")),
        ("__main__.main", fault(legal="a class in a folder of launch.python_path")),
        # by way of a module of the suite
        (
            "suite.runner.launch.processes.subprocess.Popen",
            fault(subject="there is no module", rule="an importable module and a name in it"),
        ),
        (
            "suite.config.locate.Path",
            fault(subject="is pathlib.Path", rule="a class or function of the suite, its baselines, or a"),
        ),
        (
            "suite.config.plugins.partial",
            fault(subject="is functools.partial", rule="a class or function of the suite, its baselines, or a"),
        ),
        ("suite.engine.system.torch", fault(subject="is a module", rule="a class or a function with a public name")),
        ("suite.schedule.__getattribute__", fault(rule="a public name")),
    ],
)
def test_path_outside_the_suite_is_refused(path: str, expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected) as caught:
        locate(path)
    assert "rule: " in str(caught.value)


def test_refused_module_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not from where Python itself would look: the current folder is no choice."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lying_around.py").write_text("raise SystemExit('it ran')\n")
    with refused(
        InvalidRequest,
        subject="lying_around is in no such folder",
        rule="a module of the suite, its baselines, or a folder of",
        legal="launch.python_path",
    ):
        module("lying_around")
    with refused(
        InvalidRequest,
        subject="lying_around.deep is in no such folder",
        rule="a module of the suite, its baselines, or a folder of",
    ):
        locate("lying_around.deep.Thing")
    assert "lying_around" not in sys.modules


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("suite.config.locate._folders", [])
    search([tmp_path])
    return tmp_path


def test_user_module_is_legal_and_its_imports_are_not(mine: Path) -> None:
    (mine / "chosen_plain.py").write_text(
        "import os, subprocess\nfrom os import system\nfrom suite.core.grid import Grid\n"
        "class Mine: ...\ndef made(): ...\nalias = os.system\n"
    )
    (mine / "chosen_package").mkdir()
    (mine / "chosen_package" / "__init__.py").write_text("from chosen_plain import Mine\n")
    (mine / "chosen_package" / "inner.py").write_text("class Inner: ...\n")
    (mine / "chosen_space").mkdir()  # without an __init__.py
    (mine / "chosen_space" / "inner.py").write_text("class Inner: ...\n")
    for path in (
        "chosen_plain.Mine",
        "chosen_plain.made",
        "chosen_plain.Grid",
        "chosen_package.Mine",
        "chosen_package.inner.Inner",
    ):
        assert callable(locate(path))
    assert locate("chosen_space.inner.Inner").__module__ == "chosen_space.inner"
    for path in ("chosen_plain.system", "chosen_plain.alias", "chosen_plain.os", "chosen_plain.subprocess.run"):
        with refused(InvalidRequest, legal="a class in a folder of launch.python_path"):
            locate(path)


def test_environment_in_a_user_folder_is_refused(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "venv" / "site-packages"
    inside.mkdir(parents=True)
    (inside / "some_package.py").write_text("class Thing: ...\n")
    monkeypatch.syspath_prepend(str(inside))
    with refused(
        InvalidRequest,
        subject="some_package is in no such folder",
        rule="a module of the suite, its baselines, or a folder of",
    ):
        locate("some_package.Thing")


def test_modules_without_origin_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "from_nowhere", ModuleType("from_nowhere"))
    with refused(InvalidRequest, subject="there is no module", rule="an importable module and a name in it"):
        locate("from_nowhere.Thing")
