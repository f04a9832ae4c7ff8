"""Networks of images: counts of their layers, references after their papers, and their scores."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite.core.errors import InvalidRequest
from suite.models import convnet, shared
from suite.models.image_shapes import VGG, AlexNet, GoogLeNet, InceptionV3, ResNet, WideResNet
from suite.models.shared import on_meta
from suite.workload.flops import forward, training
from tests.support.networks import run
from tests.support.refusals import refused

SMALL: dict[str, Any] = {"colours": 1, "classes": 10}
NARROW_VGG = VGG((4, 8), (1, 2), hidden=12, image=16, **SMALL)
NARROW_NORMED = VGG((4, 8), (1, 2), dense=1, norm=True, image=16, **SMALL)
NARROW_RESNET = WideResNet((4, 8), (1, 2), widen=2, stem=8, image=32, **SMALL)
ALEXNET = AlexNet((4, 6, 8, 6, 4), (5, 3, 3, 3, 3), stride=1, padding=2, hidden=12, image=16, **SMALL)
GOOGLENET = GoogLeNet("small", narrow=16, image=8, **SMALL)
INCEPTION = InceptionV3("small", narrow=32, image=12, **SMALL)
VGG_16 = (2, 2, 3, 3, 3)
layers: Callable[..., Any] = convnet.layers

# -- counts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "published", "layers", "multiply_adds"),
    [  # torchvision's tables; GoogLeNet's and Inception's without the auxiliary classifiers
        (VGG(), 143_667_240, 16 + 3, 19.63e9),
        (VGG(convolutions=VGG_16), 138_357_544, 13 + 3, 15.47e9),
        (VGG(convolutions=VGG_16, dense=1, norm=True, image=32, classes=100), 14_774_436, 13 + 1, None),
        (WideResNet(), 126_886_696, 1 + 33 + 1, 22.75e9),
        (ResNet(), 44_549_160, 1 + 33 + 1, 7.80e9),
        (AlexNet(), 61_100_840, 8, 0.714e9),
        (GoogLeNet(), 6_624_904, 11, 1.498e9),
        (GoogLeNet("small", image=32, classes=100), 6_258_500, 11, None),
        (InceptionV3(), 23_834_568, 15, 5.713e9),
    ],
    ids=lambda value: type(value).__name__,
)
def test_published_weights_and_flops(shape: Any, published: int, layers: int, multiply_adds: float | None) -> None:
    assert shape.parameters == published
    assert len(shape.shapes()) == layers
    assert multiply_adds is None or forward(shape) == pytest.approx(2 * multiply_adds, rel=1e-3)


def test_bytes_by_hand() -> None:
    """Two groups on 8 x 8, float32: 3 x 64 numbers enter, 2 x 64 are made, pooled to 2 x 16 with 8 bytes a place."""
    tiny: Any = {"convolutions": (1, 1), "channels": (2, 4), "hidden": 5, "image": 8, "classes": 3}
    first, second, *dense = VGG(**tiny).shapes()
    assert (first.saved, first.output) == (4 * (192 + 128) + 8 * 32, 4 * 32)
    # the gradient that enters, and that before and after ReLU, when the indices of the pooling are freed; an image has
    # no gradient
    assert (first.working, first.weight_working) == (4 * (32 + 2 * 128) - 8 * 32, 4 * 54)
    assert (first.deferred, first.owed, second.deferred) == (0, 0, second.flops)
    assert (second.saved, second.output, second.owed) == (4 * (32 + 64) + 8 * 16, 4 * 16, 4 * (32 + 64))
    assert [layer.flops for layer in dense] == [2 * 16 * 5, 2 * 5 * 5, 2 * 5 * 3]
    assert [layer.saved for layer in dense] == [4 * 16, 4 * 5, 4 * 5 + 4 * 3]
    assert dense[0].prunable == (16 * 5,)
    normed, _, *dense = VGG(**tiny, norm=True, dense=2).shapes()
    assert (normed.saved, normed.parameters) == (first.saved + 4 * 128, first.parameters + 4)
    assert VGG(**tiny).shapes(width=2)[-1].saved == 2 * 5 + 4 * 3, "the loss is in single precision at least"
    assert [training(VGG(**tiny), 6, recompute=again) / forward(VGG(**tiny)) for again in (False, True)] == [18, 24]


def test_a_batch_norm_needs_two_numbers() -> None:
    assert [WideResNet(image=side).least_microbatch for side in (32, 33)] == [2, 1]
    assert [GoogLeNet("small", image=side).least_microbatch for side in (4, 8)] == [2, 1]


@pytest.mark.slow("two whole networks are trained")
def test_ranks_that_are_threads_count_at_once() -> None:
    shapes = [GoogLeNet("small", narrow=32, image=side) for side in (8, 9, 10, 11)]
    with ThreadPoolExecutor(4) as threads:
        assert [len(each) for each in threads.map(lambda shape: shape.shapes(), shapes)] == [11] * 4


def test_counting_leaves_no_mark_on_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that kept the stand-in's answer would not be excluded from a compiler that is loaded later."""
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    monkeypatch.delitem(vars(torch), "_dynamo", raising=False)
    kernel: Any = torch._refs.add
    while kernel := getattr(kernel, "__wrapped__", None):
        monkeypatch.delattr(kernel, "__dynamo_disable", raising=False)
    with on_meta():
        torch.ones(2).add(torch.ones(2), alpha=2)
    assert "torch._dynamo" not in sys.modules
    kernel = torch._refs.add
    while kernel := getattr(kernel, "__wrapped__", None):
        assert "__dynamo_disable" not in vars(kernel)


