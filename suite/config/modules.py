"""Modules of networks and data sources: the members that the suite uses, with defaults for optional ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from suite.config.locate import module
from suite.core.errors import InvalidRequest

Described = TypeVar("Described", bound="NetworkModule | SourceModule")


@dataclass(frozen=True, slots=True)
class NetworkModule:
    """The module of a network.

    Attributes:
        layers: `layers(shape, dropout=, dtype=)`, functions that make the layers, in order.
        ties: `ties(shape)`, weights that two layers share, in the form of the engine's `tied`.
        loss: The mean loss of outputs and targets.
        chunked_loss: `chunked_loss(rows)`, the loss that widens so many rows of its outputs at a time.
        scores: Numbers that an evaluation adds to the loss, of outputs and targets.
        SCORES: Names of these numbers.
        decode: `decode(forward, inputs)`, the token ids that the network generates.
    """

    layers: Callable[..., Any]
    ties: Callable[..., Any]
    loss: Callable[..., Any]
    chunked_loss: Callable[..., Any] | None = None
    scores: Callable[..., Any] | None = None
    SCORES: Sequence[str] = ()
    decode: Callable[..., Any] | None = None


def _any_shape(name: str, folder: Any, shape: Any) -> None:
    """Accept every network."""


@dataclass(frozen=True, slots=True)
class SourceModule:
    """The module of a data source.

    Attributes:
        check_shape: `check_shape(name, folder, shape)`, raises InvalidRequest for a network that cannot read the data.
    """

    check_shape: Callable[[str, Any, Any], None] = _any_shape


def network_module(path: str) -> NetworkModule:
    """The module of a network. Raises InvalidRequest without a required member, and as `locate.module`."""
    return _described(path, NetworkModule, f"model.network={path}", "suite.models.gpt")


def source_module(path: str) -> SourceModule:
    """The module of a data source. Raises as `locate.module`."""
    return _described(path, SourceModule, f"data.source of {path}", "suite.data.text")


def _described(path: str, kind: type[Described], what: str, legal: str) -> Described:
    names = {field.name for field in fields(kind)}
    members = {name: value for name, value in vars(module(path)).items() if name in names}
    if missing := [field.name for field in fields(kind) if field.default is MISSING and field.name not in members]:
        what, rule = f"{what}, which has no {' and no '.join(missing)}", f"a module with {', '.join(missing)}"
        raise InvalidRequest(what, rule=rule, legal=legal)
    return kind(**members)
