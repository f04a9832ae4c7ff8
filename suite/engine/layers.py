"""Decides which modules a stage holds, and which of their weights are one with the pipeline's other end.

A list may hold modules, or functions that make them: then each rank makes its own stage's only, drawn the same wherever
it stands. A tied weight is two leaves, one at each end, with one gradient: summed at the update, input part first. So
the ends may stand on any two stages, and one stage adds in the same order as several.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn

from suite.comm.waiting import until
from suite.core.errors import Refused
from suite.core.protocols import Group
from suite.engine.random import drawing, initial, undisturbed

Layer = nn.Module | Callable[[], nn.Module]
Tie = tuple[int, str, int, str]  # first layer, name of its weight, last layer, name


def make(layers: Sequence[Layer], own: range, seed: int) -> list[nn.Module]:
    """The modules of the layers `own`. A module that shares a weight with one before it is a copy: the user's list
    stays as it is, and both ends are leaves."""
    made: list[nn.Module] = []
    seen: set[int] = set()
    for number in own:
        layer = layers[number]
        if not isinstance(layer, nn.Module):
            with undisturbed(), drawing(*initial(seed, number)):
                layer = layer()
        elif seen.intersection(map(id, layer.parameters())):
            layer = copy.deepcopy(layer)
        seen.update(map(id, layer.parameters()))
        made.append(layer)
    return made


def find_ties(layers: Sequence[Layer], named: Sequence[Tie]) -> list[Tie]:
    """The named ties, and weights that two modules of the list share. Refused unless they join first and last."""
    found: dict[Tie, None] = dict.fromkeys((first, name, last, other) for first, name, last, other in named)
    seen: dict[int, tuple[int, str]] = {}
    for number, layer in enumerate(layers):
        if isinstance(layer, nn.Module):
            for name, parameter in layer.named_parameters():
                if id(parameter) in seen and seen[id(parameter)][0] != number:
                    found[(*seen[id(parameter)], number, name)] = None  # once, if it is also named
                seen[id(parameter)] = (number, name)
    for first, _, last, _ in found:
        if (first, last) != (0, len(layers) - 1):
            raise Refused(
                f"a tie of layers {first} and {last} of {len(layers)}",
                rule="ties join the first layer and the last, which the first and the last stage hold",
                legal=f"layers 0 and {len(layers) - 1}",
            )
    return list(found)


def ends_here(made: Sequence[nn.Module], own: range, tie: Tie) -> tuple[nn.Parameter, ...]:
    """The ends of `tie` that this stage holds, the first layer's before the last's."""
    first, first_name, last, last_name = tie
    return tuple(
        made[number - own.start].get_parameter(name)
        for number, name in ((first, first_name), (last, last_name))
        if number in own
    )


def agree(
    made: Sequence[nn.Module],
    own: range,
    ties: Sequence[Tie],
    *,
    column: Group,
    ends: Group,
    progress: Callable[[], None],
) -> None:
    """Start from one set of weights: replica 0's, and the first layer's for a tie. Broadcast, not averaged."""
    for layer in made:
        for tensor in (*layer.parameters(), *layer.buffers()):
            if len(column.ranks) > 1:
                until(column.broadcast(tensor.data, column.ranks[0]).done, progress)
    for tie in ties:
        held = ends_here(made, own, tie)
        if len(held) == 2:
            held[1].data.copy_(held[0].data)
        elif held and len(ends.ranks) > 1:
            until(ends.broadcast(held[0].data, ends.ranks[0]).done, progress)


def cast(layers: nn.Module, half: torch.dtype) -> None:
    """Weights and buffers that are not trained, too: passes have one type."""
    for tensor in (*layers.parameters(), *layers.buffers()):
        if tensor.is_floating_point() and tensor.dtype != half:
            tensor.data = tensor.data.to(half)
