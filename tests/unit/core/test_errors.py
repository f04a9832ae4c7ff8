"""Decides whether an error says the numbers, the rule and a legal value, and stands where the tree shows it.

Outcomes on a page are chosen by these classes, and a user mends a config by their text.
"""

from __future__ import annotations

import pytest

from suite.core import errors


def test_a_refusal_says_what_rule_and_legal_value() -> None:
    text = str(errors.Refused("5 stages for 3 layers", rule="a layer each", legal="1 to 3"))
    assert text == "5 stages for 3 layers; rule: a layer each; legal: 1 to 3"
    assert str(errors.Refused("no")) == "no"


def test_an_unknown_name_gets_the_nearest_if_one_is_near() -> None:
    known = ["gpipe", "pipedream", "axonn"]
    assert str(errors.UnknownName("system", "pipedraem", known)) == (
        "there is no system named 'pipedraem'; rule: one of axonn, gpipe, pipedream; legal: did you mean 'pipedream'?"
    )
    assert "did you mean" not in str(errors.UnknownName("system", "zzzz", known))


def test_a_missing_package_says_the_remedy() -> None:
    text = str(errors.MissingDependency("mpi4py", "pip install it"))
    assert text.startswith("mpi4py is not on this machine")
    assert text.endswith("pip install it")


@pytest.mark.parametrize(
    ("child", "parent"),
    [
        ("Refused", "SuiteError"),
        ("UnknownName", "Refused"),
        ("Unsupported", "Refused"),
        ("MissingDependency", "SuiteError"),
        ("IllegalSchedule", "SuiteError"),
        ("RankError", "SuiteError"),
        ("Late", "RankError"),
        ("DamagedRecord", "SuiteError"),
        ("OtherSchema", "DamagedRecord"),
    ],
)
def test_the_tree_is_the_one_in_the_docstring(child: str, parent: str) -> None:
    assert getattr(errors, child).__base__ is getattr(errors, parent)
    assert child in (errors.__doc__ or "")
