"""Each key of a run refuses a value of the wrong type or out of bounds, with its own name and a legal value."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from suite.config.compose import composed
from suite.config.executor import BY_KIND
from suite.config.refusals import every_key, refusal
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.runner.runs import freeze

CHOICES = {"microbenchmark": "messages", "plugin": "unit"}  # of executors by their kind, where they differ


@cache
def base_of(kind: str) -> dict[str, Any]:
    """The settings of a run with an executor of this kind."""
    overrides = ["system=sparsity_aware", f"executor={CHOICES.get(kind, kind)}"]
    return {
        **freeze(composed(["system=sparsity_aware", "+experiment.study.scores=[top_1]"]), "").settings,
        "executor": composed(overrides)["executor"],
    }


@pytest.fixture
def base() -> dict[str, Any]:
    return base_of("full_graph")


KEYS = [
    *((path, "full_graph") for path in every_key(RunConfig) if not path.startswith("executor.")),
    *((path, kind) for kind, model in BY_KIND.items() for path in every_key(model, "executor")),
]


def field_of(path: str, kind: str) -> FieldInfo:
    return every_key(RunConfig, data={"executor": {"kind": kind}})[path]


def altered(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(base)
    group = config
    *groups, name = path.split(".")
    for each in groups:
        group = group.setdefault(each, {})  # a system may have no simulation
    group[name] = value
    return config


def refused(config: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate(config)
    return refusal(caught.value, RunConfig)


ANY_NUMBER = ("tag",)


@pytest.mark.parametrize(("path", "kind"), [each for each in KEYS if each[0] not in ANY_NUMBER])
def test_key_refuses_wrong_value_by_name(path: str, kind: str) -> None:
    message = str(refused(altered(base_of(kind), path, -0.5)))
    if path == "executor.kind":
        assert message.startswith("there is no executor.kind named '-0.5'; rule: one of ")
    else:
        assert message.startswith(f"{path}=-0.5; rule: "), message


@pytest.mark.parametrize(("path", "kind"), [each for each in KEYS if field_of(*each).examples])
def test_legal_value_of_a_refusal_is_legal(path: str, kind: str) -> None:
    RunConfig.model_validate(altered(base_of(kind), path, field_of(path, kind).examples[0]))  # type: ignore[index]


@pytest.mark.parametrize(("path", "kind"), KEYS)
def test_every_key_has_help(path: str, kind: str) -> None:
    info = field_of(path, kind)
    name = path.rpartition(".")[2]
    assert info.description or name in ("name", "_target_") or info.annotation.__doc__, path  # type: ignore[union-attr]


@pytest.mark.parametrize("path", ["bath", "batch.sise", "grid.iner", "measure.turn", "launch.thread"])
def test_unknown_key_gets_the_nearest(base: dict[str, Any], path: str) -> None:
    message = str(refused(altered(base, path, 1)))
    assert repr(path) in message
    assert "did you mean" in message


def test_configuration_is_dumped_unchanged(base: dict[str, Any]) -> None:
    assert RunConfig.model_validate(base).model_dump(by_alias=True, exclude_unset=True) == base
