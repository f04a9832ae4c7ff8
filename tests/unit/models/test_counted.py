"""Every network but the GPT: recurrent modules are those that are counted, and all start from one seed in every
precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from suite.models import convnet, gnmt, gpt, recurrent
from suite.models.image_shapes import VGG, AlexNet, GoogLeNet, InceptionV3, WideResNet
from suite.workload import Transformer
from suite.workload.recurrent import GNMT, ResidualLSTM
from tests.support.networks import check_counted, check_flops, run

GREY: dict[str, Any] = {"colours": 1, "classes": 10}
NARROW = (
    (convnet, AlexNet((4, 6, 8, 6, 4), (5, 3, 3, 3, 3), stride=1, padding=2, hidden=12, image=16, **GREY)),
    (convnet, GoogLeNet("small", narrow=16, image=8, **GREY)),
    (convnet, InceptionV3("small", narrow=32, image=12, **GREY)),
    (convnet, VGG((4, 8), (1, 2), hidden=12, image=16, **GREY)),
    (convnet, VGG((4, 8), (1, 2), dense=1, norm=True, image=16, **GREY)),
    (convnet, WideResNet((4, 8), (1, 2), widen=2, stem=8, image=32, **GREY)),
    (gnmt, GNMT(4, 3, 6, sequence=5, vocabulary=11)),
    (recurrent, ResidualLSTM(2, 6, 10, sequence=7, vocabulary=20, classes=3)),
)


def inputs(shape: Any, samples: int) -> tuple[torch.Tensor, ...]:
    """Bytes of images, or tokens above those with a meaning."""
    if isinstance(shape, GNMT | ResidualLSTM):
        tokens = 4 + torch.arange(samples * shape.sequence).reshape(samples, -1) % 5
        return (tokens, tokens) if isinstance(shape, GNMT) else (tokens,)
    size = (samples, shape.colours, shape.image, shape.image)
    return (torch.randint(0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),)


def test_published_recurrent_networks_layer_by_layer() -> None:
    published = ((gnmt, GNMT(sequence=3)), (gnmt, GNMT(8, 8, sequence=2)), (recurrent, ResidualLSTM(sequence=3)))
    for network, shape in published:
        assert check_counted(network.layers, shape, *inputs(shape, 2)) == shape.parameters


@pytest.mark.parametrize(("network", "shape"), NARROW)
def test_narrow_networks_are_counted_and_learn_with_every_weight(network: Any, shape: Any) -> None:
    check_counted(network.layers, shape, *inputs(shape, 2))
    check_flops(network.layers(shape, dtype="float64"), shape, *inputs(shape, 1))  # plain kernels of an LSTM
    torch.manual_seed(0)
    modules = [make().double() for make in network.layers(shape)]
    targets = inputs(shape, 8)[0] if isinstance(shape, GNMT) else torch.arange(8) % shape.classes
    network.loss(run(modules, *inputs(shape, 8)), targets).backward()
    for module in modules:
        for name, weight in module.named_parameters():
            if weight.dim() > 1:
                assert weight.grad is not None, name
                assert weight.grad.any(), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_every_precision_starts_from_the_same_numbers(dtype: torch.dtype) -> None:
    for network, shape in (*NARROW, (gpt, Transformer(2, 12, 3, 5, 7))):
        name = str(dtype).removeprefix("torch.")
        for make, other in zip(network.layers(shape), network.layers(shape, dtype=name), strict=True):
            torch.manual_seed(0)
            single = make()
            torch.manual_seed(0)
            for a, b in zip(single.parameters(), other().parameters(), strict=True):
                assert torch.equal(a.to(dtype), b)
