"""The reference of configuration keys is what the models say."""

from __future__ import annotations

import json

from suite.config.__main__ import DOCS
from suite.config.reference import page, schema
from suite.config.refusals import every_key
from suite.config.run import RunConfig


def test_written_reference_is_up_to_date() -> None:
    assert DOCS.read_text(encoding="utf-8") == page(), "python -m suite.config --docs writes it"


def test_every_key_stands_in_reference_and_schema() -> None:
    text, found = page(), json.loads(schema())
    for path, info in every_key(RunConfig).items():
        group, _, key = path.rpartition(".")
        name = type(info.annotation).__name__
        if f"## {path}\n" in text or name == "ModelMetaclass":
            continue  # a group
        assert f"| `{path}` |" in text, path
        parts = found if not group else found["$defs"][group.rpartition(".")[2].capitalize()]
        assert key in parts["properties"], path
