"""Decides whether a config names a class safely: built as written, or refused with what would have fitted.

Ranks build from frozen configs without Hydra; a typo has to be explained here, in the words of the config.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.core.build import build, locate
from suite.core.errors import MissingDependency, Refused, UnknownName
from suite.core.grid import Grid
from suite.schedule import MessageDriven

SCHEDULE = "suite.schedule.message_driven.MessageDriven"


def test_locate_finds_classes_and_functions() -> None:
    assert locate("suite.core.grid.Grid") is Grid
    assert locate("suite.core.build.locate") is locate


def test_a_misspelt_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"in suite\.core\.grid named 'Gird'.*did you mean 'Grid'\?"):
        locate("suite.core.grid.Gird")


@pytest.mark.parametrize("path", ["Grid", "", "suite.nowhere.Grid", "nowhere.at.all.Grid"])
def test_a_path_that_leads_nowhere_is_refused(path: str) -> None:
    with pytest.raises(Refused, match="rule: "):
        locate(path)


def test_a_package_that_is_not_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the absent package's name begins that of the module which needs it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("needs_an_absent_one", "absent_package_user"):
        (tmp_path / f"{module}.py").write_text("import absent_package\n")
        with pytest.raises(MissingDependency, match=r"absent_package is not on this machine"):
            locate(f"{module}.Thing")


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
    with pytest.raises(Refused, match="a class or a function"):
        build({"_target_": "suite.core.record.SCHEMA_VERSION"})
