"""Modules of the Residual LSTM, whose layers workload.recurrent counts.

It is the network of SpecTrain's sentiment task (PipeOptim V-A): every LSTM is projected back to the embedding's width
and added to its own input, and the mean over all positions, padding too, is classified. LSTMs are torch's own, which
computes with whatever tensor a parameter's `data` is at that moment, so that a policy may lend a layer other weights.
Initial weights are theirs: dense layers normal with deviation 0.01 and no bias, the rest torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from suite.workload.recurrent import ResidualLSTM

DEVIATION = 0.01  # of dense weights
SCORES = ("top_1",)


class WordEmbedding(nn.Module):
    """Tokens [b, s] to activations [b, s, e]."""

    draws = checkpointed = prunable = False

    def __init__(self, shape: ResidualLSTM) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocabulary, shape.embedding)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.token(tokens)
        return embedded


class LSTM(nn.LSTM):
    """Torch's LSTM, batch first, of which the hidden states alone are told: [b, s, i] to [b, s, h].

    On a processor in single precision torch has one kernel for passes that keep a graph and one for those that do not,
    which round differently. In training the first one always runs: a pass that is computed again has the same bits.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if torch.is_grad_enabled() or not self.training:
            return super().forward(x)[0]
        with torch.enable_grad():
            output = super().forward(x)[0]
        return output.detach()


class LSTMBlock(nn.Module):
    """An LSTM of width h, a projection back to e, and the way round both: [b, s, e] to [b, s, e]."""

    def __init__(self, shape: ResidualLSTM, dropout: float = 0.0) -> None:
        super().__init__()
        self.lstm = LSTM(shape.embedding, shape.hidden)
        self.project = dense(shape.hidden, shape.embedding)
        self.dropout, self.draws = dropout, dropout > 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.project(self.lstm(x))
        return x + (F.dropout(y, self.dropout, self.training) if self.dropout else y)


class TextClassifier(nn.Module):
    """The mean over all positions and a dense layer: [b, s, e] to logits [b, classes]."""

    draws = checkpointed = False

    def __init__(self, shape: ResidualLSTM) -> None:
        super().__init__()
        self.linear = dense(shape.embedding, shape.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.linear(x.mean(1))
        return scores


def dense(inputs: int, outputs: int) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.normal_(linear.weight, std=DEVIATION)
    nn.init.zeros_(linear.bias)
    return linear


def layers(shape: ResidualLSTM, *, dropout: float = 0.0, dtype: str = "float32") -> list[Callable[[], nn.Module]]:
    """One function per layer: a stage makes only its own, and draws the same weights wherever it stands. dropout: of
    each projection, none as published."""

    def make(kind: Callable[[], nn.Module]) -> nn.Module:
        return kind().to(getattr(torch, dtype))  # drawn in float32: every precision starts from the same numbers

    kinds: list[Callable[[], nn.Module]] = [
        partial(WordEmbedding, shape),
        *[partial(LSTMBlock, shape, dropout)] * shape.layers,
        partial(TextClassifier, shape),
    ]
    return [partial(make, kind) for kind in kinds]


def ties(shape: ResidualLSTM) -> list[tuple[int, str, int, str]]:
    """No two weights are one."""
    return []


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy per text, in nats, at least in single precision. logits [b, classes], targets [b]."""
    return F.cross_entropy(logits.float() if logits.dtype.itemsize < 4 else logits, targets)


def scores(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Percent of texts whose class has the largest logit, [1]. logits [b, classes], targets [b]."""
    return (logits.argmax(-1) == targets).double().mean(0, keepdim=True) * 100