def test_lists_make_the_same_key_as_tuples() -> None:
    assert {AlexNet(channels=[64, 192, 384, 256, 256], mean=[0.5]), AlexNet()} == {AlexNet()}
    assert len({GoogLeNet(), GoogLeNet("small"), GoogLeNet(narrow=2), InceptionV3(image=224)}) == 4


@pytest.mark.parametrize(
    ("kind", "key", "value", "more", "legal"),
    [
        (VGG, "channels", (0,), {}, "model.shape.channels=[1]"),
        (AlexNet, "channels", [8, 8], {}, "model.shape.sides=[1, 1]"),
        (AlexNet, "sides", [11, 5, 4, 3, 3], {}, ""),
        (GoogLeNet, "form", "photograph", {}, "photographs"),
        (VGG, "mean", [0.5, 0.5], {}, "[0.5, 0.5, 0.5]"),
        *((VGG, "deviation", value, {}, "") for value in ([0.5, 0, 0.5], [float("inf")])),
    ],
)
def test_impossible_networks_are_refused(kind: Any, key: str, value: Any, more: dict[str, int], legal: str) -> None:
    with refused(InvalidRequest, f"model.shape.{key}", str(value), legal=legal):
        kind(**{key: value}, **more)


def test_images_that_are_too_small_are_refused_when_layers_are_counted() -> None:
    for shape, legal in ((AlexNet(image=32), 224), (InceptionV3(image=32), 299), (VGG(image=16), 224)):
        with refused(InvalidRequest, "model.shape.image", shape.image, legal=f"model.shape.image={legal}"):
            shape.shapes()


# -- references --------------------------------------------------------------------------------------------------------


def test_narrow_dense_layer_has_the_output_of_a_wide_one() -> None:
    deviation = layers(VGG((4,), (1,), hidden=64, image=16, classes=10))[-2]().linear.weight.std().item()
    assert deviation == pytest.approx(0.08, rel=0.05)  # 0.01 at 4096


def conv(layer: Any, x: torch.Tensor, relu: bool = True, **how: Any) -> torch.Tensor:
    """Convolution, batch norm of its own batch and ReLU, nothing written in place."""
    y = F.conv2d(x, layer.conv.weight, layer.conv.bias, **how)
    if layer.norm is not None:
        mean, spread = y.mean((0, 2, 3), keepdim=True), y.var((0, 2, 3), unbiased=False, keepdim=True)
        y = (y - mean) / torch.sqrt(spread + layer.norm.eps)
    return torch.relu(y) if relu else y


