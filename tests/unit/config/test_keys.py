"""Each key refuses a value of the wrong type or out of bounds by its own name, with a legal value. Defaults of keys."""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from typing import Any

import pytest
import yaml

from suite.cli.config import DOCS
from suite.config.compose import composed
from suite.config.executor import BY_KIND, reads_graphs
from suite.config.reference import page, schema
from suite.config.refusals import every_key, legal_value, validated
from suite.config.run import RunConfig, checked_run
from suite.core.errors import InvalidRequest
from suite.runner.runs import expand, freeze
from suite.runner.store import deciding_keys
from tests.support.configs import unchecked
from tests.support.drawn import drawn
from tests.support.refusals import refused

CHOICES = {"microbenchmark": "messages", "plugin": "volumes"}  # of conf/executor by kind, where they differ
KEYS = [
    *((path, "full_graph") for path in every_key(RunConfig) if not path.startswith("executor.")),
    *((path, kind) for kind, model in BY_KIND.items() for path in every_key(model, "executor")),
]
EVERY = every_key(RunConfig, data={"executor": {"kind": "full_graph"}})


@cache
def settings(kind: str) -> dict[str, Any]:
    """The settings of a run with an executor of this kind."""
    run = freeze(composed(["system=sparsity_aware", "+experiment.study.scores=[top_1]"]), "").settings
    overrides = ["system=sparsity_aware", f"executor={CHOICES.get(kind, kind)}"]
    return {**run, "executor": composed(overrides)["executor"]}


# -- types and bounds -------------------------------------------------------------------------------------------------


def test_every_key_refuses_a_wrong_value_by_name_and_accepts_its_example() -> None:
    for path, kind in KEYS:
        if path == "tag":  # any number
            continue
        with refused(InvalidRequest, path) as caught:
            validated(RunConfig, unchecked(settings(kind), {path: -0.5}))
        assert caught.value.rule, path
        for example in (every_key(RunConfig, data={"executor": {"kind": kind}})[path].examples or ())[:1]:
            RunConfig.model_validate(unchecked(settings(kind), {path: example}))


def refusal_of(config: dict[str, Any]) -> InvalidRequest | None:
    try:
        error = freeze(copy.deepcopy(config), "").refusal
    except InvalidRequest as refused:
        return refused
    return error if isinstance(error, InvalidRequest) else None


@pytest.mark.parametrize("path", drawn([path for path, info in EVERY.items() if legal_value(info)], n=20))
def test_legal_value_named_in_refusal_is_accepted(path: str) -> None:
    of_graphs = ["executor=full_graph", "system=sparsity_aware", "model=gcn"]
    whole_graph = path.partition(".")[0] in ("graph", "partitioner", "exchange")
    base = composed(of_graphs if whole_graph else ["+experiment.study.scores=[top_1]"])
    advised = 0
    for value in (None, -0.5, "no such word", [], {}, True, 10**30):
        error = refusal_of(unchecked(base, {path: value}))
        if error is not None and error.legal.startswith(f"{path}="):
            advised += 1
            legal = yaml.safe_load(error.legal.partition("=")[2])
            assert refusal_of(unchecked(base, {path: legal})) is None, (value, error.legal)
    assert advised > 0


# -- kinds of executors -----------------------------------------------------------------------------------------------


def test_each_kind_has_its_model_and_properties() -> None:
    for kind in BY_KIND:
        executor = checked_run(composed([f"executor={CHOICES.get(kind, kind)}"])).executor
        assert (type(executor), executor.kind) == (BY_KIND[kind], kind)
        starts = kind in ("real", "full_graph", "emulated", "microbenchmark", "replay")
        trains = kind in ("real", "full_graph", "replay")
        assert (executor.starts_ranks, executor.trains, executor.one_process) == (starts, trains, kind == "replay")
    assert reads_graphs({"kind": "full_graph"})
    assert reads_graphs({"kind": "plugin", "graphs": True})
    assert not any(reads_graphs(each) for each in ({"kind": "plugin"}, {"kind": "real", "graphs": True}, None, "real"))


# -- defaults ---------------------------------------------------------------------------------------------------------


def test_a_deleted_key_takes_its_default_or_is_refused() -> None:
    deleted = ("batch.size", "rerun", "launch.heartbeat_interval", "pruning.scope", "comm", "optimizer.bucket_numel")
    assert composed([f"~{key}" for key in deleted]) == composed([])
    (run,) = expand(["~batch.size", "~rerun", "~launch.heartbeat_interval"])
    assert run.refusal is None
    assert run.settings == expand([])[0].settings
    config = copy.deepcopy(composed([]))
    del config["model"]["network"]
    with refused(InvalidRequest, "model.network", None, legal="model.network=suite.models.gpt"):
        checked_run(config)


def test_an_absent_key_and_its_default_are_one_configuration() -> None:
    settings = expand([])[0].settings
    older = {name: value for name, value in settings.items() if name != "comm"} | {
        "launch": {name: value for name, value in settings["launch"].items() if name != "extra"}
    }
    assert deciding_keys(older) == deciding_keys({**older, "comm": {}}) == deciding_keys(settings)
    assert deciding_keys({**settings, "seed": 1}) != deciding_keys(settings)
    true = {**settings, "measure": {**settings["measure"], "discard_first": True}}
    assert deciding_keys(true) != deciding_keys(settings), "1 is not true"


# -- reference --------------------------------------------------------------------------------------------------------


def test_written_reference_is_up_to_date_and_has_every_key() -> None:
    text = page()
    assert DOCS.read_text(encoding="utf-8") == text, "suite config --docs writes it"
    assert [
        path for path in every_key(RunConfig) if not re.search(rf"^(\| `|## .*\b){re.escape(path)}\b", text, re.M)
    ] == []
    models = json.loads(schema())["$defs"]
    for kind, model in BY_KIND.items():
        assert models[model.__name__]["properties"]["kind"]["const"] == kind
