"""Keys of an experiment: a wrong specification is refused when the configuration is composed."""

from __future__ import annotations

from typing import Any

import pytest

from suite.config.experiment import Expectation, Panel, Study
from suite.core import experiment as specs
from suite.core.errors import InvalidRequest
from suite.runner.runs import expand


def refusal(override: str) -> InvalidRequest:
    """The refusal of experiment=smoke with another key."""
    try:
        [run, *_] = expand(["experiment=smoke", override])
    except InvalidRequest as refused:
        return refused
    assert isinstance(run.refusal, InvalidRequest)
    return run.refusal


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("+experiment.pannels=[]", "experiment.pannels"),
        ("experiment.panels=[{key: ranks, metric: batch_time}]", "experiment.panels.0.title"),
        ("experiment.panels=[{title: a, key: ranks, metric: 3}]", "experiment.panels.0.metric"),
        ("experiment.panels=[{title: a, key: ranks, metric: b, titel: c}]", "experiment.panels.0.titel"),
        ("experiment.panels=[{title: a, key: ranks, metrics: {a: b}}]", "experiment.panels.0"),
        ("experiment.panels=[{title: a, key: bath.size, metric: b}]", "experiment.panels.0.key"),
        ("experiment.panels=[{title: a, key: ranks, metric: b, curve: rank}]", "experiment.panels.0.curve"),
        ("experiment.expect=[{kind: loss, what: a, at_most: b}]", "experiment.expect.0.at_most"),
        ("experiment.expect=[{kind: lost, what: a, at_most: 1}]", "experiment.expect.0.kind"),
        ("experiment.expect=[{kind: loss, what: a, at_most: 1, of: b}]", "experiment.expect.0.of"),
        ("experiment.expect=[{kind: share, what: a, system: b, at_most: 1, of: []}]", "experiment.expect.0"),
        ("experiment.study={scores: top_1}", "experiment.study.scores"),
        ("experiment.study={scores: []}", "experiment.study"),
    ],
)
def test_wrong_specification_is_refused_by_its_key(override: str, key: str) -> None:
    refused = refusal(override)
    assert refused.key == key
    assert refused.rule


@pytest.mark.parametrize(
    ("model", "spec"),
    [(Panel, specs.PanelSpec), (Study, specs.StudySpec)],
)
def test_model_and_specification_have_the_same_keys(model: Any, spec: Any) -> None:
    assert list(model.model_fields) == list(spec.__dataclass_fields__)


def test_every_expectation_has_a_model_with_its_keys() -> None:
    models = {each.model_fields["kind"].annotation.__args__[0]: each for each in Expectation.__origin__.__args__}
    assert models.keys() == specs.EXPECTATIONS.keys()
    for kind, spec in specs.EXPECTATIONS.items():
        assert set(models[kind].model_fields) - {"kind"} == set(spec.__dataclass_fields__) - {"kind"}