@pytest.mark.parametrize(
    ("shape", "side", "pooled"),
    [(NARROW_VGG, 2, (0, 2)), (NARROW_NORMED, 2, (0, 2)), (ALEXNET, 3, (0, 1, 4))],  # layers before a pooling
)
def test_chains_compute_what_their_papers_say(shape: Any, side: int, pooled: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    modules: Any = [make().double() for make in layers(shape)]
    x = torch.randint(0, 256, (3, 1, 16, 16), dtype=torch.uint8)
    want = x.double() / 127.5 - 1
    for number, module in enumerate(modules):
        if isinstance(module, convnet.Dense):
            want = F.linear(want.flatten(1), module.linear.weight, module.linear.bias)
            want = want if module is modules[-1] else torch.relu(want)
            continue
        want = conv(module.steps[0], want, padding=module.steps[0].conv.weight.shape[2] // 2)
        want = F.max_pool2d(want, side, 2) if number in pooled else want
    torch.testing.assert_close(run(modules, x), want)


def test_a_residual_network_computes_what_its_paper_says() -> None:
    torch.manual_seed(0)
    modules: Any = [make().double() for make in layers(NARROW_RESNET)]
    stem, *blocks, last = modules
    x = torch.randint(0, 256, (3, 1, 32, 32), dtype=torch.uint8)
    y = F.max_pool2d(conv(stem.steps[0], x.double() / 127.5 - 1, stride=2, padding=3), 3, 2, 1)
    for block in blocks:
        (one, three, last_one), around = block.steps[0].inner, block.steps[0].around
        stride = {"stride": three.conv.stride}
        z = conv(last_one, conv(three, conv(one, y), padding=1, **stride), relu=False)
        y = torch.relu(z + (y if around is None else conv(around, y, relu=False, **stride)))
    torch.testing.assert_close(run(modules, x), last.linear(y.mean((2, 3))))


def test_googlenets_module_computes_what_its_paper_says() -> None:
    torch.manual_seed(0)
    _, module, *_ = [make().double() for make in layers(GOOGLENET)]
    x = torch.randn(3, 12, 8, 8, dtype=torch.float64)
    one, three, five, pooled = module.steps[0].chains
    straight = conv(one[0], x)
    spread = conv(three[1], conv(three[0], x), padding=1)
    wide = conv(five[2], conv(five[1], conv(five[0], x), padding=1), padding=1)
    largest = conv(pooled[1], F.max_pool2d(x, 3, 1, 1))
    torch.testing.assert_close(module(x), torch.cat([straight, spread, wide, largest], dim=1))


def test_inceptions_module_computes_what_its_paper_says() -> None:
    torch.manual_seed(0)
    module: Any = layers(INCEPTION)[5]().double()  # 6b
    (steps,) = module.steps
    x = torch.randn(3, 24, 5, 5, dtype=torch.float64)
    one, short, long, mean = steps.chains
    across, down = {"padding": (0, 3)}, {"padding": (3, 0)}
    y = conv(short[2], conv(short[1], conv(short[0], x), **across), **down)
    z = conv(long[2], conv(long[1], conv(long[0], x), **down), **across)
    z = conv(long[4], conv(long[3], z, **down), **across)
    want = torch.cat([conv(one[0], x), y, z, conv(mean[1], F.avg_pool2d(x, 3, 1, 1))], dim=1)
    torch.testing.assert_close(module(x), want)


def test_dropout_precedes_the_first_dense_layers() -> None:
    """AlexNet applies dropout before its first two dense layers; the other networks before their only one."""
    assert [make().draws for make in layers(NARROW_VGG, dropout=0.5)] == [False] * 3 + [True, True, False]
    assert [make().draws for make in layers(ALEXNET, dropout=0.5)] == [False] * 5 + [True, False, False]
    assert [make().draws for make in layers(GOOGLENET, dropout=0.2)] == [False] * 10 + [True]
    assert not any(make().draws for shape in (ALEXNET, GOOGLENET) for make in layers(shape))
    first: Any = layers(ALEXNET, dropout=0.5)[5]().train()
    dense_inputs = first.linear.in_features
    nn.init.eye_(first.linear.weight)
    torch.manual_seed(0)
    surviving = first(torch.ones(200, dense_inputs))[:, :4]
    assert set(surviving.unique().tolist()) == {0.0, 4.0}, "dropped twice, and what is left is doubled twice"
    assert (surviving == 0).float().mean() == pytest.approx(0.75, abs=0.06)
    assert (first.eval()(torch.ones(1, dense_inputs))[:, :4] == 1).all()


def test_batch_norms_are_published_ones() -> None:
    for shape, eps in ((GoogLeNet(narrow=32), 1e-3), (GOOGLENET, 1e-5), (INCEPTION, 1e-3)):
        with torch.device("meta"):
            norms = [m for make in layers(shape) for m in make().modules() if isinstance(m, nn.BatchNorm2d)]
        assert norms
        assert {norm.eps for norm in norms} == {eps}


PUBLISHED: dict[str, Any] = {"colours": 3, "mean": [0.485, 0.456, 0.406], "deviation": [0.229, 0.224, 0.225]}


def test_first_layer_alone_normalises_the_bytes_of_images() -> None:
    assert VGG(mean=[0.5, 0.25, 0.0]).scaling == ((127.5, 1.0), (127.5, 0.5), (127.5, 0.0))
    shape = ResNet((4,), (1,), image=16, **PUBLISHED)
    first, second, *_ = [make().double() for make in layers(shape, dtype="float64")]
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
    ranks = shared.top(logits, torch.tensor([0, 1, 4, 5]))
    assert (ranks.tolist(), ranks.dtype) == ([25.0, 75.0], torch.float32)
    few = torch.tensor([[0.0, 1, 2], [2, 1, 0]])
    assert convnet.scores(few, torch.tensor([0, 0])).tolist() == [50.0, 100.0]


def test_a_network_that_has_diverged_is_right_about_nothing() -> None:
    logits = torch.full((10, 10), float("nan"))
    assert shared.top(logits, torch.arange(10)).tolist() == [0.0, 0.0], "whichever five of them are taken"
    logits[9] = torch.arange(10.0)
    assert shared.top(logits, torch.arange(10)).tolist() == pytest.approx([10.0, 10.0])


def test_scores_and_loss_have_one_type() -> None:
    """They are sent in one tensor, so neither may lose precision through the type of the other."""
    for dtype, expected in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        ranks = shared.top(torch.eye(7, dtype=dtype), torch.arange(7))
        assert ranks.dtype == convnet.loss(torch.eye(7, dtype=dtype), torch.arange(7)).dtype == expected
