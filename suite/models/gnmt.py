"""Modules of GNMT, whose layers workload.recurrent.GNMT counts.

The network is the second reference version of GNMT (PipeOptim V-A): a bidirectional first encoder layer, residual
connections from the third layer on in encoder and decoder, and normalised Bahdanau attention after the first decoder
layer. Every later decoder layer also reads the attention's context. Each LSTM is one layer; the first decoder layer
also holds the decoder's embedding and the attention. State that later layers need is part of the value, so that a
pipeline can cut anywhere:

    encoder:  (x [b, s, h], lengths [b], tokens [b, t])     lengths and the decoder's tokens are integers
    decoder:  (y [b, t, h], context [b, t, h])

Both sides are padded to the fixed length `sequence`, so that every message has one size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from suite.models.recurrent import LSTM
from suite.models.shared import Make, cross_entropy, draws_nothing, factories
from suite.workload.recurrent import BEGIN, END, GNMT, PADDING

SPREAD, PUBLISHED = 0.1, 1024  # initial weights are uniform from -0.1 to 0.1 at the published width
SCORES = ("tokens",)

Values = tuple[torch.Tensor, ...]
Drawn = TypeVar("Drawn", LSTM, nn.Linear)


class Sources(nn.Module):
    """Source tokens (b, s) and the decoder's tokens (b, t) to (x (b, s, h), lengths (b,), tokens (b, t))."""

    draws = checkpointed = prunable = False

    def __init__(self, shape: GNMT) -> None:
        super().__init__()
        self.token = embedding(shape)

    def forward(self, source: torch.Tensor, tokens: torch.Tensor) -> Values:
        return self.token(source), (source != PADDING).sum(1), tokens


class Bidirectional(nn.Module):
    """Two LSTMs that read each sequence from either end: x (b, s, h) to (b, s, 2 h). Padding becomes zeros."""

    draws = False

    def __init__(self, shape: GNMT) -> None:
        super().__init__()
        self.onward, self.back = (lstm(shape.hidden, shape.hidden) for _ in range(2))

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, tokens: torch.Tensor) -> Values:
        at = torch.arange(x.shape[1], device=x.device)
        inside = at < lengths[:, None]  # [b, s]
        # positions of a sequence from the last to the first; padding keeps its position
        turned = torch.where(inside, lengths[:, None] - 1 - at, at)[..., None].expand_as(x)
        onward, back = self.onward(x), self.back(x.gather(1, turned)).gather(1, turned)
        return torch.cat((onward, back), 2) * inside[..., None], lengths, tokens


class Encoder(nn.Module):
    """A later encoder layer, (b, s, inputs) to (b, s, h), with a residual connection from the third layer on."""

    def __init__(self, shape: GNMT, inputs: int, *, residual: bool, dropout: float) -> None:
        super().__init__()
        self.lstm = lstm(inputs, shape.hidden)
        self.residual, self.dropout, self.draws = residual, dropout, dropout > 0

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, tokens: torch.Tensor) -> Values:
        y = self.lstm(_dropped(x, self.dropout, self.training))
        return y + x if self.residual else y, lengths, tokens


class Attention(nn.Module):
    """Normalised additive attention (Bahdanau, with Luong's weight normalisation).

    For each y (b, t, h) it returns the mean of the memory (b, s, h) with weights softmax(g v / |v| . tanh(W y + U
    memory + bias)), without padding: (b, t, h).
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        deviation = 1 / math.sqrt(hidden)
        self.direction = nn.Parameter(torch.empty(hidden).uniform_(-deviation, deviation))
        self.size = nn.Parameter(torch.full((1,), deviation))
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, y: torch.Tensor, memory: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        query, key = self.query(y) + self.bias, self.key(memory)
        energy = torch.tanh(query[:, :, None] + key[:, None])  # [b, t, s, h]
        direction = self.direction * (self.size / self.direction.norm())
        scores = F.linear(energy, direction[None]).squeeze(-1)  # [b, t, s]
        outside = torch.arange(memory.shape[1], device=y.device) >= lengths[:, None]
        scores = scores.masked_fill(outside[:, None], torch.finfo(scores.dtype).min)
        return scores.softmax(-1) @ memory


class FirstDecoder(nn.Module):
    """The decoder's embedding, its first LSTM, and the attention: (memory, lengths, tokens) to (y, context)."""

    draws = False

    def __init__(self, shape: GNMT) -> None:
        super().__init__()
        self.token = embedding(shape)
        self.lstm = lstm(shape.hidden, shape.hidden)
        self.attention = Attention(shape.hidden)

    def forward(self, memory: torch.Tensor, lengths: torch.Tensor, tokens: torch.Tensor) -> Values:
        y = self.lstm(self.token(tokens))
        return y, self.attention(y, memory, lengths)


