"""GPT against workload.transformer: parameters, flops, causality, dropout."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from suite.engine.random_state import drawing, initial
from suite.models import gpt
from suite.workload import Transformer, flops
from tests.support.drawn import drawn

SHAPES = [
    Transformer(1, 4, 1, 1, 1),
    Transformer(2, 12, 3, 5, 7),
    Transformer(3, 10, 5, 8, 23),
    Transformer(2, 32, 2, 3, 11),
]


ALL = [
    replace(shape, tied=tied, attention_bias=bias)
    for shape in SHAPES
    for tied, bias in product((True, False), repeat=2)
]


def built_layers(shape: Transformer, *, dropout: float = 0.0, dtype: str = "float32", seed: int = 0) -> list[nn.Module]:
    layers = []
    for number, make in enumerate(gpt.layers(shape, dropout=dropout, dtype=dtype)):
        with drawing(*initial(seed, number)):
            layers.append(make())
    return layers


def tied_together(shape: Transformer, layers: list[nn.Module]) -> nn.Sequential:
    for first, first_name, last, last_name in gpt.ties(shape):
        setattr(layers[last], last_name, layers[first].get_parameter(first_name))
    return nn.Sequential(*layers)


def tokens(shape: Transformer, samples: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, shape.vocabulary, (samples, shape.sequence), generator=generator)


@pytest.mark.parametrize("shape", drawn(ALL, n=5))
def test_parameters_bytes_and_flops_are_counted(shape: Transformer) -> None:
    """Attention spelled out, so that its products are counted; in full, as the formula counts them."""
    layers = built_layers(shape)
    assert len(layers) == shape.layers + 2
    value, recomputed = tokens(shape, 1), 0
    for layer, counted in zip(layers, shape.shapes(), strict=True):
        entries = sum(parameter.numel() for parameter in layer.parameters())
        assert entries == counted.parameters + counted.tied, counted.name
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            value = layer(value)
        assert value.nbytes == counted.output, counted.name
        assert counter.get_total_flops() == counted.flops or shape.sequence == 1, counted.name
        recomputed += counted.flops * (counted.name == "block")
    assert flops.training(shape, 1, recompute=True) - flops.training(shape, 1) == recomputed
    model = tied_together(shape, layers)
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters
    assert len(gpt.ties(shape)) == shape.tied
    x = tokens(shape, 3)
    with sdpa_kernel(SDPBackend.MATH), counter:
        gpt.loss(model(x), x).backward()
    assert counter.get_total_flops() == flops.training(shape, 3) or shape.sequence == 1


def test_a_logit_depends_on_earlier_tokens_of_its_sample_alone() -> None:
    shape = SHAPES[2]
    model = tied_together(shape, built_layers(shape, dtype="float64"))
    x = tokens(shape, 3)
    before = model(x)
    for position in range(shape.sequence):
        changed = x.clone()
        changed[:, position] = (changed[:, position] + 1) % shape.vocabulary
        difference = (model(changed) - before).abs().amax((0, 2))
        assert not difference[:position].any()
        assert (difference[position:] > 0).all()
    assert (model(x[:, :3]) - before[:, :3]).abs().max() < 1e-14
    assert (before[1:2] - model(x[1:2])).abs().max() < 1e-14


def test_dropout_acts_in_training_only() -> None:
    shape = SHAPES[1]
    plain, dropping = (tied_together(shape, built_layers(shape, dropout=rate)) for rate in (0.0, 0.5))
    x = tokens(shape)

    def logits(model: nn.Module, seed: int) -> torch.Tensor:
        with torch.no_grad(), drawing(0, 0, seed):
            return model(x)

    assert torch.equal(logits(plain.train(), 0), logits(plain, 1))
    assert torch.equal(logits(plain, 0), logits(dropping.eval(), 0))
    assert torch.equal(logits(dropping, 0), logits(dropping, 1))
    dropping.train()
    assert torch.equal(logits(dropping, 0), logits(dropping, 0))
    assert not torch.equal(logits(dropping, 0), logits(dropping, 1))


def test_initial_weights_are_gpt_2s() -> None:
    shape = Transformer(8, 64, 4, 64, 256)
    layers = built_layers(shape)
    assert float(layers[0].token.weight.detach().std()) == pytest.approx(0.02, rel=0.03)
    assert float(layers[-1].weight.detach().std()) == pytest.approx(0.02, rel=0.03)
    block = layers[3]
    for linear, deviation in ((block.qkv, 0.02), (block.widen, 0.02), (block.project, 0.005), (block.narrow, 0.005)):
        assert float(linear.weight.detach().std()) == pytest.approx(deviation, rel=0.06)
        assert linear.bias is None or not linear.bias.any()
    first, second = layers[1].qkv.weight, layers[2].qkv.weight
    assert not torch.equal(first, second)


def test_the_loss_is_a_mean_per_token() -> None:
    logits = torch.tensor([[[0.0, 0.0], [math.log(3.0), 0.0]]])
    loss = gpt.loss(logits, torch.tensor([[0, 1]]))
    assert float(loss) == pytest.approx((math.log(2) + math.log(4)) / 2)
