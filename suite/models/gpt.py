"""Modules of a GPT, whose layers workload.transformer counts.

Pre-norm blocks with fused attention, learned positions, and a language head that shares the embedding's matrix. Initial
weights are GPT-2's: normal with deviation 0.02, and 1/sqrt(2 * layers) of that for the two projections into the
residual. A layer states with `draws` whether it uses random numbers, with `checkpointed` whether activation
checkpointing counts it, and with `prunable` whether a mask may prune its weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from suite.models.shared import Make, cross_entropy, draws_nothing, factories
from suite.workload.transformer import Transformer

DEVIATION = 0.02


class TokenEmbedding(nn.Module):
    """Tokens (b, s) to activations (b, s, h)."""

    draws = checkpointed = prunable = False

    def __init__(self, shape: Transformer) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocabulary, shape.hidden)
        self.position = nn.Embedding(shape.sequence, shape.hidden)
        nn.init.normal_(self.token.weight, std=DEVIATION)
        nn.init.normal_(self.position.weight, std=DEVIATION)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.token(tokens) + self.position.weight[: tokens.shape[1]]  # [b, s, h] + [s, h]
        return embedded


class TransformerBlock(nn.Module):
    """One transformer layer, (b, s, h) to (b, s, h)."""

    def __init__(self, shape: Transformer, dropout: float = 0.0) -> None:
        super().__init__()
        h = shape.hidden
        self.heads, self.dropout = shape.heads, dropout
        self.draws = dropout > 0
        self.norm_1, self.norm_2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv = nn.Linear(h, 3 * h, bias=shape.attention_bias)
        self.project = nn.Linear(h, h)
        self.widen, self.narrow = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)
        for linear in (self.qkv, self.project, self.widen, self.narrow):
            into_residual = linear in (self.project, self.narrow)
            nn.init.normal_(linear.weight, std=DEVIATION / (math.sqrt(2 * shape.layers) if into_residual else 1.0))
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        # three views of one tensor: [b, heads, s, h / heads] each
        q, k, v = self.qkv(self.norm_1(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        x = x + self._drop(self.project(attended.transpose(1, 2).reshape(b, s, -1)))
        return x + self._drop(self.narrow(F.gelu(self.widen(self.norm_2(x)))))

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class Head(nn.Module):
    """Final norm and language head, (b, s, h) to logits (b, s, v)."""

    draws = checkpointed = prunable = False

    def __init__(self, shape: Transformer) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.hidden)
        self.weight = nn.Parameter(torch.empty(shape.vocabulary, shape.hidden))
        nn.init.normal_(self.weight, std=DEVIATION)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.norm(x), self.weight)


def layers(shape: Transformer, *, dropout: float = 0.0, dtype: str = "float32") -> list[Make]:
    """One factory per layer. A stage builds its own layers, and a layer draws the same weights on every stage."""
    blocks = [partial(TransformerBlock, shape, dropout)] * shape.layers
    return factories([partial(TokenEmbedding, shape), *blocks, partial(Head, shape)], dtype)


def ties(shape: Transformer) -> list[tuple[int, str, int, str]]:
    """The tied weights, as the argument `tied` of Engine."""
    return [(0, "token.weight", shape.layers + 1, "weight")] if shape.tied else []


@draws_nothing
def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy per token in nats, at least in single precision.

    logits: (b, s, v); targets: (b, s)
    """
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def chunked_loss(rows: int) -> Callable[..., torch.Tensor]:
    """`loss` that holds `rows` rows of logits in single precision at a time, and their gradients in the logits' own."""

    @draws_nothing
    def chunked(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        apply: Callable[..., torch.Tensor] = _ChunkedCrossEntropy.apply
        return apply(logits.flatten(0, 1), targets.flatten(), rows)

    return chunked


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Mean cross entropy of logits (n, v) and targets (n). Its gradient is made in the forward pass, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, rows: int) -> torch.Tensor:
        gradient, count, total = torch.empty_like(logits), len(targets), []
        for chunk, target, out in zip(logits.split(rows), targets.split(rows), gradient.split(rows), strict=True):
            wide = F.log_softmax(chunk.float() if chunk.dtype.itemsize < 4 else chunk, 1)
            total.append(F.nll_loss(wide, target, reduction="sum"))
            wide.exp_().scatter_add_(1, target[:, None], torch.full_like(wide[:, :1], -1.0))
            out.copy_(wide.div_(count))
        ctx.save_for_backward(gradient)
        return torch.stack(total).sum() / count

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0].to(gradient.dtype), None, None
