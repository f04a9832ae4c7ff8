"""Defaults stand in the models: Hydra merges them below the YAML files, and no YAML file repeats one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from suite.config.compose import CONF, composed
from suite.config.defaults import completed, defaults, without_defaults
from suite.config.refusals import every_key
from suite.config.run import RunConfig
from suite.runner.runs import expand
from suite.runner.store import deciding_keys

FORM = CONF / "launch" / "site_template.yaml"  # lists the keys that a site fills in


def leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from leaves(value, f"{path}.{key}".lstrip("."))
    else:
        yield path, data


USUAL = dict(leaves(defaults()))
# Experiments are apart: theirs may name a key for the reader.
CHOICES = [file for file in CONF.rglob("*.yaml") if file.parent.name != "experiment" and file != FORM]


@pytest.mark.parametrize("file", CHOICES, ids=lambda file: str(file.relative_to(CONF)))
def test_no_yaml_file_repeats_a_default(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    inside = file.parent != CONF and "@package _global_" not in text
    leaves_of_file = leaves(yaml.safe_load(text), file.parent.name if inside else "")
    assert not [
        key for key, value in leaves_of_file if key in USUAL and value == USUAL[key] and type(value) is type(USUAL[key])
    ]


def test_every_default_of_a_closed_group_is_composed() -> None:
    leaf_keys = dict(leaves(composed([])))
    groups = ("batch", "comm", "data", "grid", "launch", "measure", "precision", "pruning", "resume", "update")
    keys = [key for key in every_key(RunConfig) if key.partition(".")[0] in groups and "." in key]
    assert keys
    assert {key for key in keys if not any(each == key or each.startswith(f"{key}.") for each in leaf_keys)} == set()


def test_override_of_a_model_key_needs_no_plus() -> None:
    assert composed(["launch.partition=debug"])["launch"]["partition"] == "debug"
    (run,) = expand(["launch.partition=debug"])
    assert run.refusal is not None
    assert str(run.refusal).startswith("launch.partition=debug; rule: ")
    assert str(run.refusal).endswith("; legal: launch=slurm")
    (run,) = expand(["launch=slurm", "launch.partition=debug", "launch.submit=false"])  # as inside its job
    assert run.refusal is None


def test_an_absent_key_and_its_default_are_one_configuration() -> None:
    settings = expand([])[0].settings
    older = {name: value for name, value in settings.items() if name != "comm"} | {
        "launch": {name: value for name, value in settings["launch"].items() if name != "extra"}
    }
    assert deciding_keys(older) == deciding_keys({**older, "comm": {}}) == deciding_keys(settings)
    assert deciding_keys({**settings, "seed": 1}) != deciding_keys(settings)
    assert deciding_keys({**settings, "measure": {**settings["measure"], "discard_first": True}}) != deciding_keys(
        settings
    )  # 1 is not true


def test_completed_and_without_defaults_are_inverse() -> None:
    config = composed(["batch.size=32", "launch=slurm", "pruning=magnitude"])
    assert completed(without_defaults(config)) == config
    assert without_defaults(config)["batch"] == {"size": 32}
