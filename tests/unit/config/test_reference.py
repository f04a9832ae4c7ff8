"""The reference of configuration keys is what the models say."""

from __future__ import annotations

import json

import pytest

from suite.cli.config import DOCS
from suite.config.executor import BY_KIND, ExecutorSettings
from suite.config.reference import page, schema
from suite.config.refusals import every_key, groups_of
from suite.config.run import RunConfig


def test_written_reference_is_up_to_date() -> None:
    assert DOCS.read_text(encoding="utf-8") == page(), "suite config --docs writes it"


def test_every_key_stands_in_reference_and_schema() -> None:
    text, json_schema = page(), json.loads(schema())
    for path, info in every_key(RunConfig).items():
        group, _, key = path.rpartition(".")
        if groups_of(info):
            assert f"## {path}\n" in text or f"## {path}, " in text, path
            continue
        assert f"| `{path}` |" in text, path
        if group.startswith("executor"):
            continue  # see below
        name = group.rpartition(".")[2].capitalize()
        parts = json_schema if not group else json_schema["$defs"].get(f"{name}Config") or json_schema["$defs"][name]
        assert key in parts["properties"], path


@pytest.mark.parametrize(("kind", "model"), BY_KIND.items())
def test_each_kind_of_executor_has_a_table_and_a_schema(kind: str, model: type[ExecutorSettings]) -> None:
    table = page().partition(f"\n## executor, kind: {kind}\n")[2].partition("\n## ")[0]
    properties = json.loads(schema())["$defs"][model.__name__]["properties"]
    for info_name, info in model.model_fields.items():
        key = info.alias or info_name
        assert key in properties
        assert groups_of(info) or f"| `executor.{key}` |" in table, key
    assert properties["kind"]["const"] == kind
