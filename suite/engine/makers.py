"""Layers and loss of a configured network: where weights are drawn, how blocks run, how gradients and losses add up.

The engine's systems, and the peers that train the suite's modules, make their layers here. Compiled blocks,
accumulation in place and losses in chunks give the results of the plain forms up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from suite.config.modules import network_module
from suite.config.network import KernelForms
from suite.core.errors import Unsupported
from suite.engine.stage import counts_as_block

COMPILER = "inductor"  # backend of torch.compile; one graph serves all blocks of a shape
Maker = Callable[[], nn.Module]


def configured(kernels: KernelForms, makers: Sequence[Maker], *, draws_on: str = "cpu") -> list[Maker]:
    """Functions that make layers as `makers` do, with kernels.accumulate and kernels.compile.

    Args:
        kernels: Forms of the layers.
        makers: Functions that make the layers.
        draws_on: Device that draws the initial weights.
    """

    def make(maker: Maker) -> nn.Module:
        with torch.device(draws_on):
            layer = maker()
        if kernels.accumulate == "in_place":
            for module in layer.modules():
                if type(module) is nn.Linear:
                    module.__class__ = AccumulatingLinear
        if kernels.compile == "block" and counts_as_block(layer):
            layer.compile(backend=COMPILER)
        return layer

    return [partial(make, maker) for maker in makers]


def loss_of(kernels: KernelForms, path: str) -> Callable[..., torch.Tensor]:
    """The loss of the network in the module `path`, in chunks of kernels.loss_chunk rows.

    Raises Unsupported for a network without a loss in chunks."""
    network = network_module(path)
    if kernels.loss_chunk is None:
        return network.loss
    if network.chunked_loss is None:
        raise Unsupported(
            "kernels.loss_chunk",
            kernels.loss_chunk,
            what=f"kernels.loss_chunk={kernels.loss_chunk} with model.network={path}",
            rule="a network whose module has chunked_loss",
            legal="kernels.loss_chunk=null",
        )
    chunked: Callable[..., torch.Tensor] = network.chunked_loss(kernels.loss_chunk)
    return chunked


class AccumulatingLinear(nn.Linear):
    """A linear layer whose backward pass adds the weight's gradient to `.grad` inside the product."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = _AccumulatingProduct.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return output


class _AccumulatingProduct(torch.autograd.Function):
    """x (..., inputs) W^T + b. Without a `.grad`, as of a pruned weight, autograd gets the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,), (x, weight) = gradients, ctx.saved_tensors
        rows, inputs = gradient.flatten(0, -2), x.flatten(0, -2)
        into_input, into_weight, into_bias = ctx.needs_input_grad
        weight_gradient = None
        if into_weight and weight.grad is not None:
            weight.grad.addmm_(rows.t(), inputs)
        elif into_weight:
            weight_gradient = rows.t() @ inputs
        bias_gradient = rows.sum(0) if ctx.biased and into_bias else None
        return gradient @ weight if into_input else None, weight_gradient, bias_gradient
