"""Draw masks on any number of stages, which are threads that share sums only."""

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


def stage_view(
    layers: Sequence[nn.Module],
    layer_numbers: range,
    *,
    sparsity: float = 0.5,
    scope: str = "weights",
    seed: int = 0,
    total: Callable[[float], float] = float,
    stage: int = 0,
    stages: int = 1,
) -> View:
    """View of a pruning method on the stage with the layers `layer_numbers`."""
    numbered_layers = [(number, layers[number]) for number in layer_numbers]

    def weight(key: Key) -> torch.Tensor:
        return layers[key[0]].get_parameter(key[1])

    keys = [(number, name) for number, layer in numbered_layers for name in prunable(layer, scope)]
    return View(numbered_layers, weight, keys, sparsity, seed, total, stage, stages)


def whole_view(layers: Sequence[nn.Module], **settings: Any) -> View:
    """View of one stage with every layer."""
    return stage_view(layers, range(len(layers)), **settings)


def draw_on_stages(
    make_method: Callable[[], MaskMethod],
    layers: Sequence[nn.Module],
    stages: int,
    draw: Draw | None = None,
    **settings: Any,
) -> list[Any]:
    """Mask of each stage, or the return value of `draw` for its method and view."""

    def rank(world: LoopbackWorld) -> Any:
        def total(number: float) -> float:
            return world.all_reduce_numbers([number], "sum", lambda: None)[0]

        layer_numbers = evenly(len(layers), stages)[world.rank]
        view = stage_view(layers, layer_numbers, total=total, stage=world.rank, stages=stages, **settings)
        return draw(make_method(), view) if draw else make_method().draw(view)

    return run(stages, rank)


def equal_masks(first: Indices, second: Indices) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def join_masks(masks: Sequence[Indices]) -> Indices:
    return {key: index for mask in masks for key, index in mask.items()}
