"""Each kind of executor takes its own keys, and refuses others with the kind or the key that was meant."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest

from suite.config import checks
from suite.config.compose import composed
from suite.config.executor import BY_KIND, KINDS, EmulatedExecutor, PluginExecutor, reads_graphs
from suite.core.errors import InvalidRequest, UnknownName
from suite.runner.runs import expand

CHOICES = {"microbenchmark": "messages", "plugin": "unit"}  # of conf/executor by kind, where they differ


@cache
def composed_with(kind: str) -> dict[str, Any]:
    return composed([f"executor={CHOICES.get(kind, kind)}"])


def refused(base: str, **keys: Any) -> InvalidRequest:
    """The refusal of the executor of a kind with other keys. None in `keys` deletes one."""
    config = copy.deepcopy(composed_with(base))
    config["executor"] |= keys
    config["executor"] = {key: value for key, value in config["executor"].items() if value is not None}
    with pytest.raises(InvalidRequest) as caught:
        checks.checked_run(config)
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_model(kind: str) -> None:
    executor = checks.checked_run(composed_with(kind)).executor
    assert type(executor) is BY_KIND[kind]
    assert executor.kind == kind
    assert executor.plain() == composed_with(kind)["executor"]


@pytest.mark.parametrize(
    ("kinds", "member"),
    [
        (("real", "full_graph", "emulated", "microbenchmark", "replay"), "starts_ranks"),
        (("real", "full_graph", "replay"), "trains"),
        (("replay",), "one_process"),
    ],
)
def test_properties_follow_from_the_kind(kinds: tuple[str, ...], member: str) -> None:
    assert tuple(kind for kind in KINDS if getattr(BY_KIND[kind], member)) == kinds


def test_only_runs_on_whole_graphs_read_a_graph() -> None:
    assert reads_graphs({"kind": "full_graph"})
    assert reads_graphs({"kind": "plugin", "graphs": True})
    assert not any(reads_graphs(each) for each in ({"kind": "plugin"}, {"kind": "real", "graphs": True}, None, "real"))


@pytest.mark.parametrize(
    ("kind", "nearest"),
    [("rael", "real"), ("simulate", "simulated"), ("fullgraph", "full_graph"), ("micro_benchmark", "microbenchmark")],
)
def test_unknown_kind_gets_the_nearest(kind: str, nearest: str) -> None:
    error = refused("real", kind=kind)
    assert isinstance(error, UnknownName)
    assert str(error).startswith(f"there is no executor.kind named '{kind}'; rule: one of ")
    assert str(error).endswith(f"did you mean '{nearest}'?")


def test_kind_is_required() -> None:
    message = str(refused("real", kind=None))
    assert message.startswith("there is no executor.kind; rule: one of real, full_graph, ")
    assert message.endswith("legal: executor.kind=real")


@pytest.mark.parametrize(
    ("kind", "key", "nearest"),
    [
        ("real", "labl", "label"),
        ("emulated", "jiter", "jitter"),
        ("emulated", "straglers", "stragglers"),
        ("simulated", "acount", "account"),
        ("check", "tick", "ticks"),
    ],
)
def test_unknown_key_gets_the_nearest_of_its_kind(kind: str, key: str, nearest: str) -> None:
    error = refused(kind, **{key: 1})
    assert isinstance(error, UnknownName)
    assert f"'executor.{key}'" in str(error)
    assert f"did you mean 'executor.{nearest}'?" in str(error)


@pytest.mark.parametrize(
    ("kind", "key", "value", "other"),
    [
        ("real", "jitter", {"spread": 0.1}, "emulated"),
        ("simulated", "ticks", {"forward": 1}, "check"),
        ("check", "plan", "search", "simulated"),
        ("replay", "graphs", True, "plugin"),
    ],
)
def test_key_of_another_kind_names_that_kind(kind: str, key: str, value: Any, other: str) -> None:
    message = str(refused(kind, **{key: value}))
    assert message.startswith(f"executor.{key}=")
    assert message.endswith(f"rule: runs with executor.kind={other} have this key; legal: executor={other}")


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("emulated", {"jitter": {"kind": "uniforn"}}, "executor.jitter.kind=uniforn; rule: one of lognormal, uniform"),
        ("emulated", {"jitter": {"sprad": 1}}, "there is no config key named 'executor.jitter.sprad'"),
        ("emulated", {"network": {"latency": 1.0}}, "there is no executor.network.bandwidth; rule: executor.kind="),
        ("emulated", {"cost": None}, "there is no executor.cost; rule: executor.kind=emulated requires it"),
        ("emulated", {"stragglers": {"a": 2}}, "rule: a finite factor above 0 for each rank, or null"),
        ("check", {"ticks": {"forward": 0, "backward": 1, "update": 0}}, "executor.ticks.forward=0; rule: at least 1"),
        ("simulated", {"machine": 3}, "executor.machine=3; rule: a group of keys with a class path"),
        ("plugin", {"target": 3, "_target_": 3}, "executor._target_=3; rule: text"),
    ],
)
def test_wrong_value_is_refused_with_its_key(kind: str, keys: dict[str, Any], message: str) -> None:
    assert message in str(refused(kind, **keys))


def test_keys_of_a_plugin_are_the_arguments_of_its_class() -> None:
    executor = checks.checked_run(composed_with("plugin")).executor
    assert isinstance(executor, PluginExecutor)
    assert {*executor.more} == {"forward", "backward", "batches"}
    assert executor.build().check
    (run,) = expand(["executor=unit", "+executor.bathces=3"])
    assert "did you mean 'executor.batches'" in str(run.refusal)


def test_ranks_of_stragglers_are_numbers_in_json_too() -> None:
    config = copy.deepcopy(composed_with("emulated"))
    config["executor"]["stragglers"] = {"3": 1.5}
    executor = checks.checked_run(config).executor
    assert isinstance(executor, EmulatedExecutor)
    assert executor.stragglers == {3: 1.5}


@pytest.mark.parametrize("key", ["jitter", "operation", "sizes"])
def test_refused_values_of_one_executor_leave_a_record(key: str) -> None:
    """The other runs of an experiment are made: such a key is needed for no record."""
    executor = "messages" if key != "jitter" else "emulated"
    (run,) = expand([f"executor={executor}", "grid.data=2", f"executor.{key}=5"])
    assert run.refusal is not None
    assert run.outline.executor.kind == ("microbenchmark" if key != "jitter" else "emulated")
