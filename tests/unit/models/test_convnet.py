"""Networks of images against references after their papers, and their scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite.models import accuracy, chain, convnet
from suite.models.chain import Chained
from suite.models.convnet import layers
from suite.workload import VGG, AlexNet, GoogLeNet, InceptionV3, ResNet, WideResNet
from suite.workload.conv_spec import Branches, Convolution, Pooling, after
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


SMALL: dict[str, Any] = {"colours": 1, "classes": 10}
ALEXNET = AlexNet((4, 6, 8, 6, 4), (5, 3, 3, 3, 3), stride=1, padding=2, hidden=12, image=16, **SMALL)
GOOGLENET = GoogLeNet("small", narrow=16, image=8, **SMALL)
INCEPTION = InceptionV3("small", narrow=32, image=12, **SMALL)


STEPS: tuple[Any, ...] = (
    *(Pooling("max", 3, 2), Pooling("max", 3, 2, up=True), Pooling("max", 2, 2, up=True)),
    *(Pooling("max", 3, 2, padding=1), Pooling("max", 3, 2, padding=1, up=True), Pooling("max", 2, 3, up=True)),
    *(Pooling("mean", 3, 1, padding=1), Convolution(2, (7, 7), 4, (2, 2)), Convolution(2, (3, 3), 2)),
    Branches(((Convolution(2, (1, 3), 1, (0, 1)),), (Pooling("max", 3, 1, padding=1), Convolution(3)))),
)


def test_every_side_is_torchs_own() -> None:
    for step in STEPS:
        for side in range(7, 21):
            with torch.device("meta"):
                output = Chained((Convolution(2), step), (2, side))(torch.empty(1, 2, side, side))
            channels, image = after((step,), (2, side))
            assert (*output.shape[1:],) == (channels, image, image), (step, side)


def conv(layer: Any, x: torch.Tensor, **how: Any) -> torch.Tensor:
    """Convolution, batch norm of its own batch and ReLU, nothing written in place."""
    y = F.conv2d(x, layer.conv.weight, layer.conv.bias, **how)
    mean, spread = y.mean((0, 2, 3), keepdim=True), y.var((0, 2, 3), unbiased=False, keepdim=True)
    return torch.relu((y - mean) / torch.sqrt(spread + layer.norm.eps))


def test_googlenets_module_computes_what_its_paper_says() -> None:
    torch.manual_seed(0)
    _, module, *_ = [make().double() for make in chain.layers(GOOGLENET)]
    x = torch.randn(3, 12, 8, 8, dtype=torch.float64)
    one, three, five, pooled = module.steps[0].chains
    straight = conv(one[0], x)
    spread = conv(three[1], conv(three[0], x), padding=1)
    wide = conv(five[2], conv(five[1], conv(five[0], x), padding=1), padding=1)
    largest = conv(pooled[1], F.max_pool2d(x, 3, 1, 1))
    torch.testing.assert_close(module(x), torch.cat([straight, spread, wide, largest], dim=1))


def test_inceptions_modules_compute_what_their_paper_says() -> None:
    torch.manual_seed(0)
    modules = [make().double() for make in chain.layers(INCEPTION)]
    names = {layer.name: module for layer, module in zip(INCEPTION.shapes(), modules, strict=True)}
    steps: Any
    (steps,) = names["inception 6b"].steps
    x = torch.randn(3, 24, 5, 5, dtype=torch.float64)
    one, short, long, mean = steps.chains
    across, down = {"padding": (0, 3)}, {"padding": (3, 0)}
    y = conv(short[2], conv(short[1], conv(short[0], x), **across), **down)
    z = conv(long[2], conv(long[1], conv(long[0], x), **down), **across)
    z = conv(long[4], conv(long[3], z, **down), **across)
    want = torch.cat([conv(one[0], x), y, z, conv(mean[1], F.avg_pool2d(x, 3, 1, 1))], dim=1)
    torch.testing.assert_close(names["inception 6b"](x), want)

    (steps,) = names["inception 7b"].steps
    x = torch.randn(3, 40, 5, 5, dtype=torch.float64)
    one, short, long, mean = steps.chains
    y, z = conv(short[0], x), conv(long[1], conv(long[0], x), padding=1)
    ends = [
        conv(chains[number][0], value, padding=padding)
        for chains, value in ((short[1].chains, y), (long[2].chains, z))
        for number, padding in enumerate(((0, 1), (1, 0)))
    ]
    want = torch.cat([conv(one[0], x), *ends, conv(mean[1], F.avg_pool2d(x, 3, 1, 1))], dim=1)
    torch.testing.assert_close(names["inception 7b"](x), want)

    (steps,) = names["inception 7a"].steps
    x = torch.randn(3, 24, 5, 5, dtype=torch.float64)
    short, long, _ = steps.chains
    y = conv(short[1], conv(short[0], x), stride=2)
    z = conv(long[3], conv(long[2], conv(long[1], conv(long[0], x), **across), **down), stride=2)
    torch.testing.assert_close(names["inception 7a"](x), torch.cat([y, z, F.max_pool2d(x, 3, 2)], dim=1))


def test_alexnet_computes_what_its_paper_says() -> None:
    torch.manual_seed(0)
    modules: Any = [make().double() for make in chain.layers(ALEXNET)]
    x = torch.randint(0, 256, (3, 1, 16, 16), dtype=torch.uint8)
    y = x.double() / 127.5 - 1
    for number, side in enumerate((5, 3, 3, 3, 3)):
        y = torch.relu(F.conv2d(y, modules[number].steps[0].conv.weight, padding=side // 2))
        if number in (0, 1, 4):
            y = F.max_pool2d(y, 3, 2)
    y = y.flatten(1)
    for number in (5, 6, 7):
        y = F.linear(y, modules[number].linear.weight)
        y = y if number == 7 else torch.relu(y)
    torch.testing.assert_close(run(modules, x), y)


def test_dropout_precedes_the_first_dense_layers() -> None:
    """AlexNet applies dropout before its first two dense layers; the other networks before their only one."""
    assert [make().draws for make in chain.layers(ALEXNET, dropout=0.5)] == [False] * 5 + [True, False, False]
    assert [make().draws for make in chain.layers(GOOGLENET, dropout=0.2)] == [False] * 10 + [True]
    assert not any(make().draws for shape in (ALEXNET, GOOGLENET) for make in chain.layers(shape))
    first: Any = chain.layers(ALEXNET, dropout=0.5)[5]().train()
    nn.init.eye_(first.linear.weight)
    torch.manual_seed(0)
    surviving = first(torch.ones(200, ALEXNET.features))[:, :4]
    assert set(surviving.unique().tolist()) == {0.0, 4.0}, "dropped twice, and what is left is doubled twice"
    assert (surviving == 0).float().mean() == pytest.approx(0.75, abs=0.06)
    assert (first.eval()(torch.ones(1, ALEXNET.features))[:, :4] == 1).all()
    last: Any = chain.layers(GOOGLENET, dropout=0.2)[-1]()
    nn.init.eye_(last.linear.weight)
    nn.init.zeros_(last.linear.bias)
    surviving = last.train()(torch.ones(400, GOOGLENET.last[0], 2, 2))
    assert (surviving == 0).float().mean() == pytest.approx(0.2, abs=0.03)


def test_batch_norms_are_published_ones() -> None:
    for shape, eps in ((GoogLeNet(narrow=32), 1e-3), (GOOGLENET, 1e-5), (INCEPTION, 1e-3)):
        with torch.device("meta"):
            norms = [m for make in chain.layers(shape) for m in make().modules() if isinstance(m, nn.BatchNorm2d)]
        assert norms
        assert {norm.eps for norm in norms} == {eps}


PUBLISHED: dict[str, Any] = {"colours": 3, "mean": [0.485, 0.456, 0.406], "deviation": [0.229, 0.224, 0.225]}


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (chain, AlexNet((4, 6, 8, 6, 4), (5, 3, 3, 3, 3), stride=1, image=16, **PUBLISHED)),
        (convnet, VGG((4, 4), (1, 1), image=16, **PUBLISHED)),
        (convnet, ResNet((4,), (1,), image=16, **PUBLISHED)),
    ],
)
def test_first_layer_alone_normalises_the_bytes_of_images(network: Any, shape: Any) -> None:
    first, second, *_ = [make().double() for make in network.layers(shape, dtype="float64")]
    pictures = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    before = pictures.clone()
    mean, deviation = (
        torch.tensor(PUBLISHED[name], dtype=torch.float64).view(3, 1, 1) for name in ("mean", "deviation")
    )
    output = first(pictures)
    torch.testing.assert_close(output, first((pictures.double() / 255 - mean) / deviation))
    assert second(output).isfinite().all()
    assert torch.equal(pictures, before), "the batch is as it was"


def test_top_1_and_top_5_by_hand() -> None:
    """Of four rows the first is right, the second second, the third fifth, the fourth sixth and last."""
    logits = torch.tensor([[5.0, 4, 3, 2, 1, 0]]).repeat(4, 1)
    ranks = accuracy.top(logits, torch.tensor([0, 1, 4, 5]))
    assert (ranks.tolist(), ranks.dtype) == ([25.0, 75.0], torch.float32)
    few = torch.tensor([[0.0, 1, 2], [2, 1, 0]])
    assert accuracy.top(few, torch.tensor([0, 0])).tolist() == [50.0, 100.0]
    for network in (convnet, chain):
        assert network.SCORES == ("top_1", "top_5")
        assert network.scores(logits, torch.tensor([0, 1, 4, 5])).tolist() == [25.0, 75.0]


def test_a_network_that_has_diverged_is_right_about_nothing() -> None:
    logits = torch.full((10, 10), float("nan"))
    assert accuracy.top(logits, torch.arange(10)).tolist() == [0.0, 0.0], "whichever five of them are taken"
    logits[9] = torch.arange(10.0)
    assert accuracy.top(logits, torch.arange(10)).tolist() == pytest.approx([10.0, 10.0])


def test_scores_and_loss_have_one_type() -> None:
    """They are sent in one tensor, so neither may lose precision through the type of the other."""
    for dtype, expected in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        ranks = accuracy.top(torch.eye(7, dtype=dtype), torch.arange(7))
        assert ranks.dtype == convnet.loss(torch.eye(7, dtype=dtype), torch.arange(7)).dtype == expected
