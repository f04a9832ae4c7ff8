"""Published parameter counts of the convolutional networks."""

from __future__ import annotations

from typing import Any

import pytest

from suite.core.errors import InvalidRequest
from suite.workload import VGG, ResNet, WideResNet
from suite.workload.convnet import convolution, halved, linear, norm, parameters
from suite.workload.flops import forward, training
from suite.workload.split import blocks, divide
from tests.support.refusals import fault, refused


def test_parts_by_hand() -> None:
    assert convolution(3, 8, 5, bias=False) == 3 * 8 * 25
    assert convolution(3, 8, 5, bias=True) == 3 * 8 * 25 + 8
    assert linear(4, 7) == 35
    assert norm(6) == 12
    assert [halved(side) for side in (224, 7, 2, 1)] == [112, 4, 1, 1]


def test_vgg_19() -> None:
    layers = VGG().shapes()
    assert len(layers) == 16 + 3
    assert (layers[0].name, layers[0].parameters) == ("conv 0.0", 3 * 64 * 9 + 64)
    assert (layers[-3].name, layers[-3].parameters) == ("linear 0", 512 * 7 * 7 * 4096 + 4096)
    assert parameters(VGG()) == VGG().parameters == 143_667_240  # torchvision's vgg19
    assert parameters(VGG()) - parameters(VGG(classes=10)) == 990 * 4097
    assert forward(VGG()) == pytest.approx(2 * 19.63e9, rel=1e-3)  # multiply-adds as torchvision's table has them


def test_vgg_16() -> None:
    network = VGG(convolutions=(2, 2, 3, 3, 3))
    assert parameters(network) == 138_357_544  # torchvision's vgg16
    assert forward(network) == pytest.approx(2 * 15.47e9, rel=1e-3)
    # torchvision's vgg16_bn has two numbers more for each of 4224 channels
    assert VGG(convolutions=(2, 2, 3, 3, 3), norm=True).parameters == 138_357_544 + 2 * 4224 == 138_365_992
    # PipeOptim's authors: stages of 0.04, 1.7, 5.9 and 7.1 million
    small = VGG(convolutions=(2, 2, 3, 3, 3), dense=1, norm=True, image=32, classes=100)
    assert small.parameters == pytest.approx(14.74e6, rel=0.005)
    assert (small.layers, small.shapes()[-1].parameters) == (14, 513 * 100)


def test_wide_resnet_101() -> None:
    layers = WideResNet().shapes()
    assert len(layers) == 1 + 33 + 1
    assert (layers[0].name, layers[0].parameters) == ("stem", 3 * 64 * 49 + 128)
    # 64 channels to 128, 128, 256 and straight to 256
    weights = 64 * 128 + 128 * 128 * 9 + 128 * 256 + 64 * 256
    first = weights + 2 * (128 + 128 + 256 + 256)
    assert (layers[1].name, layers[1].parameters, sum(layers[1].prunable)) == ("block 0.0", first, weights)
    assert parameters(WideResNet()) == WideResNet().parameters == 126_886_696  # torchvision's wide_resnet101_2
    assert parameters(WideResNet(widen=1)) == ResNet().parameters == 44_549_160  # torchvision's resnet101
    assert forward(ResNet()) == pytest.approx(2 * 7.80e9, rel=1e-3)
    assert forward(WideResNet()) == pytest.approx(2 * 22.75e9, rel=1e-3)


def test_a_ticket_prunes_neither_biases_nor_norms() -> None:
    vgg, resnet = VGG(), WideResNet()
    biases = 2 * 64 + 2 * 128 + 4 * 256 + 8 * 512 + 2 * 4096 + 1000
    assert vgg.parameters - sum(sum(layer.prunable) for layer in vgg.shapes()) == biases
    inner = sum(4 * 2 * planes * count for planes, count in ((64, 3), (128, 4), (256, 23), (512, 3)))
    outer = sum(2 * 4 * planes * (count + 1) for planes, count in ((64, 3), (128, 4), (256, 23), (512, 3)))
    assert resnet.parameters - sum(sum(layer.prunable) for layer in resnet.shapes()) == inner + outer + 128 + 1000


