"""Residual LSTM against counted layers: outputs and weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from suite.models.recurrent import LSTMBlock, layers, loss, scores
from suite.workload.recurrent import ResidualLSTM
from tests.support.lstm import gates
from tests.support.networks import run

SHAPE = ResidualLSTM(2, 6, 10, sequence=7, vocabulary=20, classes=3)


def tokens(shape: ResidualLSTM, samples: int) -> torch.Tensor:
    return torch.randint(0, shape.vocabulary, (samples, shape.sequence), generator=torch.Generator().manual_seed(0))


def reference(modules: list[Any], x: torch.Tensor) -> torch.Tensor:
    first, *blocks, last = modules
    x = first.token.weight[x]
    for block in blocks:
        x = x + gates(block.lstm, x) @ block.project.weight.T + block.project.bias
    return x.sum(1) / x.shape[1] @ last.linear.weight.T + last.linear.bias


def test_it_computes_what_its_paper_says() -> None:
    torch.manual_seed(0)
    modules = [make().double() for make in layers(SHAPE)]
    for module in modules[1:]:
        nn.init.normal_(module.project.bias if isinstance(module, LSTMBlock) else module.linear.bias)
    x = tokens(SHAPE, 3)
    torch.testing.assert_close(run(modules, x), reference(modules, x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pass_computes_with_the_lent_weights(dtype: str) -> None:
    """A policy that predicts or stashes assigns a parameter's data before a pass and takes it back behind it. Torch has
    a kernel per type: either must follow."""
    torch.manual_seed(0)
    block, other = (layers(SHAPE, dtype=dtype)[1]() for _ in range(2))
    x = torch.randn(2, 7, 6, dtype=getattr(torch, dtype), requires_grad=True)
    output_of_block, lent = block(x).detach(), other(x)
    lent.sum().backward()
    expected = [x.grad, *[p.grad for p in other.parameters()]]
    assert not torch.equal(output_of_block, lent)
    x.grad = None
    weights = [p.data for p in block.parameters()]
    for mine, theirs in zip(block.parameters(), other.parameters(), strict=True):
        mine.data = theirs.data.clone()
    output = block(x)
    assert torch.equal(output, lent)
    output.sum().backward()
    for mine, data in zip(block.parameters(), weights, strict=True):
        mine.data = data
    gradients = [x.grad, *[p.grad for p in block.parameters()]]
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
    assert torch.equal(block(x), output_of_block)


@pytest.mark.parametrize("width", [4, 32])
def test_pass_without_a_graph_has_equal_bits(width: int) -> None:
    """The recomputed value equals the sent value. Torch's two kernels of single precision round differently."""
    torch.manual_seed(0)
    block = layers(ResidualLSTM(1, width, width, sequence=12, vocabulary=5, classes=2))[1]().train()
    x = torch.randn(32, 12, width)
    with torch.no_grad():
        alone = block(x)
        assert not block.lstm(x).requires_grad
    assert torch.equal(alone, block(x))


def test_initial_weights() -> None:
    shape = ResidualLSTM(1, 64, 64, sequence=3, vocabulary=100, classes=30)
    torch.manual_seed(0)
    _, block, last = (make() for make in layers(shape))
    for linear in (block.project, last.linear):
        assert float(linear.weight.detach().std()) == pytest.approx(0.01, rel=0.05)
        assert not linear.bias.any()
    assert 0.12 < float(block.lstm.weight_hh_l0.detach().abs().max()) <= 1 / math.sqrt(64)


def test_dropout_is_the_projections() -> None:
    assert [make().draws for make in layers(SHAPE)] == [False] * 4
    assert [make().draws for make in layers(SHAPE, dropout=0.5)] == [False, True, True, False]
    block = layers(SHAPE, dropout=0.5)[1]().train()
    nn.init.ones_(block.project.bias)
    x = torch.zeros(50, 7, 6)
    assert 0.4 < float((block(x) == 0).float().mean()) < 0.6
    assert not (block.eval()(x) == 0).any()


def test_loss_and_scores() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 3.0]], dtype=torch.bfloat16)
    targets = torch.tensor([0, 1])
    assert loss(logits, targets).dtype == torch.float32
    want = (math.log(1 + 2 * math.exp(-2)) + math.log(1 + math.exp(-1) + math.exp(2))) / 2
    assert float(loss(logits, targets)) == pytest.approx(want, abs=1e-6)
    assert scores(logits, targets).tolist() == [50.0]
