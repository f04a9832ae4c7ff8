"""Shapes of GoogLeNet and Inception-V3: each module of parallel branches is one layer.

PipeOptim trains both (Table III). A pipeline may cut between two modules, but not inside one, so a stage sends one
tensor. Counts are per image. Auxiliary classifiers are left out, because only the last stage has a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from suite.core.errors import UnknownName
from suite.workload.conv_spec import (
    Branches,
    Chain,
    Convolution,
    Pooling,
    Step,
    Value,
    after,
    check_image,
    convolutions,
    counted,
)
from suite.workload.convnet import check_counts, dense_layer, parameters
from suite.workload.normalization import HALF, ImageNetwork, check_pixels
from suite.workload.transformer import LayerShape

EPS = 1e-3  # of the batch norms, as torchvision builds both for photographs
# GoogLeNet's modules (Szegedy et al., Table 1): 1 x 1; reduced, 3 x 3; reduced, 5 x 5; behind the pooling
GROUPS = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
SEVENTHS = (128, 160, 160, 192)  # channels inside Inception-V3's modules of 7 x 1 and 1 x 7


class Inception(ImageNetwork):
    """Common part of both networks: chains in order, and a dense layer on the mean over all positions."""

    classes: int
    narrow: int
    mean: Sequence[float]
    deviation: Sequence[float]

    def chains(self) -> Iterator[tuple[str, Chain]]:
        raise NotImplementedError

    def channels(self, published: int) -> int:
        """Published number of channels divided by `narrow`, rounded up."""
        return -(-published // self.narrow)

    @property
    def parameters(self) -> int:
        return parameters(self)

    @property
    def layers(self) -> int:
        return len(self.shapes())

    @property
    def entered(self) -> Value:
        return self.colours, self.image

    @property
    def last(self) -> Value:
        """Channels and side of the input of the final average."""
        return after(self._steps(), self.entered)

    @property
    def least_microbatch(self) -> int:
        """Smallest number of images for which every batch norm has a variance: 2 if one sees a single point."""
        return 2 if min(side for *_, side in convolutions(self._steps(), self.entered)) == 1 else 1

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        """Shape of every layer in order. `width` is the bytes of one activation entry."""
        layers: list[LayerShape] = []
        value = self.entered
        for name, chain in self.chains():
            layers.append(counted(name, chain, value, width=width, images=not layers))
            value = after(chain, value)
        channels, side = value
        loss = self.classes * max(4, width)
        last = dense_layer("linear", channels, self.classes, width, loss=loss, averaged=side * side)
        return (*layers, last)

    def _check(self) -> None:
        check_counts(self, lists=(), single=("image", "colours", "classes", "narrow"))
        check_pixels(self)
        check_image(type(self).__name__, self._steps(), self.entered)

    def _steps(self) -> list[Step]:
        return [step for _, chain in self.chains() for step in chain]


@dataclass(frozen=True, slots=True)
class GoogLeNet(Inception):
    """GoogLeNet: nine Inception modules with a batch norm after every convolution.

    Attributes:
        form: "photographs" is torchvision's network (6,624,904 weights), which has 3 x 3 in place of 5 x 5 kernels, as
            its published weights do. "small" is the network for images of 32 x 32 that PipeOptim's authors train on
            CIFAR-100: a stem of one convolution that keeps the side, two 3 x 3 for each 5 x 5, and biases before the
                batch norms.
        narrow: Divisor of the published channels.
        image: Side of an image in pixels.
        colours: Channels of an image, 1 or 3.
        mean, deviation: Mean and standard deviation of pixel bytes.
    """

    form: str = "photographs"
    narrow: int = 1
    image: int = 224
    colours: int = 3
    classes: int = 1000
    mean: Sequence[float] = HALF
    deviation: Sequence[float] = HALF

    def __post_init__(self) -> None:
        _form(self.form)
        self._check()

    def chains(self) -> Iterator[tuple[str, Chain]]:
        small = self.form == "small"
        pool = Pooling("max", 3, 2, padding=1) if small else Pooling("max", 3, 2, up=True)
        if small:
            yield "stem", (self._conv(192, 3),)
        else:
            yield "stem", (self._conv(64, 7, stride=2), pool, self._conv(64, 1), self._conv(192, 3), pool)
        for group, modules in enumerate(GROUPS):
            for number, widths in enumerate(modules):
                ends = number == len(modules) - 1 and group < len(GROUPS) - 1
                # torchvision's last pooling is of 2 x 2
                behind = pool if small or group == 0 else Pooling("max", 2, 2, up=True)
                yield f"inception {group + 3}{'abcde'[number]}", (self._module(widths), *[behind] * ends)

    def _module(self, widths: Sequence[int]) -> Step:
        straight, reduced_3, wide_3, reduced_5, wide_5, pooled = widths
        return Branches(
            (
                (self._conv(straight, 1),),
                (self._conv(reduced_3, 1), self._conv(wide_3, 3)),
                (self._conv(reduced_5, 1), *[self._conv(wide_5, 3)] * (2 if self.form == "small" else 1)),
                (Pooling("max", 3, 1, padding=1), self._conv(pooled, 1)),
            )
        )

    def _conv(self, channels: int, side: int, stride: int = 1) -> Convolution:
        small = self.form == "small"
        return Convolution(
            self.channels(channels),
            (side, side),
            stride,
            (side // 2, side // 2),
            bias=small,
            eps=1e-5 if small else EPS,
        )


@dataclass(frozen=True, slots=True)
class InceptionV3(Inception):
    """Inception-V3: eleven modules of five kinds (Szegedy et al., Figures 5 to 7).

    torchvision's network has 23,834,568 weights.

    Attributes:
        form: "photographs" has the published stem, whose convolutions do not pad and require at least 75 pixels.
            "small" is for small images and specific to this suite: one convolution that keeps the side.
        narrow: Divisor of the published channels.
        image: Side of an image in pixels.
        colours: Channels of an image, 1 or 3.
        mean, deviation: Mean and standard deviation of pixel bytes.
    """

    form: str = "photographs"
    narrow: int = 1
    image: int = 299
    colours: int = 3
    classes: int = 1000
    mean: Sequence[float] = HALF
    deviation: Sequence[float] = HALF

    def __post_init__(self) -> None:
        _form(self.form)
        self._check()

    def chains(self) -> Iterator[tuple[str, Chain]]:
        pool = Pooling("max", 3, 2)
        if self.form == "small":
            yield "stem", (self._conv(192, 3),)
        else:
            yield "stem 1", (self._conv(32, 3, stride=2, pads=False), self._conv(32, 3, pads=False))
            yield "stem 2", (self._conv(64, 3), pool)
            yield "stem 3", (self._conv(80, 1), self._conv(192, 3, pads=False), pool)
        for number, pooled in enumerate((32, 64, 64)):
            yield f"inception 5{'bcd'[number]}", (self._fifths(pooled),)
        yield "inception 6a", (self._halving(),)
        for number, inner in enumerate(SEVENTHS):
            yield f"inception 6{'bcde'[number]}", (self._sevenths(inner),)
        yield "inception 7a", (self._halving_again(),)
        for number in range(2):
            yield f"inception 7{'bc'[number]}", (self._spread(),)

    def _fifths(self, pooled: int) -> Step:
        conv = self._conv
        return Branches(
            (
                (conv(64, 1),),
                (conv(48, 1), conv(64, 5)),
                (conv(64, 1), conv(96, 3), conv(96, 3)),
                (_mean(), conv(pooled, 1)),
            )
        )

    def _halving(self) -> Step:
        conv = self._conv
        deep = (conv(64, 1), conv(96, 3), conv(96, 3, stride=2, pads=False))
        return Branches(((conv(384, 3, stride=2, pads=False),), deep, (Pooling("max", 3, 2),)))

    def _sevenths(self, inner: int) -> Step:
        conv = self._conv
        down, across = self._long(inner, (7, 1)), self._long(inner, (1, 7))
        return Branches(
            (
                (conv(192, 1),),
                (conv(inner, 1), across, self._long(192, (7, 1))),
                (conv(inner, 1), down, across, down, self._long(192, (1, 7))),
                (_mean(), conv(192, 1)),
            )
        )

    def _halving_again(self) -> Step:
        conv = self._conv
        long = (self._long(192, (1, 7)), self._long(192, (7, 1)))
        return Branches(
            (
                (conv(192, 1), conv(320, 3, stride=2, pads=False)),
                (conv(192, 1), *long, conv(192, 3, stride=2, pads=False)),
                (Pooling("max", 3, 2),),
            )
        )

    def _spread(self) -> Step:
        conv = self._conv
        both = Branches(((self._long(384, (1, 3)),), (self._long(384, (3, 1)),)))
        return Branches(
            (
                (conv(320, 1),),
                (conv(384, 1), both),
                (conv(448, 1), conv(384, 3), both),
                (_mean(), conv(192, 1)),
            )
        )

    def _conv(self, channels: int, side: int, *, stride: int = 1, pads: bool = True) -> Convolution:
        padding = side // 2 if pads else 0
        return Convolution(self.channels(channels), (side, side), stride, (padding, padding), eps=EPS)

    def _long(self, channels: int, sides: tuple[int, int]) -> Convolution:
        return Convolution(self.channels(channels), sides, 1, (sides[0] // 2, sides[1] // 2), eps=EPS)


def _mean() -> Pooling:
    return Pooling("mean", 3, 1, padding=1)


def _form(form: str) -> None:
    if form not in ("photographs", "small"):
        raise UnknownName("form of an Inception network", form, ("photographs", "small"))
