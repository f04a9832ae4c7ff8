"""Modules of a network against its counted layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

Makers = Iterable[Callable[[], nn.Module]]


def run(modules: Iterable[Any], *value: Any) -> Any:
    """Output of the last module."""
    for module in modules:
        output = module(*value)
        value = output if isinstance(output, tuple) else (output,)
    return value[0]


def check_counted(layers: Callable[[Any], Makers], shape: Any, *value: torch.Tensor) -> int:
    """Compare the weights and the output of each layer for two samples with its shape. Returns the number of weights.

    On the meta device, without allocation, the output of each layer fits the next layer.
    """
    output: Any = tuple(part.to("meta") for part in value)
    with torch.device("meta"):
        modules = [make() for make in layers(shape)]
        for module, counted in zip(modules, shape.shapes(), strict=True):
            parameters = list(module.parameters())
            assert sum(p.numel() for p in parameters) == counted.parameters, counted.name
            assert getattr(module, "checkpointed", True) == counted.checkpointed, counted.name
            if getattr(module, "prunable", True):
                kinds = (nn.Linear, nn.Conv2d)
                pruned = [m.weight.numel() for m in module.modules() if isinstance(m, kinds)]
                assert pruned == list(counted.prunable), counted.name
            output = module.eval()(*output)
            output = output if isinstance(output, tuple) else (output,)
            assert sum(part.nbytes for part in output) == 2 * counted.output, counted.name
    return sum(p.numel() for module in modules for p in module.parameters())


def check_flops(layers: Makers, shape: Any, *value: torch.Tensor) -> None:
    """Compare the flops of each layer's forward pass of one sample with its shape."""
    output: Any = value
    for make, counted in zip(layers, shape.shapes(), strict=True):
        with FlopCounterMode(display=False) as counter:
            output = make().eval()(*output)
        output = output if isinstance(output, tuple) else (output,)
        assert counter.get_total_flops() == counted.flops, counted.name
