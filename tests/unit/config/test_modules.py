"""Optional members of a user's module have defaults, and a missing required one is refused by name."""

from __future__ import annotations

from types import ModuleType

import pytest

from suite.config import modules
from suite.config.modules import network_module, source_module
from suite.core.errors import InvalidRequest
from tests.support.refusals import refused


def stand_in(monkeypatch: pytest.MonkeyPatch, **members: object) -> None:
    module = ModuleType("mine")
    vars(module).update(members)
    monkeypatch.setattr(modules, "module", lambda path: module)


def test_network_module_needs_no_scores_and_no_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, layers=list, ties=list, loss=max, helper=min)
    module = network_module("mine")
    assert (module.layers, module.ties, module.loss) == (list, list, max)
    assert (module.scores, module.SCORES, module.decode) == (None, (), None)


def test_optional_members_of_a_network_module_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, layers=list, ties=list, loss=max, scores=min, SCORES=("top",), decode=sum)
    module = network_module("mine")
    assert (module.scores, module.SCORES, module.decode) == (min, ("top",), sum)


def test_network_module_without_a_required_member_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, layers=list)
    with refused(InvalidRequest, "model.network", "mine", legal="suite.models.gpt"):
        network_module("mine")


def test_source_module_checks_the_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    source_module("mine").check_shape("data", None, object())
    seen: list[object] = []
    stand_in(monkeypatch, check_shape=lambda *values: seen.extend(values))
    source_module("mine").check_shape("data", None, 3)
    assert seen == ["data", None, 3]
