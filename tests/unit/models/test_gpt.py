"""GPT against workload.transformer: parameters, flops, causality, dropout."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from suite.engine.random_state import drawing, initial
from suite.models import gpt
from suite.workload import Transformer, flops

SHAPES = [
    Transformer(1, 4, 1, 1, 1),
    Transformer(2, 12, 3, 5, 7),
    Transformer(3, 10, 5, 8, 23),
    Transformer(2, 32, 2, 3, 11),
]


def variants(shape: Transformer) -> list[Transformer]:
    sizes = shape.layers, shape.hidden, shape.heads, shape.sequence, shape.vocabulary
    return [Transformer(*sizes, tied=tied, attention_bias=bias) for tied in (True, False) for bias in (True, False)]


ALL = [variant for shape in SHAPES for variant in variants(shape)]


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


@pytest.mark.parametrize("shape", ALL, ids=str)
def test_parameters_are_counted_layer_by_layer(shape: Transformer) -> None:
    layers = built_layers(shape)
    assert len(layers) == shape.layers + 2
    for layer, counted in zip(layers, shape.shapes(), strict=True):
        entries = sum(parameter.numel() for parameter in layer.parameters())
        assert entries == counted.parameters + counted.tied, counted.name
    model = tied_together(shape, layers)
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters
    assert len(gpt.ties(shape)) == shape.tied


@pytest.mark.parametrize("shape", [shape for shape in ALL if shape.sequence > 1], ids=str)
@pytest.mark.parametrize("samples", [1, 3])
def test_flops_are_the_formulas(shape: Transformer, samples: int) -> None:
    """Attention spelled out, so that its products are counted; in full, as the formula counts them."""
    model = tied_together(shape, built_layers(shape))
    x = tokens(shape, samples)
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        loss = gpt.loss(model(x), x)
    assert counter.get_total_flops() == samples * flops.forward(shape)
    with sdpa_kernel(SDPBackend.MATH), counter:
        loss = gpt.loss(model(x), x)
        loss.backward()
    assert counter.get_total_flops() == flops.training(shape, samples)


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_flops_of_each_layer_and_of_recomputation(shape: Transformer) -> None:
    value = tokens(shape, 1)
    recomputed = 0
    for layer, counted in zip(built_layers(shape), shape.shapes(), strict=True):
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            value = layer(value)
        assert counter.get_total_flops() == counted.flops, counted.name
        recomputed += counted.flops * (counted.name == "block")
    assert flops.training(shape, 1, recompute=True) - flops.training(shape, 1) == recomputed


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_shapes_of_what_passes_between_layers(shape: Transformer) -> None:
    value = tokens(shape, 3)
    for layer, counted in zip(built_layers(shape), shape.shapes(), strict=True):
        value = layer(value)
        assert value.nbytes == 3 * counted.output, counted.name
    assert value.shape == (3, shape.sequence, shape.vocabulary)


def test_a_later_token_does_not_change_an_earlier_logit() -> None:
    shape = SHAPES[2]
    model = tied_together(shape, built_layers(shape, dtype="float64"))
    x = tokens(shape)
    before = model(x)
    for position in range(shape.sequence):
        changed = x.clone()
        changed[:, position] = (changed[:, position] + 1) % shape.vocabulary
        difference = (model(changed) - before).abs().amax((0, 2))
        assert not difference[:position].any()
        assert (difference[position:] > 0).all()


def test_a_shorter_sequence_is_the_beginning_of_a_longer() -> None:
    shape = SHAPES[2]
    model = tied_together(shape, built_layers(shape, dtype="float64"))
    x = tokens(shape)
    assert (model(x[:, :3]) - model(x)[:, :3]).abs().max() < 1e-14


def test_samples_do_not_see_one_another() -> None:
    shape = SHAPES[2]
    model = tied_together(shape, built_layers(shape, dtype="float64"))
    x = tokens(shape, 3)
    assert (model(x)[1:2] - model(x[1:2])).abs().max() < 1e-14


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


def test_dropout_acts_on_attention_too() -> None:
    shape = Transformer(1, 8, 1, 4, 5)
    block = built_layers(shape, dropout=0.5)[1].train()
    nn.init.zeros_(block.narrow.weight)
    nn.init.eye_(block.project.weight)
    x = torch.randn(64, 4, 8, generator=torch.Generator().manual_seed(0))
    block._drop = lambda x: x
    with drawing(0, 0, 0):
        first = block(x)
    with drawing(0, 0, 1):
        assert not torch.equal(first, block(x))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_every_precision_starts_from_the_same_numbers(dtype: str) -> None:
    shape = SHAPES[1]
    single, other = built_layers(shape), built_layers(shape, dtype=dtype)
    for a, b in zip(single, other, strict=True):
        assert {p.dtype for p in b.parameters()} == {getattr(torch, dtype)}
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            assert torch.equal(p.to(getattr(torch, dtype)), q)


def test_initial_weights_are_gpt_2s() -> None:
    shape = Transformer(8, 64, 4, 64, 256)
    layers = built_layers(shape)
    assert float(layers[0].token.weight.detach().std()) == pytest.approx(0.02, rel=0.03)
    assert float(layers[-1].weight.detach().std()) == pytest.approx(0.02, rel=0.03)
    block = layers[3]
    for linear, deviation in ((block.qkv, 0.02), (block.widen, 0.02), (block.project, 0.005), (block.narrow, 0.005)):
        assert float(linear.weight.detach().std()) == pytest.approx(deviation, rel=0.06)
        assert linear.bias is None or not linear.bias.any()
    assert math.sqrt(2 * shape.layers) == 4.0
    first, second = layers[1].qkv.weight, layers[2].qkv.weight
    assert not torch.equal(first, second)


def test_the_first_loss_is_that_of_a_guess() -> None:
    shape = Transformer(2, 32, 4, 16, 100)
    x = tokens(shape, 8)
    loss = gpt.loss(tied_together(shape, built_layers(shape))(x), x.roll(1))
    assert float(loss.detach()) == pytest.approx(math.log(100), rel=0.02)


def test_the_loss_is_a_mean_per_token() -> None:
    logits = torch.tensor([[[0.0, 0.0], [math.log(3.0), 0.0]]])
    loss = gpt.loss(logits, torch.tensor([[0, 1]]))
    assert float(loss) == pytest.approx((math.log(2) + math.log(4)) / 2)
