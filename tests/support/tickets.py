"""Masks for tests: a list of layers as any number of stages, in threads that share sums only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from suite.comm.p2p.threads import LoopbackWorld, run
from suite.core.protocols import MaskMethod
from suite.pruning.mask import Indices, Key, View, prunable
from suite.workload.split import evenly

Draw = Callable[[MaskMethod, View], Any]


def part(
    layers: Sequence[nn.Module],
    own: range,
    *,
    sparsity: float = 0.5,
    what: str = "weights",
    seed: int = 0,
    total: Callable[[float], float] = float,
    stage: int = 0,
    stages: int = 1,
) -> View:
    """View of a method on the stage that holds the layers `own`."""
    numbered = [(number, layers[number]) for number in own]

    def weight(key: Key) -> torch.Tensor:
        return layers[key[0]].get_parameter(key[1])

    keys = [(number, name) for number, layer in numbered for name in prunable(layer, what)]
    return View(numbered, weight, keys, sparsity, seed, total, stage, stages)


def whole(layers: Sequence[nn.Module], **told: Any) -> View:
    """One stage with every layer."""
    return part(layers, range(len(layers)), **told)


def drawn(
    made: Callable[[], MaskMethod], layers: Sequence[nn.Module], stages: int, draw: Draw | None = None, **told: Any
) -> list[Any]:
    """Result of each of `stages`: its mask, or the result of `draw` for its method and view."""

    def one(world: LoopbackWorld) -> Any:
        def total(number: float) -> float:
            return world.all_reduce_scalar(number, "sum", lambda: None)

        own = evenly(len(layers), stages)[world.rank]
        view = part(layers, own, total=total, stage=world.rank, stages=stages, **told)
        return draw(made(), view) if draw else made().draw(view)

    return run(stages, one, deadline=30.0)


def same(first: Indices, second: Indices) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def joined(tickets: Sequence[Indices]) -> Indices:
    return {key: index for ticket in tickets for key, index in ticket.items()}
