"""Shapes of the papers' convolutional networks: parameters, flops and activation bytes per layer.

VGG-19 and Wide-ResNet-101-2 (SAMO V-A), and VGG-16 and ResNet-101 (PipeOptim, Table III), equal torchvision's networks
for 1000 classes at 224 x 224. Narrower ones train on a laptop. Counts are per image. Flops count convolutions and dense
layers only. A layer's ReLU works in place, as in torchvision, and therefore saves nothing of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from suite.core.errors import InvalidRequest
from suite.workload.conv_spec import INDEX
from suite.workload.normalization import HALF, ImageNetwork, check_pixels
from suite.workload.transformer import LayerShape, Network

EXPANSION = 4  # a bottleneck block's outputs over its planes


def convolution(inputs: int, outputs: int, side: int, *, bias: bool) -> int:
    """Parameters of a square convolution."""
    return inputs * outputs * side * side + (outputs if bias else 0)


def linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def norm(channels: int) -> int:
    """Scale and shift of a batch norm; running statistics are no parameters."""
    return 2 * channels


def halved(side: int) -> int:
    """Side of the output of a convolution or pooling with stride 2 and a padding of half the kernel."""
    return -(-side // 2)


@dataclass(frozen=True, slots=True)
class VGG(ImageNetwork):
    """VGG (Simonyan and Zisserman): groups of 3 x 3 convolutions, a pooling after each group, and dense layers.

    The defaults are VGG-19, row E. VGG-16, row D, has convolutions (2, 2, 3, 3, 3).

    Attributes:
        channels, convolutions: Channels and number of convolutions of each group.
        hidden: Width of the dense layers.
        dense: Number of dense layers.
        norm: Whether a batch norm follows each convolution. The paper has none; PipeOptim's authors have one, with
            dense=1.
        image: Side of an image in pixels; every pooling halves it.
        colours: Channels of an image, 1 or 3.
        mean, deviation: Mean and standard deviation of pixel bytes (suite.workload.normalization).
    """

    channels: Sequence[int] = (64, 128, 256, 512, 512)
    convolutions: Sequence[int] = (2, 2, 4, 4, 4)
    hidden: int = 4096
    image: int = 224
    colours: int = 3
    classes: int = 1000
    dense: int = 3
    norm: bool = False
    mean: Sequence[float] = HALF
    deviation: Sequence[float] = HALF

    def __post_init__(self) -> None:
        check_counts(
            self, lists=("channels", "convolutions"), single=("hidden", "image", "colours", "classes", "dense")
        )
        check_pixels(self)
        if len(self.channels) != len(self.convolutions):
            raise InvalidRequest(
                f"model.shape.channels={list(self.channels)} with model.shape.convolutions={list(self.convolutions)}",
                rule="one of each per group",
                legal=f"model.shape.convolutions={[1] * len(self.channels)}",
            )
        least = 1 << len(self.channels)
        if self.image % least:
            raise InvalidRequest(
                f"model.shape.image={self.image} with {len(self.channels)} poolings",
                rule="every pooling halves the image",
                legal=f"model.shape.image={-(-self.image // least) * least}",
            )

    @property
    def layers(self) -> int:
        return sum(self.convolutions) + self.dense

    @property
    def parameters(self) -> int:
        return parameters(self)

    @property
    def features(self) -> int:
        """Inputs of the first dense layer, per image."""
        side = self.image >> len(self.channels)
        return self.channels[-1] * side * side

    @property
    def widths(self) -> tuple[int, ...]:
        """Input and output widths of the dense layers."""
        return self.features, *[self.hidden] * (self.dense - 1), self.classes

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        """Shape of every layer in order. `width` is the bytes of one activation entry."""
        return (*self._convolutions(width), *self._dense(width))

    def _convolutions(self, width: int) -> Iterator[LayerShape]:
        inputs, side = self.colours, self.image
        for group, (channels, count) in enumerate(zip(self.channels, self.convolutions, strict=True)):
            for number in range(count):
                weights = convolution(inputs, channels, 3, bias=False)
                entered, outputs = inputs * side * side, channels * side * side
                pooled = outputs // 4 if number == count - 1 else 0
                first = group == number == 0  # images have no gradient
                yield LayerShape(
                    name=f"conv {group}.{number}",
                    parameters=weights + channels + (norm(channels) if self.norm else 0),
                    flops=2 * weights * side * side,
                    saved=(entered + outputs * (bool(pooled) + self.norm)) * width + pooled * INDEX,
                    output=(pooled or outputs) * width,
                    working=max(2 * outputs, outputs + (0 if first else entered)) * width,
                    weight_working=weights * width,
                    prunable=(weights,),
                    deferred=0 if first else 2 * weights * side * side,
                    owed=0 if first else (entered + outputs) * width,
                )
                inputs = channels
            side //= 2

    def _dense(self, width: int) -> Iterator[LayerShape]:
        for number, (inputs, outputs) in enumerate(pairwise(self.widths)):
            loss = outputs * max(4, width) if number == self.dense - 1 else 0
            yield dense_layer(f"linear {number}", inputs, outputs, width, loss=loss)


@dataclass(frozen=True, slots=True)
class ResNet(ImageNetwork):
    """ResNet with bottleneck blocks (He et al.), whose inner width is multiplied by `widen`.

    The defaults are ResNet-101.

    Attributes:
        planes, blocks: Inner width and number of blocks of each group. Every group but the first halves the image, and
            the stem halves it twice.
        stem: Channels of the stem.
        image: Side of an image in pixels.
        colours: Channels of an image, 1 or 3.
        mean, deviation: Mean and standard deviation of pixel bytes.
    """

    planes: Sequence[int] = (64, 128, 256, 512)
    blocks: Sequence[int] = (3, 4, 23, 3)
    widen: int = 1
    stem: int = 64
    image: int = 224
    colours: int = 3
    classes: int = 1000
    mean: Sequence[float] = HALF
    deviation: Sequence[float] = HALF

    def __post_init__(self) -> None:
        check_counts(self, lists=("planes", "blocks"), single=("widen", "stem", "image", "colours", "classes"))
        check_pixels(self)
        if len(self.planes) != len(self.blocks):
            raise InvalidRequest(
                f"model.shape.planes={list(self.planes)} with model.shape.blocks={list(self.blocks)}",
                rule="one of each per group",
                legal=f"model.shape.blocks={[1] * len(self.planes)}",
            )

    @property
    def layers(self) -> int:
        return sum(self.blocks) + 2

    @property
    def parameters(self) -> int:
        return parameters(self)

    @property
    def least_microbatch(self) -> int:
        """Smallest number of images for which every batch norm has a variance.

        It is 2 if the last feature map has a single point, otherwise 1.
        """
        side = halved(halved(self.image))
        for _ in self.planes[1:]:
            side = halved(side)
        return 2 if side == 1 else 1

    @property
    def outputs(self) -> int:
        """Input channels of the last layer."""
        return EXPANSION * self.planes[-1]

    def bottlenecks(self) -> Iterator[tuple[str, int, int, int, int]]:
        """Name, input channels, inner channels, output channels and stride of each block."""
        inputs = self.stem
        for group, (planes, count) in enumerate(zip(self.planes, self.blocks, strict=True)):
            for number in range(count):
                outputs = EXPANSION * planes
                yield f"block {group}.{number}", inputs, self.widen * planes, outputs, 2 if group and not number else 1
                inputs = outputs

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        """Shape of every layer in order. `width` is the bytes of one activation entry."""
        middle = halved(self.image)
        layers = [_stem(self.colours, self.stem, self.image, width)]
        side = halved(middle)
        for name, inputs, inner, outputs, stride in self.bottlenecks():
            entered, side = side, halved(side) if stride == 2 else side
            layers.append(_bottleneck(name, inputs, inner, outputs, sides=(entered, side), width=width))
        loss = self.classes * max(4, width)
        last = dense_layer("linear", self.outputs, self.classes, width, loss=loss, averaged=side * side)
        return (*layers, last)


@dataclass(frozen=True, slots=True)
class WideResNet(ResNet):
    """ResNet with blocks twice as wide inside (Zagoruyko and Komodakis). The defaults are Wide-ResNet-101-2."""

    widen: int = 2


def parameters(network: Network) -> int:
    return sum(layer.parameters for layer in network.shapes())


def dense_layer(name: str, inputs: int, outputs: int, width: int, *, loss: int = 0, averaged: int = 1) -> LayerShape:
    """Shape of a dense layer.

    Args:
        loss: Bytes of log-probabilities, for the last layer.
        averaged: Points whose average is one input.
    """
    weights = inputs * outputs
    pooled = inputs if averaged > 1 else 0
    return LayerShape(
        name=name,
        parameters=linear(inputs, outputs),
        flops=2 * weights,
        saved=(inputs * averaged + pooled) * width + loss,
        output=outputs * width,
        working=max(2 * loss, (inputs * averaged + pooled + outputs) * width),
        weight_working=weights * width,
        prunable=(weights,),
        deferred=2 * weights,
        owed=(inputs + outputs) * width,
    )


def _stem(colours: int, channels: int, image: int, width: int) -> LayerShape:
    """Stem: a 7 x 7 convolution and a 3 x 3 pooling, both with stride 2."""
    middle = halved(image)
    weights = convolution(colours, channels, 7, bias=False)
    outputs, pooled = channels * middle * middle, channels * halved(middle) ** 2
    return LayerShape(
        name="stem",
        parameters=weights + norm(channels),
        flops=2 * weights * middle * middle,
        saved=(colours * image * image + 2 * outputs) * width + pooled * INDEX,
        output=pooled * width,
        working=2 * outputs * width,
        weight_working=weights * width,
        prunable=(weights,),
    )


def _bottleneck(name: str, inputs: int, inner: int, outputs: int, *, sides: tuple[int, int], width: int) -> LayerShape:
    """Convolutions of 1 x 1, 3 x 3 (with the stride) and 1 x 1, each with a batch norm, and a shortcut.

    The shortcut is a 1 x 1 convolution with a batch norm if channels or side change. Each norm saves its input.
    """
    before, after = sides[0] ** 2, sides[1] ** 2
    squeeze, middle, widen = inputs * inner, inner * inner * 9, inner * outputs
    round_ = inputs * outputs if inputs != outputs or before != after else 0
    weights = squeeze + middle + widen + round_
    entered, widened = inputs * before, outputs * after
    # with the shortcut's gradient, the largest pair that one step of the backward pass reads and writes
    pairs = (widened + inner * after, 2 * inner * after, inner * (after + before), 2 * inner * before, inner * before)
    held_values = entered if round_ else widened
    return LayerShape(
        name=name,
        parameters=weights + norm(inner) * 2 + norm(outputs) * (2 if round_ else 1),
        flops=2 * ((squeeze * before) + (middle + widen + round_) * after),
        saved=(entered + 2 * inner * (before + after) + widened * (2 if round_ else 1)) * width,
        output=widened * width,
        working=max(held_values + max(*pairs, inner * before + entered), held_values + widened * (2 if round_ else 1))
        * width,
        weight_working=max(squeeze, middle, widen, round_) * width,
        prunable=tuple(filter(None, (squeeze, middle, widen, round_))),
        deferred=2 * ((squeeze * before) + (middle + widen + round_) * after),
        # the shortcut shares its input with the first convolution
        owed=(entered + 2 * inner * (before + after) + widened * (2 if round_ else 1)) * width,
    )


def check_counts(shape: object, *, lists: Sequence[str], single: Sequence[str]) -> None:
    """Raise InvalidRequest unless the fields of a shape are counts of at least 1.

    Fields in `lists` become tuples, because a shape is a dictionary key.
    """
    for name in lists:
        values = tuple(getattr(shape, name))
        if not values or not all(_count(value) for value in values):
            raise InvalidRequest(
                f"model.shape.{name}={list(values)}", rule="whole numbers, at least 1", legal="[8, 16]"
            )
        object.__setattr__(shape, name, values)
    for name in single:
        if not _count(getattr(shape, name)):
            raise InvalidRequest(
                f"model.shape.{name}={getattr(shape, name)}", rule="a whole number, at least 1", legal="1"
            )


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
