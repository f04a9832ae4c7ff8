"""Committed records are compared with the configuration that their experiment has now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from suite.core.record import Record
from suite.regression.committed import changed_settings
from suite.runner.runs import expand
from tests.support.report_records import make


def of_run(experiment: str = "samo_overhead", **changes: Any) -> Record:
    """A record of an experiment's first run, as its configuration is now."""
    (run, *_) = expand([f"experiment={experiment}"])
    return make(run.label, experiment=experiment, config={**run.settings, **changes})


def test_record_of_the_present_configuration_is_unchanged_by_keys_that_one_side_lacks() -> None:
    record = of_run()
    assert changed_settings(record) == ""
    assert changed_settings(of_run(removed_key=1, reports="elsewhere")) == ""
    shape = record.config["model"]["shape"]
    moved, other = ({**shape, "_target_": f"suite.elsewhere.{name}"} for name in ("Transformer", "VGG"))
    assert changed_settings(of_run(model={**record.config["model"], "shape": moved})) == ""
    assert changed_settings(of_run(model={**record.config["model"], "shape": other}))
    lacking = {name: value for name, value in record.config.items() if name != "model"}
    assert changed_settings(replace(record, config=lacking)) == ""


@pytest.mark.parametrize(("changes", "key"), [({"seed": 7}, "seed"), ({"grid": {"inter": 5}}, "grid.inter")])
def test_changed_value_of_a_key_is_named(changes: dict[str, Any], key: str) -> None:
    assert f"{key}=" in changed_settings(of_run(**changes))


@pytest.mark.parametrize("fields", [{"experiment": "../scale/laptop"}, {"experiment": "none"}, {"label": "none"}])
def test_record_without_a_run_of_its_name_is_changed(fields: dict[str, str]) -> None:
    (label,) = {of_run().label}
    record = make(fields.get("label", label), experiment=fields.get("experiment", "samo_overhead"))
    assert changed_settings(record)
