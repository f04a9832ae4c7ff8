"""Published weights and flops of AlexNet, GoogLeNet and Inception-V3, layer by layer."""

from __future__ import annotations

from typing import Any

import pytest

from suite.core.errors import InvalidRequest, UnknownName
from suite.workload import AlexNet, GoogLeNet, InceptionV3
from suite.workload.conv_spec import Pooling
from suite.workload.flops import forward
from suite.workload.split import divide
from tests.support.refusals import fault, refused


@pytest.mark.parametrize(
    ("shape", "published", "layers", "multiply_adds"),
    [  # torchvision's tables; GoogLeNet's and Inception's without the auxiliary classifiers
        (AlexNet(), 61_100_840, 8, 0.714e9),
        (GoogLeNet(), 6_624_904, 11, 1.498e9),
        (InceptionV3(), 23_834_568, 15, 5.713e9),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "classes") else None,
)
def test_published(shape: Any, published: int, layers: int, multiply_adds: float) -> None:
    assert shape.parameters == published
    assert len(shape.shapes()) == shape.layers == layers
    assert forward(shape) == pytest.approx(2 * multiply_adds, rel=1e-3)


def test_modules_by_hand() -> None:
    """Of GoogLeNet 3a 192 channels become 64 + 128 + 32 + 32; of Inception 5b they become 64 + 64 + 96 + 32."""
    weights = 192 * 64 + 192 * 96 + 96 * 128 * 9 + 192 * 16 + 16 * 32 * 9 + 192 * 32
    norms = 2 * (64 + 96 + 128 + 16 + 32 + 32)
    layer = GoogLeNet().shapes()[1]
    assert (layer.name, layer.parameters) == ("inception 3a", weights + norms)
    assert layer.output == 4 * 256 * 28**2
    weights = 192 * 64 + 192 * 48 + 48 * 64 * 25 + 192 * 64 + (64 + 96) * 96 * 9 + 192 * 32
    norms = 2 * (64 + 48 + 64 + 64 + 96 + 96 + 32)
    layer = InceptionV3().shapes()[3]
    assert (layer.name, layer.parameters) == ("inception 5b", weights + norms)
    assert layer.output == 4 * 256 * 35**2


def test_poolings_stand_behind_the_last_module_of_a_group() -> None:
    """torchvision's last one is of 2 x 2, which at 14 x 14 leaves as many points as one of 3 x 3; the authors' are all
    alike."""
    behind = {name[-2:]: chain[-1] for name, chain in GoogLeNet().chains() if isinstance(chain[-1], Pooling)}
    large = Pooling("max", 3, 2, up=True)
    assert behind == {"em": large, "3b": large, "4e": Pooling("max", 2, 2, up=True)}
    small = GoogLeNet("small", image=32)
    behind = {name[-2:]: chain[-1] for name, chain in small.chains() if isinstance(chain[-1], Pooling)}
    assert behind == dict.fromkeys(("3b", "4e"), Pooling("max", 3, 2, padding=1))


def test_sides_of_the_published_networks() -> None:
    assert GoogLeNet().last == (1024, 7)
    assert InceptionV3().last == (2048, 8)
    assert AlexNet().features == 256 * 6 * 6
    names = [layer.name for layer in InceptionV3().shapes()]
    assert " ".join(name.removeprefix("inception ") for name in names[3:-1]) == "5b 5c 5d 6a 6b 6c 6d 6e 7a 7b 7c"


def test_a_pipeline_of_equal_time_has_stages_of_unequal_weight() -> None:
    shapes = AlexNet().shapes()
    split = divide(AlexNet(), 4, "cost")
    weights = [sum(shapes[layer].parameters for layer in part) for part in split]
    assert weights[-1] > 0.9 * sum(weights)


def test_narrow_channels_are_rounded_up() -> None:
    assert GoogLeNet("small", narrow=8, image=8).channels(12) == 2
    narrow = InceptionV3("small", narrow=32, image=16, classes=10)
    assert narrow.channels(80) == 3
    assert narrow.last[0] == 10 + 4 * 12 + 6, "320, four times 384, and 192, each over 32"


def test_a_batch_norm_needs_two_numbers() -> None:
    assert [GoogLeNet("small", image=side).least_microbatch for side in (4, 8, 16)] == [2, 1, 1]
    assert [InceptionV3("small", image=side).least_microbatch for side in (8, 16)] == [2, 1]


def test_lists_make_the_same_key_as_tuples() -> None:
    assert {AlexNet(channels=[64, 192, 384, 256, 256], sides=[11, 5, 3, 3, 3]), AlexNet()} == {AlexNet()}
    assert len({GoogLeNet(), GoogLeNet("small"), GoogLeNet(narrow=2)}) == 3


@pytest.mark.parametrize(
    ("kind", "wrong", "expected"),
    [
        (AlexNet, {"image": 32}, fault("model.shape.image", "32", legal="model.shape.image=63")),
        (
            AlexNet,
            {"channels": [8, 8]},
            fault(
                "model.shape.channels",
                "[8, 8]",
                legal="model.shape.channels=[64, 192, 384, 256, 256]",
            ),
        ),
        (
            AlexNet,
            {"sides": [11, 5, 4, 3, 3]},
            fault(
                "model.shape.sides",
                "[11, 5, 4, 3, 3]",
                rule="the kernel sides after the first are odd",
            ),
        ),
        (AlexNet, {"hidden": 0}, fault("model.shape.hidden", "0")),
        (
            InceptionV3,
            {"image": 32},
            fault("model.shape.image", "32", subject="for InceptionV3", legal="model.shape.image=75"),
        ),
        (InceptionV3, {"narrow": 0}, fault("model.shape.narrow", "0")),
        (GoogLeNet, {"image": True}, fault("model.shape.image", "True", rule="a whole number")),
    ],
)
def test_shapes_that_cannot_be_are_refused(kind: Any, wrong: dict[str, Any], expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        kind(**wrong)


@pytest.mark.parametrize("kind", [GoogLeNet, InceptionV3])
def test_an_unknown_form_is_told_the_nearest(kind: Any) -> None:
    with refused(UnknownName, "form of an Inception network", "photograph", legal="did you mean 'photographs'?"):
        kind("photograph")
