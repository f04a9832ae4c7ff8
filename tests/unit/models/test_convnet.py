"""Modules of the convolutional networks against counted layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from suite.models.convnet import layers, loss
from suite.workload import VGG, WideResNet
from tests.support.networks import run

NARROW_VGG = VGG((4, 8), (1, 2), hidden=12, image=16, colours=1, classes=10)
NARROW_NORMED = VGG((4, 8), (1, 2), dense=1, norm=True, image=16, colours=1, classes=10)
NARROW_RESNET = WideResNet((4, 8), (1, 2), widen=2, stem=8, image=32, colours=1, classes=10)


def reference(shape: WideResNet, modules: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    """Reference Wide-ResNet after its paper, without in-place operations."""
    stem, *blocks, last = modules
    x = torch.relu(stem.norm(stem.conv(x / 127.5 - 1)))  # type: ignore[operator]
    x = nn.functional.max_pool2d(x, 3, 2, 1)
    for block in blocks:
        y = torch.relu(block.norm_1(block.conv_1(x)))  # type: ignore[operator]
        y = torch.relu(block.norm_2(block.conv_2(y)))  # type: ignore[operator]
        y = block.norm_3(block.conv_3(y))  # type: ignore[operator]
        x = torch.relu(y + (x if block.around is None else block.around(x)))  # type: ignore[operator]
    pooled = nn.functional.adaptive_avg_pool2d(x, 1)
    return last.linear(pooled.flatten(1))  # type: ignore[no-any-return, operator]


def test_a_residual_network_computes_what_its_paper_says() -> None:
    torch.manual_seed(0)
    modules = [make().double() for make in layers(NARROW_RESNET)]
    x = torch.randint(0, 256, (3, 1, 32, 32), dtype=torch.uint8)
    want = reference(NARROW_RESNET, modules, x.double())
    torch.testing.assert_close(run(modules, x), want)


def test_vgg_computes_what_its_paper_says() -> None:
    """Groups of one and two convolutions with ReLU, the largest of 2 x 2 behind each group, three dense layers."""
    torch.manual_seed(0)
    first, second, third, *dense = [make().double() for make in layers(NARROW_VGG)]
    x = torch.randint(0, 256, (3, 1, 16, 16), dtype=torch.uint8)
    want = nn.functional.max_pool2d(torch.relu(first.conv(x.double() / 127.5 - 1)), 2)  # type: ignore[operator]
    want = torch.relu(third.conv(torch.relu(second.conv(want))))  # type: ignore[operator]
    want = nn.functional.max_pool2d(want, 2).flatten(1)
    want = torch.relu(dense[1].linear(torch.relu(dense[0].linear(want))))  # type: ignore[operator]
    want = dense[2].linear(want)  # type: ignore[operator]
    torch.testing.assert_close(run((first, second, third, *dense), x), want)


def test_a_vgg_with_norms_has_them_before_its_relus() -> None:
    torch.manual_seed(0)
    modules: Any = [make().double() for make in layers(NARROW_NORMED)]
    x = torch.randint(0, 256, (3, 1, 16, 16), dtype=torch.uint8)
    want = x.double() / 127.5 - 1
    for module, pooled in zip(modules[:-1], (True, False, True), strict=True):
        y = module.conv(want)
        want = torch.relu((y - y.mean((0, 2, 3), keepdim=True)) / (y.var((0, 2, 3), False, keepdim=True) + 1e-5).sqrt())
        want = nn.functional.max_pool2d(want, 2) if pooled else want
    want = modules[-1].linear(want.flatten(1))
    torch.testing.assert_close(run(modules, x), want)


def test_bytes_are_scaled_to_one() -> None:
    first = layers(NARROW_VGG)[0]()
    white = first(torch.full((1, 1, 16, 16), 255, dtype=torch.uint8))
    torch.testing.assert_close(white, first(torch.ones(1, 1, 16, 16)))
    torch.testing.assert_close(first(torch.zeros(1, 1, 16, 16, dtype=torch.uint8)), first(-torch.ones(1, 1, 16, 16)))


def test_dropout_is_in_the_dense_layers_but_the_last() -> None:
    assert [make().draws for make in layers(NARROW_VGG, dropout=0.5)] == [False] * 3 + [True, True, False]
    assert not any(make().draws for make in layers(NARROW_VGG))
    dense = layers(NARROW_VGG, dropout=0.5)[3]().train()
    torch.manual_seed(0)
    outputs = dense(torch.rand(64, NARROW_VGG.features))
    positive = dense.eval()(torch.rand(64, NARROW_VGG.features))
    assert (outputs == 0).float().mean() > (positive == 0).float().mean() + 0.1


def test_narrow_dense_layer_has_the_output_of_a_wide_one() -> None:
    deviation = layers(VGG((4,), (1,), hidden=64, image=16, classes=10))[-2]().linear.weight.std().item()
    assert deviation == pytest.approx(0.08, rel=0.05)  # 0.01 at 4096


def test_the_loss_is_in_single_precision() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.bfloat16)
    assert loss(logits, torch.tensor([0])).dtype == torch.float32
    assert float(loss(logits, torch.tensor([0]))) == pytest.approx(0.2395448, abs=1e-6)
