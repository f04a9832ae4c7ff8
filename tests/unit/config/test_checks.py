"""Each key of a composed configuration is refused by its own name, with a legal value, before anything uses it."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml

from suite.config import checks
from suite.config.commands import Draw
from suite.config.compose import composed
from suite.config.refusals import every_key, legal_value
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.runner.runs import expand, freeze


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    return composed(["+experiment.study.scores=[top_1]"])


@pytest.fixture(scope="module")
def graphs() -> dict[str, Any]:
    return composed(["executor=full_graph", "system=sparsity_aware", "model=gcn"])


def altered(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    config: Any = copy.deepcopy(base)
    *groups, name = path.split(".")
    group_values = config
    for group in groups:
        group_values = group_values.setdefault(group, {})
    group_values[name] = value
    return dict(config)


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        checks.checked_run(config)
    return str(caught.value)


WRONG = (None, -0.5, "no such word", [], {}, True, 10**30)
FULL_GRAPH = {"executor": {"kind": "full_graph"}}
DRAWN = {f"draw.{name}": info for name, info in Draw.model_fields.items()}
EVERY = {**every_key(RunConfig, data=FULL_GRAPH), **DRAWN}


def refusal_of(config: dict[str, Any], path: str) -> InvalidRequest | None:
    try:
        if path in DRAWN:
            checks.checked(checks.Drawing, config)
        error = freeze(copy.deepcopy(config), "").refusal
    except InvalidRequest as error:
        return error
    return error if isinstance(error, InvalidRequest) else None


@pytest.mark.parametrize("path", [path for path, info in EVERY.items() if legal_value(info)])
def test_legal_value_named_in_refusal_is_accepted(base: dict[str, Any], graphs: dict[str, Any], path: str) -> None:
    config = graphs if path.partition(".")[0] in ("graph", "partitioner", "exchange", "draw") else base
    checks_named = 0
    for value in WRONG:
        refused = str(refusal_of(altered(config, path, value), path) or "")
        match = re.search(rf"legal: {re.escape(path)}=(\S.*)$", refused)
        if match:
            checks_named += 1
            assert refusal_of(altered(config, path, yaml.safe_load(match[1])), path) is None, (value, match[1])
    assert checks_named > 0


HUGE = 10**400  # more than a float holds


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("seed", -1, "seed=-1; rule: at least 0; legal: seed=0"),
        ("seed", 2**32, "rule: at most 4294967295"),
        ("batch.size", None, "batch.size=null; rule: a whole number"),
        ("batch", 5, "batch=5; rule: a group of keys"),
        ("grid.inter", 10**9, "rule: at most 100000"),
        ("model.shape.layers", 10**6, "model.shape.layers=1000000; rule: at most 10000"),
        ("model.shape.hidden", 10**8, "rule: at most 10000000"),
        ("reports", "", "reports=; rule: text that is not empty"),
        ("reports", "x" * 256, "at most 255 bytes"),
        ("data.folder", "a\0b", "rule: text without a null character"),
        ("launch.deadline", float("inf"), "launch.deadline=inf; rule: at most 31622400 seconds"),
        ("model.dropout", 1, "model.dropout=1; rule: at least 0 and below 1"),
        ("model.shape", {}, "model.shape={}; rule: a group of keys with a class path in _target_"),
        pytest.param("measure.deadline", HUGE, "00...; rule: at most 31622400 seconds", id="deadline"),
        pytest.param("tag", HUGE, "00...; rule: text or a number", id="tag"),
        (
            "activation_checkpointing",
            "often",
            "activation_checkpointing=often; rule: a whole number of blocks, auto, or null",
        ),
    ],
)
def test_unusable_optimizer_values_are_refused(base: dict[str, Any], path: str, value: Any, message: str) -> None:
    assert message in refusal(altered(base, path, value))


def test_a_deleted_key_takes_its_default() -> None:
    deleted = [
        "~batch.size",
        "~rerun",
        "~launch.heartbeat_interval",
        "~pruning.scope",
        "~measure.validate",
        "~comm",
        "~optimizer.bucket_numel",
    ]
    assert composed(deleted) == composed([])
    (run,) = expand(["~batch.size", "~rerun", "~launch.heartbeat_interval"])
    assert run.refusal is None
    assert run.settings == expand([])[0].settings


def test_a_deleted_key_without_default_is_refused(base: dict[str, Any]) -> None:
    config = copy.deepcopy(base)
    del config["model"]["network"]
    legal = "legal: model.network=suite.models.gpt"
    assert refusal(config) == f"there is no model.network; rule: every run has this key; {legal}"


@pytest.mark.parametrize(
    "override",
    [
        *("experiment.runs=5", "experiment.runs=[a]", "executor=null", "reports=5", "data.folder=8", "system=null"),
        *("executor.sources=5", "executor.sources=[/]", "executor.sources=[suite/../..]", "executor.label=5"),
        *("rerun=5", "launch.heartbeat_interval=often", "launch.exclusive=5"),
    ],
)
def test_wrong_key_of_a_record_is_refused(override: str) -> None:
    with pytest.raises(InvalidRequest):
        expand([override])
