"""Megatron-LM's split layer (Shoeybi et al., 2019): a transformer block whose two products each end in one all-reduce.

The ranks of a tensor group hold a part of every block: queries, keys and values of their heads and the matching columns
of the projection behind, a part of the perceptron's hidden layer and the matching columns behind it. What is split so
(column-parallel, then row-parallel) needs one sum over the group where a row-parallel product ends, in the forward
pass, and one where a column-parallel product begins, in the backward pass. Norms and the biases of row-parallel
products are the same on every rank and get the same gradients. DeepSpeed trains layers that are split so, and has none.
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
    """The same activations to every rank; their gradients, each rank's share, are summed."""

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
    """The sum of every rank's share of the activations; their gradient is every rank's."""

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
    """Raises InvalidRequest unless every rank of a tensor group gets the same heads."""
    if heads % ranks:
        legal = max(n for n in range(1, ranks + 1) if heads % n == 0)
        raise InvalidRequest(
            f"grid.tensor={ranks} with model.shape.heads={heads}",
            rule="the ranks that split a layer divide its heads",
            legal=f"grid.tensor={legal}",
        )


class SplitBlock(nn.Module):
    """Rank `rank` of `ranks`' part of `block`, [b, s, h] to [b, s, h] on every rank of `group`: its weights are slices
    of the block's, so what it computes is what the block does, up to the order of one sum.

    `split` names its parameters that no other rank of the group has. Raises InvalidRequest unless `ranks` divide the
    heads.
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


def _rows(linear: nn.Linear, own: torch.Tensor) -> nn.Linear:
    """The outputs `own` of a product."""
    part = _empty(linear, linear.in_features, len(own))
    with torch.no_grad():
        part.weight.copy_(linear.weight[own])
        if linear.bias is not None:
            part.bias.copy_(linear.bias[own])
    return part


def _columns(linear: nn.Linear, own: torch.Tensor) -> nn.Linear:
    """A product over the inputs `own` alone, with the whole bias."""
    part = _empty(linear, len(own), linear.out_features)
    with torch.no_grad():
        part.weight.copy_(linear.weight[:, own])
        if linear.bias is not None:
            part.bias.copy_(linear.bias)
    return part


def _empty(linear: nn.Linear, inputs: int, outputs: int) -> nn.Linear:
    """A product as `linear`, of another size; drawing its weights would move the generators."""
    like = linear.weight
    bias = linear.bias is not None
    part: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias, dtype=like.dtype, device=like.device)
    return part
