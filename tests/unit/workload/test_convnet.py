"""Weights, flops and bytes of convolutional networks: published counts, and chains of layers by hand."""

from __future__ import annotations

from typing import Any

import pytest

from suite.core.errors import InvalidRequest, UnknownName
from suite.workload import VGG, AlexNet, GoogLeNet, InceptionV3, ResNet, WideResNet
from suite.workload.conv_spec import Branches, Convolution, Pooling, after, check_image, counted, through
from suite.workload.convnet import parameters
from suite.workload.flops import forward, training
from suite.workload.normalization import scaling
from suite.workload.split import blocks, divide
from tests.support.refusals import refused

# -- chains by hand ----------------------------------------------------------------------------------------------------

PLAIN = Convolution(4, (3, 3), padding=(1, 1), norm=False, bias=True)
NORMED = Convolution(4, (3, 3), padding=(1, 1))
HALF = Pooling("max", 2, 2)
ONE_THREE, THREE_ONE = (Branches(((Convolution(first),), (Convolution(second),))) for first, second in ((1, 3), (3, 1)))


@pytest.mark.parametrize(
    ("chain", "entering", "width", "saved"),
    [
        # the input has 2 x 64 numbers, the output 4 x 64; without a norm only the input is saved, because the output
        # of the ReLU belongs to the next layer; a norm saves its input, a pooling its input and 8 bytes per position
        ((PLAIN,), (2, 8), 4, 4 * 128),
        ((NORMED,), (2, 8), 4, 4 * (128 + 256)),
        ((NORMED, HALF), (2, 8), 4, 4 * (128 + 256 + 256) + 8 * 64),
        ((NORMED, HALF), (2, 8), 2, 2 * (128 + 256 + 256) + 8 * 64),
        # 16 numbers enter each of two branches, which save 2 x 16 and 2 x 3 x 16 of their own
        ((ONE_THREE,), (1, 4), 1, 16 + 2 * 16 + 2 * 48),
        # pooled numbers are copied into the concatenated output, and no operation saves them
        (
            (Branches(((Convolution(1, (3, 3), 2),), (Pooling("max", 3, 2),))),),
            *((2, 7), 4, 4 * (2 * 49 + 2 * 9) + 8 * 2 * 9),
        ),
    ],
)
def test_saved_bytes_by_hand(chain: Any, entering: tuple[int, int], width: int, saved: int) -> None:
    assert counted("a", chain, entering, width=width).saved == saved


@pytest.mark.parametrize(
    ("chain", "entering", "images", "working"),
    [
        # backward pass of the ReLU of PLAIN: its output of 256, and two gradients of that size; an image has no
        # gradient, that of any other input has 128 numbers, and by then the output is freed
        ((PLAIN,), (2, 8), True, 3 * 256),
        ((PLAIN,), (20, 8), True, 3 * 256),
        ((PLAIN,), (20, 8), False, 256 + 20 * 64),
        # all saved values, the gradient of the concatenation (64), and the gradient of the second branch's ReLU (48)
        ((ONE_THREE,), (1, 4), False, 64 + 48),
        # the second branch has let go of its 2 x 16; the input's gradient waits, and the joined one is still read
        ((THREE_ONE,), (1, 4), False, -2 * 16 + 16 + 64 + 48),
    ],
)
def test_most_bytes_of_a_backward_pass_by_hand(
    chain: Any, entering: tuple[int, int], images: bool, working: int
) -> None:
    assert counted("a", chain, entering, width=1, images=images).working == working
    assert after((ONE_THREE,), (1, 4)) == (4, 4)
    assert counted("a", (ONE_THREE,), (1, 4), width=1).parameters == 1 * 1 + 2 + 1 * 3 + 6
    # the larger of two matrices has 2 * 4 * 9 entries, the other 4 * 6 * 3
    chain = (PLAIN, HALF, Convolution(6, (1, 3), padding=(0, 1)))
    assert [counted("a", part, (2, 8), width=4).weight_working for part in (chain, (HALF,))] == [4 * 72, 0]


def test_impossible_chains_are_refused() -> None:
    for chain, entering, subject in (
        (Branches(((Convolution(1),), (HALF,))), (1, 4), "branches with outputs of sides [4, 2]"),
        (Convolution(1, (3, 1)), (1, 4), "an output of 2 x 4 pixels"),
        (Convolution(1, (3, 3)), (1, 2), "an image of 2 x 2 pixels"),
    ):
        with refused(InvalidRequest, subject=subject):
            through(chain, entering)
    small = (Convolution(1, (5, 5), 2), HALF)
    for side in (4, 6):
        with refused(InvalidRequest, "model.shape.image", str(side), legal="model.shape.image=7"):
            check_image("a toy", small, (1, side))
    check_image("a toy", small, (1, 7))


# -- published networks ------------------------------------------------------------------------------------------------

VGG_16 = (2, 2, 3, 3, 3)


