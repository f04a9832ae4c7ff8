"""Modules of the Residual LSTM, whose layers workload.recurrent counts.

The network is that of SpecTrain's sentiment task (PipeOptim V-A). Every LSTM is projected back to the width of the
embedding and added to its input, and the mean over all positions, including padding, is classified. LSTMs are torch's
own. They compute with the tensor that is a parameter's `data` at that moment, so that a weight policy may lend a layer
other weights. Initial weights of dense layers are normal with deviation 0.01, without bias; all others are torch's.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from suite.models.shared import Make, factories
from suite.models.shared import cross_entropy as loss
from suite.workload.recurrent import ResidualLSTM

__all__ = ["SCORES", "layers", "loss", "scores"]

DEVIATION = 0.01  # deviation of dense weights
SCORES = ("top_1",)


class WordEmbedding(nn.Module):
    """Tokens (b, s) to activations (b, s, e)."""

    draws = checkpointed = prunable = False

    def __init__(self, shape: ResidualLSTM) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocabulary, shape.embedding)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.token(tokens)
        return embedded


class LSTM(nn.LSTM):
    """torch's LSTM, batch first, that returns only the hidden states: (b, s, i) to (b, s, h).

    On a CPU in single precision torch has one kernel for passes with a graph and another for passes without, and they
    round differently. In training the first one always runs, so that recomputation gives the same bits.
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
    """An LSTM of width h, a projection back to e, and a residual connection around both: (b, s, e) to (b, s, e)."""

    def __init__(self, shape: ResidualLSTM, dropout: float = 0.0) -> None:
        super().__init__()
        self.lstm = LSTM(shape.embedding, shape.hidden)
        self.project = dense(shape.hidden, shape.embedding)
        self.dropout, self.draws = dropout, dropout > 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.project(self.lstm(x))
        return x + (F.dropout(y, self.dropout, self.training) if self.dropout else y)


class TextClassifier(nn.Module):
    """The mean over all positions and a dense layer: (b, s, e) to logits (b, classes)."""

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


def layers(shape: ResidualLSTM, *, dropout: float = 0.0, dtype: str = "float32") -> list[Make]:
    """One factory per layer. A stage builds its own layers, and a layer draws the same weights on every stage.

    dropout: share of the outputs of each projection; none as published
    """

    blocks = [partial(LSTMBlock, shape, dropout)] * shape.layers
    return factories([partial(WordEmbedding, shape), *blocks, partial(TextClassifier, shape)], dtype)


def scores(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Percent of texts whose class has the largest logit: (1,).

    logits: (b, classes); targets: (b,)
    """
    return (logits.argmax(-1) == targets).double().mean(0, keepdim=True) * 100
