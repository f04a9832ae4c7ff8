"""Published mean and deviation of image data sets."""

from __future__ import annotations

from typing import Any

import pytest

from suite.core.errors import InvalidRequest
from suite.workload import VGG, AlexNet, GoogLeNet, InceptionV3, ResNet
from suite.workload.normalization import scaling
from tests.support.refusals import fault, refused

MEAN, DEVIATION = [0.491, 0.482, 0.447], [0.247, 0.243, 0.262]  # PipeOptim's of CIFAR-100
KINDS = (AlexNet, GoogLeNet, InceptionV3, ResNet, VGG)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_become_what_was_published(kind: Any) -> None:
    shape = kind(mean=MEAN, deviation=DEVIATION)
    for (divisor, less), mean, deviation in zip(scaling(shape), MEAN, DEVIATION, strict=True):
        assert [byte / divisor - less for byte in (0, 255)] == pytest.approx(
            [-mean / deviation, (1 - mean) / deviation]
        )
    assert hash(shape) == hash(kind(mean=tuple(MEAN), deviation=tuple(DEVIATION)))
    assert shape != kind()


def test_the_default_is_from_minus_one_to_one() -> None:
    assert scaling(VGG()) == ((127.5, 1.0),)


def test_one_may_stand_for_all_colours() -> None:
    shape = ResNet(mean=[0.5, 0.25, 0.0], deviation=[0.5])
    assert scaling(shape) == ((127.5, 1.0), (127.5, 0.5), (127.5, 0.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (
            {"mean": [0.5, 0.5]},
            fault(
                "model.shape.mean",
                "[0.5, 0.5]",
                subject="for 3 colours",
                rule="one per colour",
                legal="[0.5, 0.5, 0.5]",
            ),
        ),
        ({"mean": []}, fault("model.shape.mean", "[]", subject="for 3 colours")),
        ({"mean": MEAN, "colours": 1}, fault("model.shape.mean", "[0.491, 0.482, 0.447]", subject="for 1 colours")),
        ({"deviation": [0.5, 0, 0.5]}, fault("model.shape.deviation", "[0.5, 0, 0.5]", rule="finite numbers above 0")),
        ({"deviation": [float("inf")]}, fault("model.shape.deviation", "[inf]")),
        ({"mean": ["0.5"]}, fault("model.shape.mean", "['0.5']")),
        ({"mean": [True]}, fault("model.shape.mean", "[True]")),
    ],
)
def test_what_is_no_mean_or_deviation_is_refused(kind: Any, wrong: dict[str, Any], expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        kind(**wrong)