@pytest.mark.parametrize(
    ("shape", "published", "layers", "multiply_adds"),
    [  # torchvision's tables; GoogLeNet's and Inception's without the auxiliary classifiers
        (VGG(), 143_667_240, 16 + 3, 19.63e9),
        (VGG(convolutions=VGG_16), 138_357_544, 13 + 3, 15.47e9),
        (VGG(convolutions=VGG_16, norm=True), 138_365_992, 13 + 3, 15.47e9),  # two numbers more for 4224 channels
        (WideResNet(), 126_886_696, 1 + 33 + 1, 22.75e9),
        (ResNet(), 44_549_160, 1 + 33 + 1, 7.80e9),
        (AlexNet(), 61_100_840, 8, 0.714e9),
        (GoogLeNet(), 6_624_904, 11, 1.498e9),
        (InceptionV3(), 23_834_568, 15, 5.713e9),
    ],
    ids=["VGG-19", "VGG-16", "VGG-16-BN", "WideResNet", "ResNet", "AlexNet", "GoogLeNet", "Inception-V3"],
)
def test_published_weights_and_flops(shape: Any, published: int, layers: int, multiply_adds: float) -> None:
    assert parameters(shape) == shape.parameters == published
    assert len(shape.shapes()) == shape.layers == layers
    assert forward(shape) == pytest.approx(2 * multiply_adds, rel=1e-3)


def test_vgg_bytes_by_hand() -> None:
    """Two groups on 8 x 8, float32: 3 x 64 numbers enter, 2 x 64 are made, pooled to 2 x 16 with 8 bytes a place."""
    tiny: Any = {"convolutions": (1, 1), "channels": (2, 4), "hidden": 5, "image": 8, "classes": 3}
    first, second, *dense = VGG(**tiny).shapes()
    assert (first.saved, first.output) == (4 * (192 + 128) + 8 * 32, 4 * 32)
    assert (first.working, first.weight_working) == (4 * 2 * 128, 4 * 54)  # an image has no gradient
    assert (second.saved, second.output, second.working) == (4 * (32 + 64) + 8 * 16, 4 * 16, 4 * 2 * 64)
    assert [layer.flops for layer in dense] == [2 * 16 * 5, 2 * 5 * 5, 2 * 5 * 3]
    assert [layer.saved for layer in dense] == [4 * 16, 4 * 5, 4 * 5 + 4 * 3]
    normed, _, *dense = VGG(**tiny, norm=True, dense=2).shapes()
    assert (normed.saved, normed.parameters) == (first.saved + 4 * 128, first.parameters + 4)
    assert [layer.parameters for layer in dense] == [17 * 5, 6 * 3]
    assert VGG(**tiny).shapes(width=2)[-1].saved == 2 * 5 + 4 * 3, "the loss is in single precision at least"
    assert [training(VGG(**tiny), 6, recompute=again) / forward(VGG(**tiny)) for again in (False, True)] == [18, 24]


def test_bottleneck_bytes_by_hand() -> None:
    """The second group's first block on 8 x 8: 8 channels to 4 inner ones, there halved, and 8; a way round to 8."""
    shape = WideResNet(planes=(2, 2), blocks=(1, 1), widen=2, stem=8, image=32, classes=3)
    stem, straight, halving, last = shape.shapes()
    assert stem.saved == 4 * (3 * 32**2 + 2 * 8 * 16**2) + 8 * (8 * 8**2)
    assert straight.saved == 4 * (8 + 4 * 4 + 8) * 64, "no convolution around where nothing changes"
    assert halving.saved == 4 * (8 * 64 + 2 * 4 * (64 + 16) + 2 * 8 * 16)
    assert halving.flops == 2 * (8 * 4 * 64 + (4 * 4 * 9 + 4 * 8 + 8 * 8) * 16)
    assert (halving.output, last.saved) == (4 * 8 * 16, 4 * (8 * 16 + 8) + 4 * 3)


def test_every_layer_of_a_network_of_images_is_a_block() -> None:
    split = divide(VGG(), 3, "even")
    assert [len(part) for part in split] == [7, 6, 6]
    assert blocks(VGG(), split) == (7, 6, 6)
    shares = [sum(WideResNet().shapes()[layer].flops for layer in part) for part in divide(WideResNet(), 3, "cost")]
    assert max(shares) < 1.1 * min(shares)
    shapes, split = AlexNet().shapes(), divide(AlexNet(), 4, "cost")
    weights = [sum(shapes[layer].parameters for layer in part) for part in split]
    assert weights[-1] > 0.9 * sum(weights), "a pipeline of equal time has stages of unequal weight"


