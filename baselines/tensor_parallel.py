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


class SplitBlock(nn.Module):
    """Slice `rank` of `ranks` of a transformer block, (b, s, h) to (b, s, h) on every rank of `group`.

    Its weights are slices of the weights of `block`, so that the group computes the same function, up to the order of
    one sum. Raises InvalidRequest unless `ranks` divides the number of heads.

    Attributes:
        split: Names of the parameters that no other rank of the group holds.
    """

    split = ("qkv.weight", "qkv.bias", "project.weight", "widen.weight", "widen.bias", "narrow.weight")

    def __init__(self, block: TransformerBlock, group: Any, rank: int, ranks: int) -> None:
        super().__init__()
        check_heads(block.heads, ranks)
        self.group, self.draws = group, block.draws
        self.norm_1, self.norm_2 = block.norm_1, block.norm_2
        self.heads = block.heads // ranks
        hidden = block.project.in_features
        own_heads = torch.arange(3 * hidden).view(3, ranks, hidden // ranks)[:, rank].flatten()
        own_width = torch.arange(4 * hidden).view(ranks, 4 * hidden // ranks)[rank]
        own_columns = own_heads[: hidden // ranks]
        self.qkv, self.project = _rows(block.qkv, own_heads), _columns(block.project, own_columns)
        self.widen, self.narrow = _rows(block.widen, own_width), _columns(block.narrow, own_width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        normed = _IntoSplit.apply(self.norm_1(x), self.group)  # type: ignore[no-untyped-call]
        # three views of one tensor: [b, heads / ranks, s, h / heads] each
        q, k, v = self.qkv(normed).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self._joined(self.project, attended.transpose(1, 2).reshape(b, s, -1))
        normed = _IntoSplit.apply(self.norm_2(x), self.group)  # type: ignore[no-untyped-call]
        return x + self._joined(self.narrow, F.gelu(self.widen(normed)))

    def _joined(self, linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        """A row-parallel product: the bias is added once, to the sum."""
        joined: torch.Tensor = _OutOfSplit.apply(F.linear(x, linear.weight), self.group)  # type: ignore[no-untyped-call]
        return joined if linear.bias is None else joined + linear.bias


def _rows(linear: nn.Linear, outputs: torch.Tensor) -> nn.Linear:
    """The slice of a linear layer that computes the given outputs."""
    part = _empty(linear, linear.in_features, len(outputs))
    with torch.no_grad():
        part.weight.copy_(linear.weight[outputs])
        if linear.bias is not None:
            part.bias.copy_(linear.bias[outputs])
    return part


def _columns(linear: nn.Linear, inputs: torch.Tensor) -> nn.Linear:
    """The slice of a linear layer that reads the given inputs, with the whole bias."""
    part = _empty(linear, len(inputs), linear.out_features)
    with torch.no_grad():
        part.weight.copy_(linear.weight[:, inputs])
        if linear.bias is not None:
            part.bias.copy_(linear.bias)
    return part


def _empty(linear: nn.Linear, inputs: int, outputs: int) -> nn.Linear:
    """An uninitialised linear layer of another size: drawing its weights would advance the generators."""
    like = linear.weight
    bias = linear.bias is not None
    part: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias, dtype=like.dtype, device=like.device)
    return part
