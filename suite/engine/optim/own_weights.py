"""Optimizers of a whole model on a rank that holds a part of its weights.

A factory makes the optimizer of the whole model, as in a plain script, so that groups by name, by shape and by position
are those of the script. The rank keeps its own weights.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import nn


def keep_own(optimizer: torch.optim.Optimizer, leaves: Mapping[int, Sequence[nn.Parameter]]) -> None:
    """Replace each weight of an optimizer by the weights of this rank that compute with it, by the id of the weight."""
    for group in optimizer.param_groups:
        own = [leaves[id(weight)] for weight in group["params"]]
        if "param_names" in group:
            group["param_names"] = [n for n, each in zip(group["param_names"], own, strict=True) for _ in each]
        group["params"] = [leaf for each in own for leaf in each]
    for weight, states in list(optimizer.state.items()):
        del optimizer.state[weight]
        for leaf in leaves[id(weight)]:
            optimizer.state[leaf] = copy.deepcopy(states)
