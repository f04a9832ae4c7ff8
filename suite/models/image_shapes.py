"""Sizes of the papers' convolutional networks, whose layers suite.models.counts counts by running them.

VGG-19 and Wide-ResNet-101-2 (SAMO V-A), and VGG-16, ResNet-101, AlexNet, GoogLeNet and Inception-V3 (PipeOptim, Table
III), equal torchvision's networks, without auxiliary classifiers. Narrower ones train on a laptop. Counts are per
image. torch is imported when the layers of a network are first counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite

from suite.core.errors import Broken, refuse
from suite.workload.transformer import LayerShape, Network, check_counts

HALF = (0.5,)
FORMS = ("photographs", "small")


@dataclass(frozen=True, kw_only=True)
class ImageNetwork(Network):
    """A network of images.

    Images are stored and sent as bytes. The first layer converts them to (byte / 255 - mean) / deviation, without a
    gradient. The default mean and deviation of 0.5 give numbers from -1 to 1.

    Attributes:
        image: Side of an image in pixels.
        colours: Channels of an image, 1 or 3.
        mean, deviation: One number for all colours, or one per colour.
    """

    content = "images"
    image: int = 224
    colours: int = 3
    classes: int = 1000
    mean: Sequence[float] = HALF
    deviation: Sequence[float] = HALF

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            if isinstance(values, Sequence) and not isinstance(values, str):
                object.__setattr__(self, name, tuple(values))  # a shape is a dictionary key
        check_counts(self)
        refuse(self._rules())

    def _rules(self) -> Iterator[Broken]:
        for name, values in (("mean", self.mean), ("deviation", self.deviation)):
            what, legal = f"model.shape.{name}={list(values)}", f"{[0.5] * self.colours}"
            yield len(values) not in (1, self.colours), what, "one number, or one per colour", legal
            odd = not all(isfinite(value) and (name == "mean" or value > 0) for value in values)
            yield odd, what, "finite numbers, and deviations above 0", legal

    @property
    def pixels(self) -> int:
        return self.colours * self.image**2

    @property
    def scaling(self) -> tuple[tuple[float, float], ...]:
        """Divisor of a byte and the mean to subtract afterwards, for all colours or for each."""
        count = max(len(self.mean), len(self.deviation))
        means, deviations = (list(values) * (count // len(values)) for values in (self.mean, self.deviation))
        return tuple((255 * deviation, mean / deviation) for mean, deviation in zip(means, deviations, strict=True))

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        """Shape of every layer in order. `width` is the bytes of one activation entry.

        Raises InvalidRequest for images of which a layer leaves no pixel.
        """
        from suite.models.counts import layer_shapes

        return layer_shapes(self, width)

    @property
    def least_microbatch(self) -> int:
        """Smallest number of images for which every batch norm has a variance: 2 if one sees a single point."""
        from suite.models.counts import least_microbatch

        return least_microbatch(self)


@dataclass(frozen=True)
class VGG(ImageNetwork):
    """VGG (Simonyan and Zisserman): groups of 3 x 3 convolutions, a pooling after each group, and dense layers.

    The defaults are VGG-19, row E. VGG-16, row D, has convolutions (2, 2, 3, 3, 3).

    Attributes:
        channels, convolutions: Channels and number of convolutions of each group.
        hidden: Width of the dense layers.
        dense: Number of dense layers.
        norm: Whether a batch norm follows each convolution. The paper has none; PipeOptim's authors have one, with
            dense=1.
    """

    channels: Sequence[int] = (64, 128, 256, 512, 512)
    convolutions: Sequence[int] = (2, 2, 4, 4, 4)
    hidden: int = 4096
    dense: int = 3
    norm: bool = False

    def _rules(self) -> Iterator[Broken]:
        yield from super()._rules()
        yield _uneven(self, "channels", "convolutions")


@dataclass(frozen=True)
class AlexNet(ImageNetwork):
    """AlexNet as torchvision builds it ("one weird trick", Krizhevsky 2014), with 61,100,840 weights.

    The last dense layers have most weights and few flops, so stages of equal time have model states of very unequal
    size. torchvision pools the input of the dense layers to 6 x 6. At 224 x 224 pixels this pooling changes nothing,
    so it is left out here for every size.

    Attributes:
        channels, sides: Output channels and kernel side of each of the five convolutions.
        stride, padding: Stride and padding of the first convolution; the others keep the side of the image.
        hidden: Width of the dense layers.
    """

    channels: Sequence[int] = (64, 192, 384, 256, 256)
    sides: Sequence[int] = (11, 5, 3, 3, 3)
    stride: int = 4
    padding: int = 2
    hidden: int = 4096

    def _rules(self) -> Iterator[Broken]:
        yield from super()._rules()
        yield _uneven(self, "channels", "sides")
        odd = any(side % 2 == 0 for side in self.sides[1:])
        rule = "the kernel sides after the first are odd, so that these convolutions keep the image size"
        yield odd, f"model.shape.sides={list(self.sides)}", rule, "[11, 5, 3, 3, 3]"


@dataclass(frozen=True)
class ResNet(ImageNetwork):
    """ResNet with bottleneck blocks (He et al.), whose inner width is multiplied by `widen`.

    The defaults are ResNet-101.

    Attributes:
        planes, blocks: Inner width and number of blocks of each group. Every group but the first halves the image, and
            the stem halves it twice.
        stem: Channels of the stem.
    """

    planes: Sequence[int] = (64, 128, 256, 512)
    blocks: Sequence[int] = (3, 4, 23, 3)
    widen: int = 1
    stem: int = 64

    def _rules(self) -> Iterator[Broken]:
        yield from super()._rules()
        yield _uneven(self, "planes", "blocks")


@dataclass(frozen=True)
class WideResNet(ResNet):
    """ResNet with blocks twice as wide inside (Zagoruyko and Komodakis). The defaults are Wide-ResNet-101-2."""

    widen: int = 2


@dataclass(frozen=True)
class Inception(ImageNetwork):
    """A network whose layers are modules of parallel branches.

    A pipeline may cut between two modules, but not inside one, so a stage sends one tensor.

    Attributes:
        form: "photographs" is the published network; "small" is for small images.
        narrow: Divisor of the published channels; the quotient is rounded up.
    """

    form: str = "photographs"
    narrow: int = 1

    def _rules(self) -> Iterator[Broken]:
        yield from super()._rules()
        yield self.form not in FORMS, f"model.shape.form={self.form}", f"one of {', '.join(FORMS)}", FORMS[0]


class GoogLeNet(Inception):
    """GoogLeNet: nine Inception modules with a batch norm after every convolution.

    form="photographs" is torchvision's network (6,624,904 weights), which has 3 x 3 in place of 5 x 5 kernels, as its
    published weights do. form="small" is the network for images of 32 x 32 that PipeOptim's authors train on CIFAR-100:
    a stem of one convolution that keeps the side, two 3 x 3 for each 5 x 5, and biases before the batch norms.
    """


@dataclass(frozen=True)
class InceptionV3(Inception):
    """Inception-V3: eleven modules of five kinds (Szegedy et al., Figures 5 to 7).

    form="photographs" has the published stem, whose convolutions do not pad and require at least 75 pixels.
    torchvision's network has 23,834,568 weights. form="small" is for small images and specific to this suite: a stem
    of one convolution that keeps the side.
    """

    image: int = field(default=299, kw_only=True)


def _uneven(shape: ImageNetwork, one: str, other: str) -> Broken:
    """Broken where two lists of a shape have not one entry each per group of layers."""
    lists = [list(getattr(shape, name)) for name in (one, other)]
    what = f"model.shape.{one}={lists[0]} with model.shape.{other}={lists[1]}"
    return len(lists[0]) != len(lists[1]), what, "one of each per group", f"model.shape.{other}={[1] * len(lists[0])}"
