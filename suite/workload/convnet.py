"""Decides how many parameters the papers' convolutional networks have: each layer with its own, from its shape.

VGG-19 and Wide-ResNet-101-2 are those of torchvision (SAMO V-A), for 1000 classes. Here are counts only.
"""

from __future__ import annotations

from collections.abc import Iterator

Layer = tuple[str, int]  # name, parameters

_VGG_19 = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # channels, convolutions before each pooling
_RESNET_101 = ((64, 3), (128, 4), (256, 23), (512, 3))  # planes, blocks of each group


def parameters(layers: tuple[Layer, ...]) -> int:
    return sum(count for _, count in layers)


def convolution(inputs: int, outputs: int, side: int, *, bias: bool) -> int:
    """Parameters of a square convolution."""
    return inputs * outputs * side * side + (outputs if bias else 0)


def linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def norm(channels: int) -> int:
    """A batch norm's scale and shift; its running statistics are no parameters."""
    return 2 * channels


def vgg_19(classes: int = 1000) -> tuple[Layer, ...]:
    """16 convolutions of 3 x 3 and three dense layers, on images of 224 x 224 (Simonyan and Zisserman, row E)."""

    def layers() -> Iterator[Layer]:
        inputs = 3
        for group, (channels, count) in enumerate(_VGG_19):
            for number in range(count):
                yield f"conv {group}.{number}", convolution(inputs, channels, 3, bias=True)
                inputs = channels
        side = 224 >> len(_VGG_19)  # each pooling halves the image
        for number, (rows, columns) in enumerate(((inputs * side * side, 4096), (4096, 4096), (4096, classes))):
            yield f"linear {number}", linear(rows, columns)

    return tuple(layers())


def wide_resnet_101(classes: int = 1000, widen: int = 2) -> tuple[Layer, ...]:
    """Bottleneck blocks whose inner width is `widen` times ResNet-101's; widen=1 is ResNet-101 itself."""

    def layers() -> Iterator[Layer]:
        yield "stem", convolution(3, 64, 7, bias=False) + norm(64)
        inputs = 64
        for group, (planes, blocks) in enumerate(_RESNET_101):
            inner, outputs = widen * planes, 4 * planes
            for block in range(blocks):
                count = convolution(inputs, inner, 1, bias=False) + norm(inner)
                count += convolution(inner, inner, 3, bias=False) + norm(inner)
                count += convolution(inner, outputs, 1, bias=False) + norm(outputs)
                if block == 0:  # the way round the first block of a group changes the number of channels
                    count += convolution(inputs, outputs, 1, bias=False) + norm(outputs)
                yield f"block {group}.{block}", count
                inputs = outputs
        yield "linear", linear(inputs, classes)

    return tuple(layers())
