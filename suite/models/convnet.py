"""Modules of VGG, ResNet and Wide-ResNet, whose layers workload.convnet counts.

The networks are torchvision's (SAMO V-A, PipeOptim V-A). A layer is one convolution of VGG or one bottleneck block of a
ResNet, and a pipeline can cut between any two layers. Images are bytes from 0 to 255, or normalised by their data set,
and have no gradient. Each replica keeps its own running statistics of batch norms. A layer's `draws` says whether it
uses random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from suite.models.accuracy import SCORES
from suite.models.accuracy import top as scores
from suite.models.draws import draws_nothing
from suite.workload.convnet import VGG, ResNet
from suite.workload.normalization import scaling

__all__ = ["SCORES", "layers", "loss", "scores", "ties"]

# deviation of VGG's dense weights at the published number of inputs: with three dense layers, and with one
DEVIATION, PUBLISHED, ALONE = 0.01, (25088, 4096, 4096), 512


Scaling = tuple[tuple[float, float], ...]
HALVES: Scaling = ((127.5, 1.0),)  # numbers from -1 to 1


def scaled(x: torch.Tensor, like: torch.Tensor, pixels: Scaling = HALVES) -> torch.Tensor:
    """Images (b, c, s, s) in the dtype of `like`. Bytes are scaled (workload.pixels), other numbers are not."""
    converted = x.to(like.dtype)
    if x.is_floating_point():
        return converted
    for part, (divisor, less) in zip([converted] if len(pixels) == 1 else converted.unbind(1), pixels, strict=True):
        part.div_(divisor).sub_(less)
    return converted


class ConvolutionLayer(nn.Module):
    """VGG's 3 x 3 convolution, an optional batch norm, and ReLU: (b, c, s, s) to (b, k, s, s).

    The last layer of a group pools to half the side. pixels: scale of the images, for the first layer
    """

    draws = False

    def __init__(
        self, inputs: int, outputs: int, *, pooled: bool, norm: bool = False, pixels: Scaling = HALVES
    ) -> None:
        super().__init__()
        self.conv, self.pooled, self.pixels = nn.Conv2d(inputs, outputs, 3, padding=1), pooled, pixels
        self.norm = nn.BatchNorm2d(outputs) if norm else None
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(scaled(x, self.conv.weight, self.pixels))
        x = F.relu_(x if self.norm is None else self.norm(x))
        return F.max_pool2d(x, 2) if self.pooled else x


class Dense(nn.Module):
    """A dense layer, (b, ...) to (b, k). All except the last one have ReLU and `dropout`.

    before: dropout of the input
    """

    def __init__(
        self, inputs: int, outputs: int, *, published: int, last: bool, dropout: float, before: float = 0.0
    ) -> None:
        super().__init__()
        self.linear, self.last, self.dropout, self.before = nn.Linear(inputs, outputs), last, dropout, before
        self.draws = before > 0 or (dropout > 0 and not last)
        nn.init.normal_(
            self.linear.weight, std=DEVIATION * (published / inputs) ** 0.5
        )  # keeps the scale of the output for other numbers of inputs
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        x = self.linear(F.dropout(x, self.before, self.training) if self.before else x)
        if self.last:
            return x
        x = F.relu_(x)
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


def _conv(inputs: int, outputs: int, side: int, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, side, stride=stride, padding=side // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


class Stem(nn.Module):
    """A 7 x 7 convolution with batch norm and ReLU, and a pooling: (b, c, s, s) to (b, k, s / 4, s / 4)."""

    draws = False

    def __init__(self, shape: ResNet) -> None:
        super().__init__()
        self.conv, self.norm = _conv(shape.colours, shape.stem, 7, stride=2), nn.BatchNorm2d(shape.stem)
        self.pixels = scaling(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu_(self.norm(self.conv(scaled(x, self.conv.weight, self.pixels))))
        return F.max_pool2d(x, 3, stride=2, padding=1)


class Bottleneck(nn.Module):
    """A residual block of 1 x 1, 3 x 3 and 1 x 1 convolutions: (b, c, s, s) to (b, k, s / stride, s / stride).

    The 3 x 3 convolution has the stride, as in torchvision.
    """

    draws = False

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv_1, self.norm_1 = _conv(inputs, inner, 1), nn.BatchNorm2d(inner)
        self.conv_2, self.norm_2 = _conv(inner, inner, 3, stride), nn.BatchNorm2d(inner)
        self.conv_3, self.norm_3 = _conv(inner, outputs, 1), nn.BatchNorm2d(outputs)
        self.around: nn.Module | None = None
        if inputs != outputs or stride != 1:
            self.around = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu_(self.norm_1(self.conv_1(x)))
        y = F.relu_(self.norm_2(self.conv_2(y)))
        y = self.norm_3(self.conv_3(y))
        y += x if self.around is None else self.around(x)
        return F.relu_(y)


class ImageClassifier(nn.Module):
    """The mean over all points, dropout, and a dense layer: (b, c, s, s) to logits (b, k)."""

    def __init__(self, inputs: int, classes: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear, self.dropout, self.draws = nn.Linear(inputs, classes), dropout, dropout > 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.mean((2, 3)) if x.shape[2:].numel() > 1 else x.flatten(1)
        scores: torch.Tensor = self.linear(F.dropout(x, self.dropout, self.training) if self.dropout else x)
        return scores


def _vgg(shape: VGG, dropout: float) -> list[Callable[[], nn.Module]]:
    kinds: list[Callable[[], nn.Module]] = []
    inputs = shape.colours
    for channels, count in zip(shape.channels, shape.convolutions, strict=True):
        for number in range(count):
            conv = partial(ConvolutionLayer, inputs, channels, pooled=number == count - 1, norm=shape.norm)
            kinds.append(conv if kinds else partial(conv, pixels=scaling(shape)))
            inputs = channels
    for number, (entering, leaving) in enumerate(pairwise(shape.widths)):
        published = PUBLISHED[min(number, 2)] if shape.dense > 1 else ALONE
        last = number == shape.dense - 1
        kinds.append(partial(Dense, entering, leaving, published=published, last=last, dropout=dropout))
    return kinds


def _resnet(shape: ResNet) -> list[Callable[[], nn.Module]]:
    blocks = [partial(Bottleneck, *sizes) for _, *sizes in shape.bottlenecks()]
    return [partial(Stem, shape), *blocks, partial(ImageClassifier, shape.outputs, shape.classes)]


def converted(kind: Callable[[], nn.Module], dtype: str) -> nn.Module:
    """A module drawn in single precision and converted, so that every precision has the same initial weights."""
    return kind().to(getattr(torch, dtype))


def layers(shape: VGG | ResNet, *, dropout: float = 0.0, dtype: str = "float32") -> list[Callable[[], nn.Module]]:
    """One factory per layer. A stage builds its own layers, and a layer draws the same weights on every stage.

    dropout: share of the outputs of VGG's dense layers (0.5 as published); a ResNet has none
    """
    kinds = _vgg(shape, dropout) if isinstance(shape, VGG) else _resnet(shape)
    return [partial(converted, kind, dtype) for kind in kinds]


def ties(shape: VGG | ResNet) -> list[tuple[int, str, int, str]]:
    """No weights are tied."""
    return []


@draws_nothing
def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy per image in nats, at least in single precision.

    logits: (b, classes); targets: (b,)
    """
    return F.cross_entropy(logits.float() if logits.dtype.itemsize < 4 else logits, targets)
