"""Mean and standard deviation per colour of published image data sets.

Images are stored and sent as bytes. The first layer converts them to (byte / 255 - mean) / deviation, without a
gradient. The default mean and deviation of 0.5 give numbers from -1 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Protocol

from suite.core.errors import InvalidRequest
from suite.workload.transformer import Network

HALF = (0.5,)


class Coloured(Protocol):
    """Shape of a network of images.

    Attributes:
        mean, deviation: One number for all colours, or one per colour.
    """

    @property
    def colours(self) -> int: ...

    @property
    def mean(self) -> Sequence[float]: ...

    @property
    def deviation(self) -> Sequence[float]: ...


class ImageNetwork(Network):
    """A network of images.

    Attributes:
        image: Side of an image in pixels.
        colours: Channels of an image, 1 or 3.
    """

    content = "images"
    image: int
    colours: int

    @property
    def pixels(self) -> int:
        return self.colours * self.image**2


def check_pixels(shape: Coloured) -> None:
    """Raise InvalidRequest unless mean and deviation are numbers for these colours.

    Lists become tuples, because a shape is a dictionary key.
    """
    for name in ("mean", "deviation"):
        values = tuple(getattr(shape, name))
        if len(values) not in (1, shape.colours):
            what = f"model.shape.{name}={list(values)} for {shape.colours} colours"
            raise InvalidRequest(what, rule="one number, or one per colour", legal=f"{[0.5] * shape.colours}")
        if not all(_number(value) and (name == "mean" or value > 0) for value in values):
            what = f"model.shape.{name}={list(values)}"
            rule = "finite numbers" if name == "mean" else "finite numbers above 0"
            raise InvalidRequest(what, rule=rule, legal=f"{[0.5] * len(values)}")
        object.__setattr__(shape, name, values)


def scaling(shape: Coloured) -> tuple[tuple[float, float], ...]:
    """Divisor of a byte and the mean to subtract afterwards, for all colours or for each."""
    count = max(len(shape.mean), len(shape.deviation))
    means, deviations = (list(values) * (count // len(values)) for values in (shape.mean, shape.deviation))
    return tuple((255 * deviation, mean / deviation) for mean, deviation in zip(means, deviations, strict=True))


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
