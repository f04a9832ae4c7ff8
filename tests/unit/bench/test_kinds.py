"""Decides whether a key of a config with a value of no use is refused by name, with the rule and a legal value."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from suite.bench.experiment import expand, resolve
from suite.bench.kinds import KINDS, WHERE_THERE, check_kinds, check_needed
from suite.core.errors import Refused


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    return resolve([])


def altered(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    config: Any = copy.deepcopy(base)
    *groups, name = path.split(".")
    found = config
    for group in groups:
        found = found[group]
    found[name] = value
    return dict(config)


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(Refused) as caught:
        check_kinds(config)
    return str(caught.value)


@pytest.mark.parametrize("path", [path for path in KINDS if path != "tag"])
def test_every_key_refuses_what_it_cannot_be_by_its_own_name(base: dict[str, Any], path: str) -> None:
    check_kinds(base)
    message = refusal(altered(base, path, -0.5))
    assert message.startswith(f"{path}=-0.5; rule: ")
    legal = message.partition(f"legal: {path}=")[2]
    if legal:
        check_kinds(altered(base, path, {"true": True, "null": None}.get(legal, legal and number(legal))))


@pytest.mark.parametrize("path", WHERE_THERE)
def test_a_key_that_not_every_choice_has_is_refused_by_its_own_name(base: dict[str, Any], path: str) -> None:
    group, _, key = path.partition(".")
    config = copy.deepcopy(base)
    config[group][key] = -0.5
    with pytest.raises(Refused) as caught:
        check_needed(config)
    assert str(caught.value).startswith(f"{path}=-0.5; rule: ")


HUGE = 10**400  # more than a float holds
CLAIM = {"id": "axonn.fig3.intranode_latency", "terms": ["mpi", "nccl"], "least": 1e6, "most": 5e7}


@pytest.mark.parametrize(
    "claim", [[1], {}, {**CLAIM, "id": 5}, {**CLAIM, "terms": [1]}, {**CLAIM, "most": "all"}, {**CLAIM, "more": 1}]
)
def test_a_study_answers_a_claim_or_none(base: dict[str, Any], claim: Any) -> None:
    config = copy.deepcopy(base)
    for legal in (CLAIM, None):
        config["executor"]["claim"] = legal
        check_needed(config)
    config["executor"]["claim"] = claim
    with pytest.raises(Refused, match="rule: a claim's id, terms, least and most bytes, or null"):
        check_needed(config)


def number(text: str) -> Any:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return [] if text == "[]" else text


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("seed", -1, "seed=-1; rule: at least 0; legal: seed=0"),
        ("seed", 2**32, "rule: at most 4294967295"),
        ("batch", 5, "batch=5; rule: a group of keys, size among them"),
        ("grid.inter", 10**9, "rule: at most 100000"),
        ("model.shape.layers", 10**6, "model.shape.layers=1000000; rule: at most 10000"),
        ("model.shape.hidden", 10**8, "rule: at most 10000000"),
        ("reports", "", "reports=; rule: text, and not empty"),
        ("reports", "x" * 256, "names of at most 255 bytes"),
        ("data.folder", "a\0b", "rule: text, and not empty"),
        ("launch.deadline", float("inf"), "launch.deadline=inf; rule: more than 0 seconds; legal: launch.deadline=120"),
        ("model.dropout", 1, "model.dropout=1; rule: a share below 1"),
        ("model.shape", {}, "model.shape={}; rule: a group of keys, with a class path in _target_"),
        pytest.param(
            "measure.deadline", HUGE, "00; rule: more than 0 seconds; legal: measure.deadline=120", id="deadline"
        ),
        pytest.param("tag", HUGE, "00; rule: text or a number", id="tag"),
        ("checkpoints", "often", "checkpoints=often; rule: a whole number of blocks, auto, or null"),
    ],
)
def test_values_of_no_use(base: dict[str, Any], path: str, value: Any, told: str) -> None:
    assert told in refusal(altered(base, path, value))


def test_a_key_that_was_deleted(base: dict[str, Any]) -> None:
    config = copy.deepcopy(base)
    del config["batch"]["size"]
    assert refusal(config) == "there is no batch.size; rule: every key of conf/config.yaml; legal: batch.size=1"


@pytest.mark.parametrize(
    "override",
    [
        *("experiment.runs=5", "experiment.runs=[a]", "executor=null", "reports=5", "data.folder=8", "system=null"),
        *("executor.sources=5", "executor.sources=[/]", "executor.sources=[suite/../..]", "executor.label=5"),
        *("~rerun", "launch.beat=often", "launch.exclusive=5"),
    ],
)
def test_what_a_record_is_made_of_is_refused_before_there_is_one(override: str) -> None:
    with pytest.raises(Refused):
        expand([override])
