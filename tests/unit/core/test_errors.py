"""Content of error messages: numbers, rule and legal value.

Outcomes on a page are chosen by these classes, and a user mends a config by their text.
"""

from __future__ import annotations

import pytest

from suite.core import errors
from suite.core.keys import in_config_keys


def test_a_refusal_says_what_rule_and_legal_value() -> None:
    text = str(errors.InvalidRequest("5 stages for 3 layers", rule="a layer each", legal="1 to 3"))
    assert text == "5 stages for 3 layers; rule: a layer each; legal: 1 to 3"
    assert str(errors.InvalidRequest("no")) == "no"


def test_refusal_has_its_key_value_rule_and_legal_value() -> None:
    error = errors.InvalidRequest("grid.inter", 5, "4 layers", "grid.inter=4")
    assert str(error) == "grid.inter=5; rule: 4 layers; legal: grid.inter=4"
    assert (error.key, error.value, error.rule, error.legal) == ("grid.inter", 5, "4 layers", "grid.inter=4")
    error = errors.InvalidRequest("optimizer.clip_norm", None, what="no clipping")
    assert (str(error), error.key, error.value) == ("no clipping", "optimizer.clip_norm", None)


@pytest.mark.parametrize(
    ("error", "key", "value"),
    [
        (errors.InvalidRequest("batch.size=7 on grid.data=2"), "batch.size", "7"),
        (errors.InvalidRequest("weights._target_=a.B: there is no class named 'a.B'"), "weights._target_", "a.B"),
        (errors.InvalidRequest("there is no grid.inter", rule="every run has it"), "grid.inter", None),
        (errors.InvalidRequest("there is no folder here"), "", None),
        (errors.InvalidRequest("7 ranks"), "", None),
        (errors.InvalidRequest("seed=-1, batch 0 of 4"), "seed", "-1"),
        (errors.InvalidRequest("planes=[4, 8] with blocks=[3]"), "planes", "[4, 8]"),
        (errors.InvalidRequest("rmat: degree=16, vertices=16"), "degree", "16"),
        (errors.InvalidRequest("Grid(data=0)"), "data", "0"),
        (errors.InvalidRequest("++tag=mine"), "tag", "mine"),
        (errors.UnknownName("comm.order", "fixed", ["any"]), "comm.order", "fixed"),
        (errors.UnknownName("data set of images", "imagenett", ["imagenet"]), "data set of images", "imagenett"),
        (errors.UnknownName("config key", "grid.iner", ["grid.inter"]), "grid.iner", "grid.iner"),
        (errors.UnknownName("argument of a.B", "weights.x", ["weights.s"]), "weights.x", "weights.x"),
    ],
)
def test_key_of_a_sentence_is_that_it_begins_with(error: errors.InvalidRequest, key: str, value: str | None) -> None:
    assert (error.key, error.value) == (key, value)


def test_argument_names_become_keys_in_every_part_of_a_refusal() -> None:
    with pytest.raises(errors.InvalidRequest) as caught, in_config_keys():
        raise errors.InvalidRequest("clip_norm", None, "above 0, or None", "clip_norm=1.0")
    error = caught.value
    assert str(error) == "optimizer.clip_norm=null; rule: above 0, or null; legal: optimizer.clip_norm=1.0"
    assert (error.key, error.rule, error.legal) == (
        "optimizer.clip_norm",
        "above 0, or null",
        "optimizer.clip_norm=1.0",
    )
    with pytest.raises(errors.UnknownName) as unknown, in_config_keys():
        raise errors.UnknownName("what", "bogus", ["weights"])
    assert unknown.value.key == "pruning.scope"


def test_an_unknown_name_gets_the_nearest_if_one_is_near() -> None:
    systems = ["gpipe", "pipedream", "axonn"]
    assert str(errors.UnknownName("system", "pipedraem", systems)) == (
        "there is no system named 'pipedraem'; rule: one of axonn, gpipe, pipedream; legal: did you mean 'pipedream'?"
    )
    assert "did you mean" not in str(errors.UnknownName("system", "zzzz", systems))


def test_a_missing_package_says_the_remedy() -> None:
    text = str(errors.MissingDependency("mpi4py", "pip install it"))
    assert text.startswith("mpi4py is not on this machine")
    assert text.endswith("pip install it")


@pytest.mark.parametrize(
    ("child", "parent"),
    [
        ("InvalidRequest", "SuiteError"),
        ("UnknownName", "InvalidRequest"),
        ("Unsupported", "InvalidRequest"),
        ("MissingDependency", "SuiteError"),
        ("IllegalSchedule", "SuiteError"),
        ("RankError", "SuiteError"),
        ("RankTimeout", "RankError"),
        ("DamagedRecord", "SuiteError"),
        ("OtherSchema", "DamagedRecord"),
    ],
)
def test_the_tree_is_the_one_in_the_docstring(child: str, parent: str) -> None:
    assert getattr(errors, child).__base__ is getattr(errors, parent)
    assert child in (errors.__doc__ or "")
