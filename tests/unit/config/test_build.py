"""Objects are built from a configuration inside out, or refused before anything is built."""

from __future__ import annotations

import builtins
import subprocess

import pytest

from suite.config.plugins import build
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.grid import Grid
from suite.schedule import MessageDriven
from tests.support.refusals import refused

SCHEDULE = "suite.schedule.message_driven.MessageDriven"


def test_build_calls_targets_inside_out() -> None:
    built = build({"a": {"_target_": "suite.core.grid.Grid", "inter": 2}, "b": [1, {"_target_": SCHEDULE}], "c": "x"})
    assert built == {"a": Grid(inter=2), "b": [1, MessageDriven()], "c": "x"}


def test_extra_arguments_go_to_the_outermost_target() -> None:
    assert build({"_target_": SCHEDULE, "cap": 2}, pipeline_limit=5) == MessageDriven(pipeline_limit=5, cap=2)
    assert build({"plain": 1}, more=2) == {"plain": 1, "more": 2}


def test_target_that_is_no_class_is_refused() -> None:
    with refused(InvalidRequest, subject="is a tuple", rule="a class or a function"):
        build({"_target_": "suite.gnn.plan.ASSIGNMENTS"})


def test_unknown_argument_gets_the_nearest() -> None:
    with refused(UnknownName, "limit", "limit", legal="did you mean 'pipeline_limit'?"):
        build({"_target_": SCHEDULE, "limit": 3})
    with refused(UnknownName, "limit", "limit"):
        build({"_target_": SCHEDULE, "_partial_": True}, limit=3)


def test_missing_argument_is_named_unless_it_comes_later() -> None:
    config = {"_target_": "suite.memory.offloaded"}
    with refused(InvalidRequest, subject="there is no entries", rule="offloaded requires it, a whole number"):
        build({**config, "bucket": 4})
    assert build({**config, "_partial_": True, "bucket": 4}).keywords == {"bucket": 4}


def test_inner_plugin_of_another_type_is_refused_early() -> None:
    inner = {"_target_": "suite.schedule.OneFOneB"}
    with refused(InvalidRequest, "within", "suite.schedule.OneFOneB", rule="its place requires a Link"):
        build({**MACHINE, "within": inner})


MACHINE = {
    "_target_": "suite.simulate.network.machine.Machine",
    "name": "lab",
    "devices_per_node": 4,
    "memory": 79.0e9,
    "peak": {"float32": 67.0e12},
    "memory_bandwidth": 3.35e12,
    "within": {"_target_": "suite.simulate.network.machine.Link", "latency": 5.0e-6, "bandwidth": 450.0e9},
    "between": {"_target_": "suite.simulate.network.machine.Link", "latency": 5.0e-6, "bandwidth": 25.0e9},
    "adapters": 4,
    "host": {"_target_": "suite.simulate.network.machine.Link", "latency": 1.0e-5, "bandwidth": 50.0e9},
    "source": "data sheets",
}


def test_hostile_config_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any place in a config, before anything else is called."""
    monkeypatch.setattr(builtins, "eval", lambda *_: pytest.fail("it ran"))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("it ran"))
    hostile = {"_target_": "subprocess.Popen", "args": ["true"]}
    for config in (hostile, [hostile], {"a": {"b": [hostile]}}, {"_target_": SCHEDULE, "cap": hostile}):
        with refused(
            InvalidRequest, subject="in no such folder", rule="a module of the suite, its baselines, or a folder of"
        ):
            build(config)
