"""Each key of a run refuses a value of the wrong type or out of bounds, with its own name and a legal value."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from suite.bench.runs import freeze
from suite.config.compose import composed
from suite.config.refusals import every_key, refusal
from suite.config.run import RunConfig
from suite.core.errors import Refused


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    return freeze(composed(["system=sparsity_aware"]), "").settings


def altered(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(base)
    group = config
    *groups, name = path.split(".")
    for each in groups:
        group = group.setdefault(each, {})  # a system may have no simulation
    group[name] = value
    return config


def refused(config: dict[str, Any]) -> Refused:
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate(config)
    return refusal(caught.value, RunConfig)


ANY_NUMBER = ("tag",)


@pytest.mark.parametrize("path", [path for path in every_key(RunConfig) if path not in ANY_NUMBER])
def test_key_refuses_wrong_value_by_name(base: dict[str, Any], path: str) -> None:
    message = str(refused(altered(base, path, -0.5)))
    assert message.startswith(f"{path}=-0.5; rule: "), message


@pytest.mark.parametrize("path", [path for path, info in every_key(RunConfig).items() if info.examples])
def test_legal_value_of_a_refusal_is_legal(base: dict[str, Any], path: str) -> None:
    RunConfig.model_validate(altered(base, path, every_key(RunConfig)[path].examples[0]))  # type: ignore[index]


@pytest.mark.parametrize("path", every_key(RunConfig))
def test_every_key_has_help(path: str) -> None:
    info = every_key(RunConfig)[path]
    name = path.rpartition(".")[2]
    assert info.description or name in ("name", "_target_") or info.annotation.__doc__, path  # type: ignore[union-attr]


@pytest.mark.parametrize("path", ["bath", "batch.sise", "grid.iner", "measure.turn", "launch.thread"])
def test_unknown_key_gets_the_nearest(base: dict[str, Any], path: str) -> None:
    message = str(refused(altered(base, path, 1)))
    assert repr(path) in message
    assert "did you mean" in message


def test_configuration_is_dumped_as_it_was_given(base: dict[str, Any]) -> None:
    assert RunConfig.model_validate(base).model_dump(by_alias=True, exclude_unset=True) == base
