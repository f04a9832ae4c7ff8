"""GNMT against counted layers, with attention and residuals of its reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from suite.models.gnmt import decode, layers, loss, scores
from suite.workload.recurrent import BEGIN, END, GNMT, PADDING
from tests.support.lstm import gates
from tests.support.networks import run

SHAPE = GNMT(4, 3, 6, sequence=5, vocabulary=11)


def sentences(lengths: list[int], length: int, *, vocabulary: int = 11, seed: int = 0) -> torch.Tensor:
    drawn = torch.randint(END + 1, vocabulary, (len(lengths), length), generator=torch.Generator().manual_seed(seed))
    for row, count in enumerate(lengths):
        drawn[row, count:] = PADDING
    return drawn


def built_layers(shape: GNMT = SHAPE, **options: Any) -> list[Any]:
    """Weights large enough for an error to exceed the tolerance."""
    torch.manual_seed(0)
    modules = [make().double() for make in layers(shape, **options)]
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.mul_(4)
            if hasattr(module, "attention"):
                nn.init.normal_(module.attention.bias)
    return modules


def reference(modules: list[Any], source: list[int], target: list[int]) -> torch.Tensor:
    """One pair of sentences without padding, position by position: logits [t, v]."""
    words, both, *encoders, first, second, third, head = modules
    x = words.token.weight[source][None]
    x = torch.cat((gates(both.onward, x), gates(both.back, x.flip(1)).flip(1)), 2)
    x = gates(encoders[0].lstm, x)
    for encoder in encoders[1:]:
        x = gates(encoder.lstm, x) + x
    memory, a = x[0], first.attention
    y = gates(first.lstm, first.token.weight[target][None])[0]
    v = a.size * a.direction / a.direction.square().sum().sqrt()
    contexts = []
    for state in y:
        energies = torch.stack([v @ torch.tanh(a.query.weight @ state + a.key.weight @ m + a.bias) for m in memory])
        share = torch.exp(energies) / torch.exp(energies).sum()
        contexts.append(share @ memory)
    context = torch.stack(contexts)
    y = gates(second.lstm, torch.cat((y, context), 1)[None])[0]
    y = gates(third.lstm, torch.cat((y, context), 1)[None])[0] + y
    return y @ head.linear.weight.T + head.linear.bias


def test_it_translates_as_the_reference_does() -> None:
    """Sentences of several lengths side by side, each against itself alone."""
    modules = built_layers()
    lengths, targets = [5, 3, 1, 2], [4, 5, 2, 1]
    source, target = sentences(lengths, 5), sentences(targets, 5, seed=1)
    logits = run(modules, source, target)
    for row, (long, wide) in enumerate(zip(lengths, targets, strict=True)):
        want = reference(modules, source[row, :long].tolist(), target[row, :wide].tolist())
        torch.testing.assert_close(logits[row, :wide], want)


def test_padding_gets_no_gradient() -> None:
    words = built_layers()[0]
    source = sentences([2], 5)
    words(source, source)[0].sum().backward()
    assert not words.token.weight.grad[PADDING].any()
    assert not words.token.weight[PADDING].any()
    assert words.token.weight.grad[source[0, 0]].all()


def test_dropout_precedes_every_lstm_but_the_first() -> None:
    assert not any(make().draws for make in layers(SHAPE))
    drawing = [make().draws for make in layers(SHAPE, dropout=0.2)]
    assert drawing == [False, False, True, True, True, False, True, True, False]


def test_initial_weights_are_within_a_tenth_at_the_published_width() -> None:
    """Matrices of a network a quarter as wide are twice as large, embeddings and biases are not."""
    torch.manual_seed(0)
    for hidden, times in ((256, 2), (64, 4)):
        shape = GNMT(2, 2, hidden, sequence=2, vocabulary=11)
        for number in (1, 3, 5):
            for name, parameter in layers(shape)[number]().named_parameters():
                if "attention" not in name:
                    most = 0.1 * (times if parameter.dim() > 1 and "token" not in name else 1)
                    assert 0.7 * most < float(parameter.detach().abs().max()) <= most * 1.0001, (hidden, name)


def test_loss_and_scores_leave_padding_out() -> None:
    logits = torch.zeros(2, 3, 5, dtype=torch.bfloat16)
    logits[0, 0, 4] = logits[0, 1, 4] = logits[1, 0, PADDING] = 2.0
    targets = torch.tensor([[4, END, PADDING], [END, PADDING, PADDING]])
    total = math.log(4 + math.exp(2))
    assert loss(logits, targets).dtype == torch.float32
    assert float(loss(logits, targets)) == pytest.approx((3 * total - 2) / 3, abs=1e-2)
    assert scores(logits, targets).tolist() == pytest.approx([100 / 3])


def one_at_a_time(modules: list[Any], source: torch.Tensor, length: int) -> list[list[int]]:
    masks = []
    for row in source:
        tokens = [BEGIN]
        while len(tokens) <= length and tokens[-1] != END:
            logits = run(modules, row[None], torch.tensor([tokens]))
            tokens.append(int(logits[0, -1].argmax()))
        masks.append((tokens[1:] + [PADDING] * length)[:length])
    return masks


@pytest.mark.parametrize("seed", range(2))
def test_decoding_is_greedy(seed: int) -> None:
    """As one token at a time; a network of random weights changes its mind at every position, and ends some."""
    torch.manual_seed(seed)
    modules = [make().double() for make in layers(GNMT(2, 2, 16, sequence=9, vocabulary=8))]
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.mul_(12)
        modules[-1].linear.bias.copy_(torch.tensor([0, 0, 0, -1, 0, 0, 0, 0]))  # most go on for a while
    source = sentences([9, 4, 6, 1, 7, 3, 5, 8], 9, vocabulary=8, seed=seed)
    target = torch.full_like(source, END)  # what stands there is not looked at
    decoded = decode(lambda value: run(modules, *value), (source, target))
    want = one_at_a_time(modules, source, 9)
    assert decoded.tolist() == want
    assert len({tuple(row) for row in want}) > 3
    assert decode(lambda value: (run(modules, *value),), (source, target)).tolist() == want, "outputs in a tuple"