class Decoder(nn.Module):
    """A later decoder layer of (y, context), (b, t, h) each, with a residual connection from the third layer on.

    The last decoder layer returns y alone.
    """

    def __init__(self, shape: GNMT, *, residual: bool, last: bool, dropout: float) -> None:
        super().__init__()
        self.lstm = lstm(2 * shape.hidden, shape.hidden)
        self.residual, self.last, self.dropout, self.draws = residual, last, dropout, dropout > 0

    def forward(self, y: torch.Tensor, context: torch.Tensor) -> torch.Tensor | Values:
        entered = torch.cat((_dropped(y, self.dropout, self.training), context), 2)
        output = self.lstm(entered)
        output = output + y if self.residual else output
        return output if self.last else (output, context)


class VocabularyHead(nn.Module):
    """The language head, (b, t, h) to logits (b, t, v)."""

    draws = checkpointed = prunable = False

    def __init__(self, shape: GNMT) -> None:
        super().__init__()
        self.linear = nn.Linear(shape.hidden, shape.vocabulary)
        spread(self.linear, shape.hidden)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.linear(y)
        return scores


def lstm(inputs: int, outputs: int) -> LSTM:
    return spread(LSTM(inputs, outputs), outputs)


def spread(module: Drawn, hidden: int) -> Drawn:
    """Draw the weights of a module. Matrices of a narrower network are larger, which keeps the scale of the outputs."""
    for parameter in module.parameters():
        size = SPREAD * (math.sqrt(PUBLISHED / hidden) if parameter.dim() > 1 else 1.0)
        nn.init.uniform_(parameter, -size, size)
    return module


def embedding(shape: GNMT) -> nn.Embedding:
    """An embedding whose padding row is zero and has no gradient."""
    layer = nn.Embedding(shape.vocabulary, shape.hidden, padding_idx=PADDING)
    with torch.no_grad():
        layer.weight.uniform_(-SPREAD, SPREAD)[PADDING] = 0.0
    return layer


def _dropped(x: torch.Tensor, share: float, training: bool) -> torch.Tensor:
    return F.dropout(x, share, training) if share else x


def layers(shape: GNMT, *, dropout: float = 0.0, dtype: str = "float32") -> list[Make]:
    """One factory per layer. A stage builds its own layers, and a layer draws the same weights on every stage.

    dropout: share of the inputs of every LSTM except the first of encoder and decoder (0.2 as published)
    """
    h = shape.hidden
    kinds: list[Make] = [partial(Sources, shape), partial(Bidirectional, shape)]
    for number in range(1, shape.encoder):
        inputs = 2 * h if number == 1 else h
        kinds.append(partial(Encoder, shape, inputs, residual=number > 1, dropout=dropout))
    kinds.append(partial(FirstDecoder, shape))
    for number in range(1, shape.decoder):
        last = number == shape.decoder - 1
        kinds.append(partial(Decoder, shape, residual=number > 1, last=last, dropout=dropout))
    kinds.append(partial(VocabularyHead, shape))
    return factories(kinds, dtype)


@draws_nothing
def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy per target token of a microbatch in nats, at least in single precision. Padding does not
    count. Systems average it over microbatches, as DeepSpeed and torch's pipelines do, whatever their padding.

    logits: (b, t, v); targets: (b, t)
    """
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignored=PADDING)


def scores(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Percent of target tokens, without padding, that have the largest logit given all previous target tokens: (1,)."""
    right = logits.argmax(-1)[targets != PADDING] == targets[targets != PADDING]
    return right.double().mean(0, keepdim=True) * 100


def decode(
    forward: Callable[[Values], torch.Tensor | Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The greedy translation of a batch, (b, t): the token with the largest logit at each position after BEGIN, and
    padding after the end.

    Token k depends only on the k tokens before it. So all positions are predicted at once from a guess, repeatedly,
    until nothing changes. This gives the translation that one token per pass would give, in at most as many passes and
    usually fewer.

    Args:
        forward: Returns the network's logits (b, t, v) for (source (b, s), tokens (b, t)).
        inputs: Such a pair. The source and the length t are read.
    """
    source, prefix = inputs
    tokens = torch.full_like(prefix, PADDING)
    tokens[:, 0] = BEGIN
    tokens_so_far = tokens
    for _ in range(prefix.shape[1]):
        logits = forward((source, tokens))
        scores = logits if isinstance(logits, torch.Tensor) else logits[0]
        tokens_so_far = scores.argmax(-1).to(tokens.device)
        ended = (tokens_so_far == END).cumsum(1)
        tokens_so_far = tokens_so_far.masked_fill(ended - (tokens_so_far == END).long() > 0, PADDING)
        entered = torch.cat((tokens[:, :1], tokens_so_far[:, :-1]), 1)
        if torch.equal(entered, tokens):
            break
        tokens = entered
    return tokens_so_far
