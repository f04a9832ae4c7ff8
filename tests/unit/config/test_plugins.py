"""Plug-ins: objects are built from a configuration inside out, or refused before anything is built.

Arguments are checked against annotations, results and members against the type that a place requires.
"""

from __future__ import annotations

import builtins
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from suite.config.compose import composed
from suite.config.plugins import build, check_class, misfit
from suite.config.protocols import System
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.protocols import CostModel, Schedule
from suite.runner.interleave import measure
from suite.runner.progress import Progress
from suite.runner.runs import expand
from suite.schedule import MessageDriven
from tests.support.refusals import refused

SCHEDULE = "suite.schedule.message_driven.MessageDriven"

# -- building ---------------------------------------------------------------------------------------------------------


def test_build_calls_targets_inside_out() -> None:
    built = build({"a": {"_target_": "suite.core.grid.Grid", "inter": 2}, "b": [1, {"_target_": SCHEDULE}], "c": "x"})
    assert built == {"a": Grid(inter=2), "b": [1, MessageDriven()], "c": "x"}
    assert build({"_target_": SCHEDULE, "cap": 2}) == MessageDriven(cap=2)
    offloaded = {"_target_": "suite.memory.offloaded", "bucket": 4}
    assert build({**offloaded, "_partial_": True}).keywords == {"bucket": 4}
    with refused(InvalidRequest, "entries", subject="there is no entries"):
        build(offloaded)


def test_hostile_config_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any place in a config, before anything else is called."""
    monkeypatch.setattr(builtins, "eval", lambda *_: pytest.fail("it ran"))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("it ran"))
    hostile = {"_target_": "subprocess.Popen", "args": ["true"]}
    for config in (hostile, [hostile], {"a": {"b": [hostile]}}, {"_target_": SCHEDULE, "cap": hostile}):
        with pytest.raises(InvalidRequest) as caught:
            build(config)
        assert "subprocess.Popen" in str(caught.value)
        assert "a module of the suite" in caught.value.rule


def test_plugin_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(InvalidRequest, "x", "suite.weights.Latest", rule="its place requires a Schedule"):
        build({"_target_": "suite.weights.Latest"}, "x", Schedule)
    machine = composed(["executor=simulated"])["executor"]["machine"]
    with refused(InvalidRequest, "x.within", "suite.schedule.OneFOneB", rule="its place requires a Link"):
        build({**machine, "within": {"_target_": "suite.schedule.OneFOneB"}}, "x")
    monkeypatch.setattr("suite.config.plugins.located", lambda key, path: lambda: 3)
    with refused(InvalidRequest, "x", "mine.anything", rule="a Schedule; it has no program()"):
        build({"_target_": "mine.anything"}, "x", Schedule)


# -- members ----------------------------------------------------------------------------------------------------------


class Plain:
    """A system with the required members alone."""

    def __init__(self, world: Any, config: Any) -> None: ...

    def close(self, *_: Any) -> Any: ...

    def evaluate(self, batches: Sequence[Any]) -> float:
        return 2.0

    probe = train_batch = observe = memory = close


class Derived(Plain, System):
    pass


def test_missing_members_are_named() -> None:
    path, missing = f"{__name__}.Plain", "it has no stream() and no score() and no decode() and no facts()"
    with refused(InvalidRequest, "system._target_", path, rule=missing):
        check_class("system._target_", path, System, ("world", "config"))
    with refused(InvalidRequest, "system._target_", f"{__name__}.Derived", rule="called with world"):
        check_class("system._target_", f"{__name__}.Derived", System, ("world",))
    assert misfit(3, [CostModel]) == "a CostModel; it has no compute() and no message() and no update() and no parts()"


# -- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow("ranks start")
def test_ranks_refuse_plugins_that_they_import(tmp_path: Path) -> None:
    size = ["batch.size=4", "batch.microbatch=2", "measure.rounds=1", "measure.batches=1", f"reports={tmp_path}"]
    override = "optimizer._target_=suite.schedule.OneFOneB"
    (record,) = measure(expand([override, *size]), Progress(1.0))
    assert record.outcome.value == "unsupported"
    assert override.partition("=")[2] in record.reason
    assert "Traceback" not in record.reason
