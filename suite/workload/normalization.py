"""Mean and standard deviation per colour of published image data sets.

Bytes travel and wait as bytes; the first layer makes numbers of them, (byte / 255 - mean) / deviation, which have no
gradient. A mean and a deviation of a half, the default, give numbers from -1 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Protocol

from suite.core.errors import InvalidRequest
from suite.workload.transformer import Network

HALF = (0.5,)


class Coloured(Protocol):
    """A shape of a network of images. mean, deviation: of all colours, or of each."""

    @property
    def colours(self) -> int: ...

    @property
    def mean(self) -> Sequence[float]: ...

    @property
    def deviation(self) -> Sequence[float]: ...


class ImageNetwork(Network):
    """A network of images.

    Attributes:
        image: Side.
        colours: 1 or 3.
    """

    content = "images"
    image: int
    colours: int

    @property
    def pixels(self) -> int:
        return self.colours * self.image**2


def check_pixels(shape: Coloured) -> None:
    """Refuses what is no mean or deviation of these colours; lists become tuples, as a shape is a key."""
    for name in ("mean", "deviation"):
        values = tuple(getattr(shape, name))
        if len(values) not in (1, shape.colours):
            what = f"model.shape.{name}={list(values)} for {shape.colours} colours"
            raise InvalidRequest(what, rule="one for all colours, or one for each", legal=f"{[0.5] * shape.colours}")
        if not all(_number(value) and (name == "mean" or value > 0) for value in values):
            what, rule = f"model.shape.{name}={list(values)}", "numbers, of which no deviation is zero or below"
            raise InvalidRequest(what, rule=rule, legal=f"{[0.5] * len(values)}")
        object.__setattr__(shape, name, values)


def scaling(shape: Coloured) -> tuple[tuple[float, float], ...]:
    """Divisor of a byte and the mean that is then subtracted, for all colours or for each."""
    count = max(len(shape.mean), len(shape.deviation))
    means, deviations = (list(values) * (count // len(values)) for values in (shape.mean, shape.deviation))
    return tuple((255 * deviation, mean / deviation) for mean, deviation in zip(means, deviations, strict=True))


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