def test_inception_networks_are_pooled_and_narrowed() -> None:
    """torchvision's last pooling is of 2 x 2, which at 14 x 14 leaves as many points as one of 3 x 3; the authors' are
    all alike."""
    large, last = (Pooling("max", side, 2, up=True) for side in (3, 2))
    alike = dict.fromkeys(("3b", "4e"), Pooling("max", 3, 2, padding=1))
    for shape, expected in (
        (GoogLeNet(), {"em": large, "3b": large, "4e": last}),
        (GoogLeNet("small", image=32), alike),
    ):
        assert {name[-2:]: chain[-1] for name, chain in shape.chains() if isinstance(chain[-1], Pooling)} == expected
    assert (GoogLeNet().last, InceptionV3().last, AlexNet().features) == ((1024, 7), (2048, 8), 256 * 6 * 6)
    names = " ".join(layer.name.removeprefix("inception ") for layer in InceptionV3().shapes()[3:-1])
    assert names == "5b 5c 5d 6a 6b 6c 6d 6e 7a 7b 7c"
    narrow = InceptionV3("small", narrow=32, image=16, classes=10)  # channels are rounded up
    assert (GoogLeNet("small", narrow=8, image=8).channels(12), narrow.channels(80)) == (2, 3)
    assert narrow.last[0] == 10 + 4 * 12 + 6, "320, four times 384, and 192, each over 32"


def test_a_batch_norm_needs_two_numbers() -> None:
    assert [WideResNet(image=side).least_microbatch for side in (32, 33, 224)] == [2, 1, 1]
    assert [GoogLeNet("small", image=side).least_microbatch for side in (4, 8, 16)] == [2, 1, 1]
    assert [InceptionV3("small", image=side).least_microbatch for side in (8, 16)] == [2, 1]


def test_lists_make_the_same_key_as_tuples() -> None:
    assert {VGG(channels=[64, 128, 256, 512, 512]), VGG()} == {VGG()}
    assert {AlexNet(channels=[64, 192, 384, 256, 256], sides=[11, 5, 3, 3, 3]), AlexNet()} == {AlexNet()}
    assert len({GoogLeNet(), GoogLeNet("small"), GoogLeNet(narrow=2)}) == 3


# -- mean and deviation of images --------------------------------------------------------------------------------------

MEAN, DEVIATION = [0.491, 0.482, 0.447], [0.247, 0.243, 0.262]  # PipeOptim's of CIFAR-100


@pytest.mark.parametrize("kind", [AlexNet, GoogLeNet, InceptionV3, ResNet, VGG])
def test_bytes_are_scaled_by_mean_and_deviation(kind: Any) -> None:
    shape = kind(mean=MEAN, deviation=DEVIATION)
    for (divisor, less), mean, deviation in zip(scaling(shape), MEAN, DEVIATION, strict=True):
        ends = [byte / divisor - less for byte in (0, 255)]
        assert ends == pytest.approx([-mean / deviation, (1 - mean) / deviation])
    assert hash(shape) == hash(kind(mean=tuple(MEAN), deviation=tuple(DEVIATION)))
    assert shape != kind()
    assert scaling(kind()) == ((127.5, 1.0),)
    one_for_all = kind(mean=[0.5, 0.25, 0.0], deviation=[0.5])
    assert scaling(one_for_all) == ((127.5, 1.0), (127.5, 0.5), (127.5, 0.0))
    with refused(InvalidRequest, "model.shape.mean", "[0.5, 0.5]", legal="[0.5, 0.5, 0.5]"):
        kind(mean=[0.5, 0.5])


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "key", "value", "more", "legal"),
    [
        (VGG, "image", 48, {}, "model.shape.image=64"),
        (VGG, "channels", [8, 0], {}, ""),
        *((VGG, key, 0, {}, "") for key in ("dense", "classes")),
        (WideResNet, "planes", [4], {}, ""),
        (WideResNet, "widen", True, {}, ""),
        (AlexNet, "image", 32, {}, "model.shape.image=63"),
        (AlexNet, "channels", [8, 8], {}, "model.shape.channels=[64, 192, 384, 256, 256]"),
        (AlexNet, "sides", [11, 5, 4, 3, 3], {}, ""),
        (AlexNet, "hidden", 0, {}, ""),
        (InceptionV3, "image", 32, {}, "model.shape.image=75"),
        (InceptionV3, "narrow", 0, {}, ""),
        (GoogLeNet, "image", True, {}, ""),
        (VGG, "mean", [], {}, ""),
        (VGG, "mean", MEAN, {"colours": 1}, ""),
        *((VGG, "mean", value, {}, "") for value in (["0.5"], [True])),
        *((VGG, "deviation", value, {}, "") for value in ([0.5, 0, 0.5], [float("inf")])),
    ],
)
def test_impossible_networks_are_refused(kind: Any, key: str, value: Any, more: dict[str, int], legal: str) -> None:
    with refused(InvalidRequest, f"model.shape.{key}", str(value), legal=legal):
        kind(**{key: value}, **more)


def test_unknown_forms_and_uneven_groups_are_refused() -> None:
    for kind in (GoogLeNet, InceptionV3):
        with refused(UnknownName, "form of an Inception network", "photograph", legal="photographs"):
            kind("photograph")
    with refused(InvalidRequest, "model.shape.channels", subject="convolutions=[1, 1]"):
        VGG(convolutions=[1, 1])
