"""Shape of AlexNet: five convolutions without normalization, and three dense layers that hold most weights.

PipeOptim trains torchvision's AlexNet (Table III). The last pipeline stage has the most weights and few flops, so
stages of equal time have model states of very unequal size. Counts are per image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from suite.core.errors import InvalidRequest
from suite.workload.conv_spec import Chain, Convolution, Pooling, Step, Value, after, check_image, counted
from suite.workload.convnet import check_counts, dense_layer, parameters
from suite.workload.normalization import HALF, ImageNetwork, check_pixels
from suite.workload.transformer import LayerShape

POOLED = (0, 1, 4)  # convolutions before a max pooling of 3 x 3 with stride 2


@dataclass(frozen=True, slots=True)
class AlexNet(ImageNetwork):
    """AlexNet as torchvision builds it ("one weird trick", Krizhevsky 2014), with 61,100,840 weights.

    Attributes:
        channels, sides: Output channels and kernel side of each of the five convolutions.
        stride, padding: Stride and padding of the first convolution; the others keep the side of the image.
        hidden: Width of the dense layers.
        image: Side of an image in pixels.
        colours: Channels of an image, 1 or 3.
        mean, deviation: Mean and standard deviation of pixels on a scale from 0 to 1; one number, or one per colour.

    torchvision pools the input of the dense layers to 6 x 6. At 224 x 224 pixels this pooling changes nothing, so it is
    left out here for every size.
    """

    channels: Sequence[int] = (64, 192, 384, 256, 256)
    sides: Sequence[int] = (11, 5, 3, 3, 3)
    stride: int = 4
    padding: int = 2
    hidden: int = 4096
    image: int = 224
    colours: int = 3
    classes: int = 1000
    mean: Sequence[float] = HALF
    deviation: Sequence[float] = HALF

    def __post_init__(self) -> None:
        single = ("stride", "padding", "hidden", "image", "colours", "classes")
        check_counts(self, lists=("channels", "sides"), single=single)
        check_pixels(self)
        for name in ("channels", "sides"):
            if len(getattr(self, name)) != 5:
                value, legal = list(getattr(self, name)), list(AlexNet.published(name))
                what = f"model.shape.{name}={value}"
                raise InvalidRequest(what, rule="one value per convolution, five", legal=f"model.shape.{name}={legal}")
        if any(side % 2 == 0 for side in self.sides[1:]):
            what = f"model.shape.sides={list(self.sides)}"
            rule = "the kernel sides after the first are odd, so that these convolutions keep the image size"
            raise InvalidRequest(what, rule=rule, legal="[11, 5, 3, 3, 3]")
        check_image("AlexNet", self._steps(), self.entered)

    @staticmethod
    def published(name: str) -> tuple[int, ...]:
        return {"channels": (64, 192, 384, 256, 256), "sides": (11, 5, 3, 3, 3)}[name]

    @property
    def layers(self) -> int:
        return len(self.channels) + 3

    @property
    def parameters(self) -> int:
        return parameters(self)

    @property
    def entered(self) -> Value:
        return self.colours, self.image

    @property
    def features(self) -> int:
        """Inputs of the first dense layer, per image."""
        channels, side = after(self._steps(), self.entered)
        return channels * side * side

    @property
    def widths(self) -> tuple[int, int, int, int]:
        """Input and output widths of the dense layers."""
        return self.features, self.hidden, self.hidden, self.classes

    def chains(self) -> Iterator[tuple[str, Chain]]:
        for number, (channels, side) in enumerate(zip(self.channels, self.sides, strict=True)):
            stride, padding = (1, side // 2) if number else (self.stride, self.padding)
            conv = Convolution(channels, (side, side), stride, (padding, padding), norm=False, bias=True)
            yield f"conv {number}", (conv, *[Pooling("max", 3, 2)] * (number in POOLED))

    def shapes(self, width: int = 4) -> tuple[LayerShape, ...]:
        """Shape of every layer in order. `width` is the bytes of one activation entry."""
        layers: list[LayerShape] = []
        value = self.entered
        for name, chain in self.chains():
            layers.append(counted(name, chain, value, width=width, images=not layers))
            value = after(chain, value)
        for number, (inputs, outputs) in enumerate(pairwise(self.widths)):
            loss = outputs * max(4, width) if number == 2 else 0
            layers.append(dense_layer(f"linear {number}", inputs, outputs, width, loss=loss))
        return tuple(layers)

    def _steps(self) -> list[Step]:
        return [step for _, chain in self.chains() for step in chain]
