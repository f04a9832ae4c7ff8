"""A class that inherits from a protocol has its optional members; for other classes the missing ones are listed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from suite.config.plugins import Plugin
from suite.config.protocols import PartitionMethod, Sampler, System
from suite.config.results import check_class, object_mismatch
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.members import missing_members
from suite.core.protocols import CostModel, DataSource, MaskMethod, Transport, UpdateRule
from suite.engine.replay_system import ReplaySystem
from suite.workload.transformer import Network
from tests.support.refusals import refused


class Plain:
    """A system with the required members alone."""

    @classmethod
    def probe(cls, config: Any) -> Any: ...

    def __init__(self, world: Any, config: Any) -> None: ...

    def train_batch(self, batch: Any) -> float:
        return 1.0

    def evaluate(self, batches: Sequence[Any]) -> float:
        return 2.0

    def observe(self) -> Any: ...

    def memory(self, batch: Any) -> Any: ...

    def close(self) -> None: ...


class Derived(Plain, System):
    pass


def test_derived_system_has_the_optional_members() -> None:
    system = Derived(None, None)
    assert missing_members(Derived, System) == missing_members(system, System) == []
    assert (system.streams, system.facts(), system.score([]), system.decode([])) == (
        False,
        {},
        {"loss": 2.0},
        None,
    )
    with refused(Unsupported, subject="a stream of Derived", rule="its batches are trained one by one"):
        system.stream([])


def test_system_without_the_optional_members_is_refused_by_their_names() -> None:
    with refused(
        InvalidRequest,
        "system._target_",
        "mine.Plain",
        subject="which has no stream() and no score() and no decode() and no facts()",
        legal="a class that inherits from suite.config.protocols.System",
    ):
        check_class("system._target_", "mine.Plain", Plain, System, ("world", "config"))


def test_replay_of_the_engine_has_every_member() -> None:
    assert missing_members(ReplaySystem, System) == ["probe()"]


class Rule(UpdateRule):
    states = ()

    def step(self, state: Any, grad: Any) -> None: ...


class Method(MaskMethod):
    def draws_after(self, batches: int) -> bool:
        return False

    def draw(self, view: Any) -> None: ...


class Parts(PartitionMethod):
    pass


class Sampling(Sampler):
    pass


class Shape(Network):
    def shapes(self, width: int = 4) -> Any: ...


class Source(DataSource):
    pass


class Cost(CostModel):
    pass


class Lanes(Transport):
    any_order = True


DEFAULTS: list[tuple[Callable[[], Any], type, dict[str, Any]]] = [
    (Rule, UpdateRule, {"drift_states": ()}),
    (Method, MaskMethod, {"scope": "layer", "searches": False, "distances": None}),
    (Parts, PartitionMethod, {"name": "parts"}),
    (Sampling, Sampler, {"streams": False}),
    (Shape, Network, {"content": "", "tied": False, "tokens": None, "pixels": 0, "least_microbatch": 1}),
    (Lanes, Transport, {"turns": False, "polls": True}),
]


@pytest.mark.parametrize(("make", "protocol", "values"), DEFAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_defaults_of_a_derived_class(make: Callable[[], Any], protocol: type, values: dict[str, Any]) -> None:
    value = make()
    assert not missing_members(value, protocol)
    assert {name: getattr(value, name) for name in values} == values


def test_default_methods_return_nothing() -> None:
    assert Method().state_dict() == Cost().parts(None) == Source().score([], []) == {}  # type: ignore[arg-type]
    assert Parts().notes() == ()


def test_refused_object_names_its_missing_members(monkeypatch: pytest.MonkeyPatch) -> None:
    assert object_mismatch(3, CostModel) == (
        "a CostModel; it has no compute() and no message() and no update() and no parts()"
    )
    assert object_mismatch(3, CostModel | None).startswith("CostModel or null; it has no compute()")
    for name in ("plugins", "results"):
        monkeypatch.setattr(f"suite.config.{name}.locate", lambda path: lambda: Plain(None, None))
    plugin: Plugin[DataSource] = Plugin("mine.source", {}, required_type=DataSource, place="data.source")
    with refused(InvalidRequest, "data.source", "mine.source", rule="requires a DataSource; it has no batch() and no"):
        plugin.build()
