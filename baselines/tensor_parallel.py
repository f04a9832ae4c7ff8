"""Megatron-LM's split layer (Shoeybi et al., 2019): a transformer block whose two products each end in one all-reduce.

Each rank of a tensor group holds a slice of every block: queries, keys and values of its heads with the matching
columns of the output projection, and a slice of the MLP's hidden layer with the matching columns of its second matrix.
A row-parallel product ends with one sum over the group in the forward pass, and a column-parallel product with one sum
in the backward pass. Norms, and the biases of row-parallel products, are the same on every rank and get the same
gradients. DeepSpeed can train such split layers, but provides none.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from suite.core.errors import InvalidRequest
from suite.models.gpt import TransformerBlock

Indices = torch.Tensor | slice
ALL = slice(None)
# parameters of a split block that no other rank of the group holds
SPLIT = ("qkv.weight", "qkv.bias", "project.weight", "widen.weight", "widen.bias", "narrow.weight")


class _IntoSplit(torch.autograd.Function):
    """Copy the activations to every rank; sum the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _OutOfSplit(torch.autograd.Function):
    """Sum the activations of all ranks; copy the gradient to every rank."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def check_heads(heads: int, ranks: int) -> None:
    """Raise InvalidRequest unless the ranks of a tensor group divide the attention heads."""
    if heads % ranks:
        legal = max(n for n in range(1, ranks + 1) if heads % n == 0)
        raise InvalidRequest(
            f"grid.tensor={ranks} with model.shape.heads={heads}",
            rule="the ranks that split a layer divide its heads",
            legal=f"grid.tensor={legal}",
        )


class SplitLinear(nn.Module):
    """The slice of a linear layer that computes the given `outputs` from the given `inputs`, on one rank of `group`.

    A slice of the outputs reads activations that every rank has. A slice of the inputs adds the bias once, to the sum
    over the group.
    """

    def __init__(self, linear: Any, group: Any, outputs: Indices, inputs: Indices) -> None:
        super().__init__()
        self.group, self.sums = group, inputs is not ALL
        with torch.no_grad():
            self.weight = nn.Parameter(linear.weight[outputs][:, inputs].clone())
            self.bias = None if linear.bias is None else nn.Parameter(linear.bias[outputs].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.sums:
            return F.linear(_IntoSplit.apply(x, self.group), self.weight, self.bias)  # type: ignore[no-untyped-call]
        joined: torch.Tensor = _OutOfSplit.apply(F.linear(x, self.weight), self.group)  # type: ignore[no-untyped-call]
        return joined if self.bias is None else joined + self.bias


def split(block: TransformerBlock, group: Any, rank: int, ranks: int) -> TransformerBlock:
    """`block`, (b, s, h) to (b, s, h) on every rank of `group`, with slice `rank` of `ranks` in place of its products.

    The group computes the same function, up to the order of one sum. Raises InvalidRequest unless `ranks` divides the
    number of heads.
    """
    check_heads(block.heads, ranks)
    hidden = block.project.in_features
    heads = torch.arange(3 * hidden).view(3, ranks, -1)[:, rank].flatten()
    width = torch.arange(4 * hidden).view(ranks, -1)[rank]
    block.heads //= ranks
    slices: dict[str, tuple[Indices, Indices]] = {
        "qkv": (heads, ALL),
        "project": (ALL, heads[: hidden // ranks]),
        "widen": (width, ALL),
        "narrow": (ALL, width),
    }
    for name, (outputs, inputs) in slices.items():
        setattr(block, name, SplitLinear(block.get_submodule(name), group, outputs, inputs))
    return block
