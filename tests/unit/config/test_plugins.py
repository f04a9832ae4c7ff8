"""A plug-in holds a class path and arguments as a configuration names them, and builds the object."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from suite.config.plugins import Plugin
from suite.core.errors import InvalidRequest
from suite.core.protocols import Schedule
from suite.schedule import MessageDriven
from tests.support.refusals import refused

PATH = "suite.schedule.message_driven.MessageDriven"
READER = TypeAdapter(Plugin[Schedule])


def test_plugin_builds_its_class_with_further_arguments() -> None:
    plugin = READER.validate_python({"_target_": PATH, "cap": 2})
    assert plugin.required_type is Schedule
    assert plugin.build(pipeline_limit=5) == MessageDriven(pipeline_limit=5, cap=2)


def test_plugin_is_dumped_unchanged() -> None:
    for data in ({"_target_": PATH, "cap": 2}, {"_target_": "suite.memory.resident", "_partial_": True}):
        plugin = READER.validate_python(data)
        assert READER.dump_python(plugin) == plugin.data() == data
        assert READER.validate_python(plugin) == plugin


@pytest.mark.parametrize("data", [None, 3, {}, {"cap": 2}, {"_target_": 3}])
def test_group_without_a_class_path_is_no_plugin(data: object) -> None:
    with pytest.raises(ValidationError, match="a group of keys with a class path in _target_"):
        READER.validate_python(data)


def test_plugin_of_another_type_is_refused_as_it_is_built() -> None:
    plugin = READER.validate_python({"_target_": "suite.weights.Latest"})
    with refused(InvalidRequest, subject="=suite.weights.Latest", rule="its place requires a Schedule; Latest has no"):
        plugin.build()


def anything() -> Any:
    return 3


def test_result_of_an_unannotated_function_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("plugins", "results"):
        monkeypatch.setattr(f"suite.config.{module}.locate", lambda path: anything)
    plugin = READER.validate_python({"_target_": "mine.anything"})
    with refused(InvalidRequest, subject="which returns 3", rule="its place requires a Schedule"):
        plugin.build()
