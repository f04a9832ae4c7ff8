"""Decides whether a config names a class safely: built as written, or refused with what would have fitted.

Ranks build from frozen configs without Hydra; a typo has to be explained here, in the words of the config.
"""

from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from suite.core.build import build, locate, module, search
from suite.core.errors import MissingDependency, Refused, UnknownName
from suite.core.grid import Grid
from suite.memory import mixed
from suite.schedule import MessageDriven

SCHEDULE = "suite.schedule.message_driven.MessageDriven"


def test_locate_finds_classes_and_functions() -> None:
    assert locate("suite.core.grid.Grid") is Grid
    assert locate("suite.memory.mixed") is mixed


def test_a_misspelt_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"in suite\.core\.grid named 'Gird'.*did you mean 'Grid'\?"):
        locate("suite.core.grid.Gird")


@pytest.mark.parametrize("path", ["Grid", "", "suite.nowhere.Grid", "nowhere.at.all.Grid"])
def test_a_path_that_leads_nowhere_is_refused(path: str) -> None:
    with pytest.raises(Refused, match="rule: "):
        locate(path)


def test_a_package_that_is_not_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the absent package's name begins that of the module which needs it."""
    monkeypatch.setattr("sys.path", [*sys.path])
    search([tmp_path])
    for name in ("needs_an_absent_one", "absent_package_user"):
        (tmp_path / f"{name}.py").write_text("import absent_package\n")
        with pytest.raises(MissingDependency, match=r"absent_package is not on this machine"):
            locate(f"{name}.Thing")


def test_build_calls_targets_inside_out() -> None:
    built = build({"a": {"_target_": "suite.core.grid.Grid", "inter": 2}, "b": [1, {"_target_": SCHEDULE}], "c": "x"})
    assert built == {"a": Grid(inter=2), "b": [1, MessageDriven()], "c": "x"}


def test_extra_arguments_go_to_the_outermost_target() -> None:
    assert build({"_target_": SCHEDULE, "cap": 2}, pipeline_limit=5) == MessageDriven(pipeline_limit=5, cap=2)
    assert build({"plain": 1}, more=2) == {"plain": 1, "more": 2}


def test_arguments_that_do_not_fit_are_refused_with_those_that_do() -> None:
    with pytest.raises(Refused, match=r"limit.*its arguments are pipeline_limit, cap, prefer"):
        build({"_target_": SCHEDULE, "limit": 3})


def test_a_target_that_is_no_class_is_refused() -> None:
    with pytest.raises(Refused, match=r"is a tuple; rule: a class or a function"):
        build({"_target_": "suite.gnn.plan.ASSIGNMENTS"})


# -- a config runs nothing but parts of the suite and what the user has chosen ---------------------------------------


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("os.system", "none of them"),
        ("posix.system", "none of them"),
        ("builtins.eval", "none of them"),
        ("builtins.exec", "none of them"),
        ("subprocess.Popen", "none of them"),
        ("importlib.import_module", "none of them"),
        ("pickle.loads", "none of them"),
        ("torch.load", "none of them"),
        ("numpy.load", "none of them"),
        ("functools.partial", "none of them"),
        ("yaml.unsafe_load", "none of them"),
        ("__main__.main", "none of them|there is no module"),
        # by way of a module of the suite
        ("suite.bench.launch.subprocess.Popen", "there is no module"),
        ("suite.core.build.importlib.import_module", "there is no module"),
        ("suite.core.build.importlib", "is a module"),
        ("suite.core.build.Path", r"is pathlib[.\w]*\.Path"),
        ("suite.core.build.partial", r"is functools\.partial"),
        ("suite.gnn.plan.dataclass", "is dataclasses"),
        ("suite.engine.system.torch", "is a module"),
        ("baselines.gpipe.dataclass", "is dataclasses"),
        # the suite's own that start processes, keep files, or would look elsewhere
        ("suite.core.build.locate", r"is suite\.core\.build\.locate"),
        ("suite.core.build.search", r"is suite\.core\.build\.search"),
        ("suite.doctor.probe.attempt", r"is suite\.doctor"),
        ("suite.bench.starter.placing", "is suite"),
        ("suite.bench.launch.Ranks", "is suite"),
        ("suite.core.files.write_atomically", "is suite"),
        ("suite.report.files.write", "is suite"),
        ("suite.pruning.ticket.save", "is suite"),
        ("suite.engine.shelf.finish", "is suite"),
        ("suite.clusters.__main__.main", r"is suite\.cli"),  # a program
        ("suite.schedule.MessageDriven.__init__", "there is no module"),
        ("suite.schedule.__getattribute__", "a public name"),
        ("suite.gnn.plan.__builtins__", "a public name"),
    ],
)
def test_what_is_no_part_of_the_suite_is_refused(path: str, words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        build({"_target_": path, "_partial_": True})
    assert "rule: " in str(caught.value)


def test_nothing_is_imported_to_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not from where Python itself would look: the current folder is no choice."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lying_around.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(Refused, match=r"lying_around is none of them.*launch\.python_path"):
        module("lying_around")
    with pytest.raises(Refused, match=r"lying_around\.deep is none of them"):
        locate("lying_around.deep.Thing")
    assert "lying_around" not in sys.modules


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("suite.core.build._own", [])
    search([tmp_path])
    return tmp_path


def test_the_users_own_folder_is_a_choice_and_what_it_borrows_is_not(mine: Path) -> None:
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
        with pytest.raises(Refused, match="rule: "):
            locate(path)


def test_a_folder_that_holds_an_environment_does_not_choose_it(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "venv" / "site-packages"
    inside.mkdir(parents=True)
    (inside / "some_package.py").write_text("class Thing: ...\n")
    monkeypatch.syspath_prepend(str(inside))
    with pytest.raises(Refused, match="some_package is none of them"):
        locate("some_package.Thing")


def test_a_hostile_config_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever in a config it stands, before anything beside it is called."""
    monkeypatch.setattr(builtins, "eval", lambda *_: pytest.fail("it ran"))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("it ran"))
    hostile = {"_target_": "subprocess.Popen", "args": ["true"]}
    for config in (hostile, [hostile], {"a": {"b": [hostile]}}, {"_target_": SCHEDULE, "cap": hostile}):
        with pytest.raises(Refused, match="none of them"):
            build(config)


def test_modules_that_came_from_nowhere_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "from_nowhere", ModuleType("from_nowhere"))
    with pytest.raises(Refused, match="there is no module"):
        locate("from_nowhere.Thing")


def test_what_a_run_asks_for_its_ranks_is_built_by_no_config(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="writes files"):
        build({"_target_": "suite.gnn.prepare.Prepared", "config": {}, "folder": str(tmp_path / "elsewhere")})
    assert not list(tmp_path.iterdir())
