"""Decides what each place of a config asks of what is named there: a schedule of `schedule`, data of `data.source`.

A class path may name any part of the suite or a module of one's own. What is no part of the kind that its place wants
is refused before anything is made of it; what only ranks load (torch and what needs it), they look at themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from suite.core.build import PARTIAL, TARGET, check_makes, locate
from suite.core.errors import Refused
from suite.core.fits import check_arguments, lacking
from suite.core.protocols import (
    CostModel,
    Data,
    Executor,
    Missing,
    Ready,
    Schedule,
    System,
    UpdateRule,
    Value,
    WeightPolicy,
)
from suite.core.trace import Trace
from suite.memory.layout import Layout
from suite.workload.gcn import GCN
from suite.workload.shapes import Network


class LossScale(Protocol):
    """By what losses are multiplied (suite.engine.scale)."""

    def observe(self, overflow: bool) -> None: ...

    def state(self) -> dict[str, float]: ...

    def restore(self, state: dict[str, float]) -> None: ...


class Method(Protocol):
    """How a ticket is drawn (suite.pruning.ticket)."""

    def due(self, batches: int) -> bool: ...

    def draw(self, view: Any) -> Any: ...


class Graphs(Protocol):
    """Where a graph comes from (suite.data.graphs)."""

    def load(self, seed: int) -> Any: ...


class Partitioner(Protocol):
    """suite.gnn.partition.protocol"""

    def probe(self) -> Ready | Missing: ...

    def parts(self, matrix: Any, k: int, seed: int) -> Any: ...


class StandIn(Protocol):
    """What a rank builds in a system's place, and its parent asks before."""

    source: Any

    def check(self, config: Mapping[str, Any]) -> None: ...

    def probe(self, config: Mapping[str, Any]) -> Ready | Missing: ...

    def train_batch(self, batch: Value | None = None) -> None: ...

    def observe(self) -> Trace: ...

    def memory(self, batch: Value | None = None) -> Any: ...

    def close(self) -> None: ...


class Prepares(Protocol):
    """What a parent makes for its ranks (suite.gnn.prepare)."""

    def check(self, config: Mapping[str, Any]) -> None: ...


class Replays(Protocol):
    """What one rank builds in the place of all ranks of a system."""

    def train_batch(self, batch: Value) -> float: ...

    def stream(self, batches: Sequence[Value]) -> tuple[list[float], list[float]]: ...

    def score(self, batches: Sequence[Value]) -> dict[str, float]: ...

    def observe(self) -> Trace: ...

    def memory(self, batch: Value) -> Any: ...

    def close(self) -> None: ...


class Exchange(Protocol):
    """How rows travel for a product (suite.gnn.exchange)."""

    def __call__(self, x: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Place:
    """wanted: what is made there; named: of a class that is asked before it is made, the names of what it is made with;
    takes: the names of what a function is given that is called later"""

    wanted: Any
    named: Sequence[str] = ()
    takes: Sequence[str] = ()


PLACES = {  # what a parent loads, without torch
    "schedule": Place(Schedule),
    "weights": Place(WeightPolicy),
    "memory.layout": Place(Callable[..., Layout], takes=("entries", "moments", "dtype", "half")),
    "model.shape": Place(Network | GCN),
    "precision.loss_scale": Place(LossScale),
    "executor": Place(Executor),
    "executor.cost": Place(CostModel),
    "executor.system": Place(StandIn, named=("world", "config")),
    "executor.prepares": Place(Prepares, named=("config", "folder")),
    "executor.stand_ins.*.source": Place(Graphs),
    "graph.source": Place(Graphs),
    "partitioner": Place(Partitioner),
}
OF_DATA = {"data.source": Place(Data)}  # whose module may need a package of its own: where it is read
OF_RANKS = {
    "optimizer": Place(UpdateRule),
    "pruning.ticket": Place(Method),
    "system": Place(System, named=("world", "config")),
    "exchange": Place(Exchange, named=("share", "world", "watch", "dtype")),
    "executor.replays": Place(Replays, named=("made", "world", "config")),
}


def check_parts(config: Mapping[str, Any], places: Mapping[str, Place] = PLACES) -> None:
    """Raises Refused for the first class path that names no part of the kind that its place wants."""
    for wanted, place in places.items():
        for path, value in _at(config, wanted.split(".")):
            if isinstance(value, str):
                _check_named(path, value, place)
            elif isinstance(value, Mapping) and TARGET in value and place.named:
                _check_named(f"{path}.{TARGET}", value[TARGET], place)
            elif isinstance(value, Mapping) and TARGET in value:
                check_makes(path, value, place.wanted)
                _check_takes(path, value, place.takes)
                _check_arguments(path, value)


def _check_arguments(path: str, value: Any) -> None:
    """Raises Refused, with its whole key, for the first argument of a part, or of a part inside it, of another kind
    than its class is annotated with."""
    if isinstance(value, Mapping):
        if TARGET in value:
            plain = {key: each for key, each in value.items() if key not in (TARGET, PARTIAL) and not _has_parts(each)}
            check_arguments(f"{path}.", locate(str(value[TARGET])), plain)
        for key, each in value.items():
            _check_arguments(f"{path}.{key}", each)


def _has_parts(value: Any) -> bool:
    """Whether a class is named somewhere in it."""
    if isinstance(value, Mapping):
        return TARGET in value or any(map(_has_parts, value.values()))
    return isinstance(value, list) and any(map(_has_parts, value))


def _at(config: Any, keys: Sequence[str], path: str = "") -> Iterator[tuple[str, Any]]:
    """What stands at a place, which may not be there; * is every key of a group."""
    if not keys:
        yield path[1:], config
    elif isinstance(config, Mapping):
        for key in config if keys[0] == "*" else {keys[0]} & config.keys():
            yield from _at(config[key], keys[1:], f"{path}.{key}")


def _check_named(path: str, named: str, place: Place) -> None:
    """Of a class that is asked before it is made."""
    target, kind = locate(named), place.wanted.__name__
    if not isinstance(target, type):
        raise Refused(f"{path}={named}", rule=f"a class that is a {kind}")
    if missing := lacking(target, place.wanted):
        raise Refused(f"{path}={named}", rule=f"a {kind} has {', '.join(missing)}")
    _check_call(f"{path}={named}", target, place.named)


def _check_takes(path: str, value: Mapping[str, Any], takes: Sequence[str]) -> None:
    target = locate(value[TARGET])
    later = bool(value.get(PARTIAL, False))
    if takes and (later or isinstance(target, type)):
        own = [key for key in value if key not in (TARGET, PARTIAL)] if later else ["self"]
        _check_call(f"{path}={value[TARGET]}", target if later else target.__call__, {*own, *takes})


def _check_call(what: str, target: Callable[..., Any], given: Iterable[str]) -> None:
    try:
        inspect.signature(target).bind(**dict.fromkeys(given))
    except (TypeError, ValueError) as error:
        rule = f"it is called with {', '.join(sorted({*given} - {'self'}))}"
        raise Refused(f"{what}: {error}", rule=rule) from error
