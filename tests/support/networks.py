"""Modules of a network against its counted layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


def check_published(layers: Callable[[Any], Iterable[Callable[[], nn.Module]]], shape: Any, published: int) -> None:
    """Compare the weights and the output of each layer of an image network with its shape.

    On the meta device, without allocation, the output of each layer fits the next layer."""
    with torch.device("meta"):
        modules = [make() for make in layers(shape)]
        x = torch.empty(2, shape.colours, shape.image, shape.image, dtype=torch.uint8)
    assert sum(p.numel() for module in modules for p in module.parameters()) == published
    for module, counted in zip(modules, shape.shapes(), strict=True):
        parameters = list(module.parameters())
        assert sum(p.numel() for p in parameters) == counted.parameters, counted.name
        assert [p.numel() for p in parameters if p.dim() > 1] == list(counted.prunable), counted.name
        x = module.eval()(x)
        assert 4 * x.numel() == 2 * counted.output, counted.name
    assert x.shape == (2, shape.classes)


def check_flops(layers: Iterable[Callable[[], nn.Module]], shape: Any, *value: torch.Tensor) -> None:
    """Compare the flops of each layer's forward pass of one sample with its shape."""
    from torch.utils.flop_counter import FlopCounterMode

    output: Any = value
    for make, counted in zip(layers, shape.shapes(), strict=True):
        with FlopCounterMode(display=False) as counter:
            output = make().eval()(*output)
        output = output if isinstance(output, tuple) else (output,)
        assert counter.get_total_flops() == counted.flops, counted.name