def test_vgg_bytes_by_hand() -> None:
    """Two groups on 8 x 8, float32: 3 x 64 numbers enter, 2 x 64 are made, pooled to 2 x 16 with 8 bytes a place."""
    first, second, *dense = VGG((2, 4), (1, 1), hidden=5, image=8, classes=3).shapes()
    assert (first.saved, first.output) == (4 * (192 + 128) + 8 * 32, 4 * 32)
    assert (first.working, first.weight_working) == (4 * 2 * 128, 4 * 54)  # an image has no gradient
    assert (second.saved, second.output) == (4 * (32 + 64) + 8 * 16, 4 * 16)
    assert second.working == 4 * 2 * 64
    assert [layer.flops for layer in dense] == [2 * 16 * 5, 2 * 5 * 5, 2 * 5 * 3]
    assert [layer.saved for layer in dense] == [4 * 16, 4 * 5, 4 * 5 + 4 * 3]
    normed, _, *dense = VGG((2, 4), (1, 1), hidden=5, image=8, classes=3, norm=True, dense=2).shapes()
    assert normed.saved == first.saved + 4 * 128, "a norm keeps what enters it"
    assert normed.parameters == first.parameters + 4
    assert [layer.parameters for layer in dense] == [17 * 5, 6 * 3]
    half = VGG((2, 4), (1, 1), hidden=5, image=8, classes=3).shapes(width=2)
    assert half[-1].saved == 2 * 5 + 4 * 3, "the loss is in single precision at least"


def test_bottleneck_bytes_by_hand() -> None:
    """The second group's first block on 8 x 8: 8 channels to 4 inner ones, there halved, and 8; a way round to 8."""
    shape = WideResNet(planes=(2, 2), blocks=(1, 1), widen=2, stem=8, image=32, classes=3)
    stem, straight, halving, last = shape.shapes()
    assert stem.saved == 4 * (3 * 32**2 + 2 * 8 * 16**2) + 8 * (8 * 8**2)
    assert straight.saved == 4 * (8 + 4 * 4 + 8) * 64, "no convolution around where nothing changes"
    assert halving.saved == 4 * (8 * 64 + 2 * 4 * (64 + 16) + 2 * 8 * 16)
    assert halving.flops == 2 * (8 * 4 * 64 + (4 * 4 * 9 + 4 * 8 + 8 * 8) * 16)
    assert last.saved == 4 * (8 * 16 + 8) + 4 * 3
    assert halving.output == 4 * 8 * 16


def test_training_counts_three_passes_and_every_layer_again() -> None:
    shape = VGG((2, 4), (1, 1), hidden=5, image=8, classes=3)
    assert training(shape, 6) == 18 * forward(shape)
    assert training(shape, 6, recompute=True) == 24 * forward(shape)


def test_every_layer_of_a_network_of_images_is_a_block() -> None:
    split = divide(VGG(), 3, "even")
    assert [len(part) for part in split] == [7, 6, 6]
    assert blocks(VGG(), split) == (7, 6, 6)
    costly = divide(WideResNet(), 3, "cost")
    shares = [sum(WideResNet().shapes()[layer].flops for layer in part) for part in costly]
    assert max(shares) < 1.1 * min(shares)


def test_lists_make_the_same_key_as_tuples() -> None:
    assert {VGG(channels=[64, 128, 256, 512, 512]), VGG()} == {VGG()}


def test_a_batch_norm_needs_two_numbers() -> None:
    assert WideResNet(image=224).least_microbatch == WideResNet(image=33).least_microbatch == 1
    assert WideResNet(image=32).least_microbatch == 2


@pytest.mark.parametrize(
    ("kind", "wrong", "expected"),
    [
        (VGG, {"image": 48}, fault("model.shape.image", "48", subject="with 5 poolings", legal="model.shape.image=64")),
        (
            VGG,
            {"convolutions": [1, 1]},
            fault(
                "model.shape.channels",
                "[64, 128, 256, 512, 512]",
                subject="convolutions=[1, 1]",
                rule="one of each per group",
            ),
        ),
        (VGG, {"channels": [8, 0]}, fault("model.shape.channels", "[8, 0]", rule="at least 1")),
        (VGG, {"dense": 0}, fault("model.shape.dense", "0")),
        (VGG, {"classes": 0}, fault("model.shape.classes", "0")),
        (
            WideResNet,
            {"planes": [4]},
            fault(
                "model.shape.planes",
                "[4]",
                subject="with model.shape.blocks=[3, 4, 23, 3]",
                legal="model.shape.blocks=[1]",
            ),
        ),
        (WideResNet, {"widen": True}, fault("model.shape.widen", "True", rule="a whole number")),
    ],
)
def test_shapes_that_cannot_be_are_refused(kind: Any, wrong: dict[str, Any], expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        kind(**wrong)
