"""Modules of networks: the members that the suite uses, with defaults for optional ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from suite.config.locate import module
from suite.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class NetworkModule:
    """The module of a network.

    Attributes:
        layers: `layers(shape, dropout=, dtype=)`, functions that make the layers, in order.
        ties: `ties(shape)`, weights that two layers share, in the form of the engine's `tied`; by default none.
        loss: The mean loss of outputs and targets.
        chunked_loss: `chunked_loss(rows)`, the loss that widens so many rows of its outputs at a time.
        scores: Numbers that an evaluation adds to the loss, of outputs and targets.
        SCORES: Names of these numbers.
        decode: `decode(forward, inputs)`, the token ids that the network generates.
    """

    layers: Callable[..., Any]
    loss: Callable[..., Any]
    ties: Callable[..., list[Any]] = lambda shape: []
    chunked_loss: Callable[..., Any] | None = None
    scores: Callable[..., Any] | None = None
    SCORES: Sequence[str] = ()
    decode: Callable[..., Any] | None = None


def network_module(path: str) -> NetworkModule:
    """The module of a network. Raises InvalidRequest without a required member, and as `locate.module`."""
    names = {field.name: field.default is MISSING for field in fields(NetworkModule)}
    members = {name: value for name, value in vars(module(path)).items() if name in names}
    if missing := [name for name, required in names.items() if required and name not in members]:
        raise InvalidRequest("model.network", path, f"a module with {', '.join(missing)}", "suite.models.gpt")
    return NetworkModule(**members)
