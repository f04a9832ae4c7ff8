"""Modules of the papers' image networks (SAMO V-A, PipeOptim V-A), whose sizes suite.models.image_shapes holds.

A layer is one convolution of VGG or AlexNet, one bottleneck block of a ResNet or one module of an Inception network. A
pipeline can cut between any two layers. Images are bytes from 0 to 255, or normalised by their data set, and have no
gradient. Each replica keeps its own running statistics of batch norms. A layer's `draws` says whether it uses random
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from suite.core.errors import InvalidRequest
from suite.models.image_shapes import VGG, AlexNet, GoogLeNet, ImageNetwork, Inception, InceptionV3, ResNet, WideResNet
from suite.models.shared import SCORES, Make, factories, on_meta
from suite.models.shared import cross_entropy as loss
from suite.models.shared import top as scores

__all__ = ["SCORES", "layers", "loss", "scores"]

Step = Callable[[int], tuple[nn.Module, int]]  # input channels to a module and its output channels
Scaling = tuple[tuple[float, float], ...]
HALVES: Scaling = ((127.5, 1.0),)  # numbers from -1 to 1
EXPANSION = 4  # a bottleneck block's outputs over its planes
EPS, SMALL_EPS = 1e-3, 1e-5  # of an Inception network's batch norms, as torchvision builds both for photographs
POOLED = (0, 1, 4)  # convolutions of AlexNet before a max pooling of 3 x 3 with stride 2
# deviation of dense weights at the published number of inputs: of VGG and AlexNet, and of VGG with one dense layer
DEVIATION, VGG_INPUTS, ALEXNET_INPUTS, ALONE = 0.01, (25088, 4096, 4096), (9216, 4096, 4096), 512
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


def scaled(x: torch.Tensor, like: torch.Tensor, pixels: Scaling = HALVES) -> torch.Tensor:
    """Images (b, c, s, s) in the dtype of `like`. Bytes are scaled (ImageNetwork.scaling), other numbers are not."""
    converted = x.to(like.dtype)
    if x.is_floating_point():
        return converted
    for part, (divisor, less) in zip([converted] if len(pixels) == 1 else converted.unbind(1), pixels, strict=True):
        part.div_(divisor).sub_(less)
    return converted


# -- layers ------------------------------------------------------------------------------------------------------------


class Convolved(nn.Module):
    """A convolution, an optional batch norm, and an optional ReLU: (b, c, s, s) to (b, k, t, t)."""

    def __init__(self, conv: nn.Conv2d, eps: float | None, relu: bool) -> None:
        super().__init__()
        self.conv, self.relu, self.norm = (
            conv,
            relu,
            None if eps is None else nn.BatchNorm2d(conv.out_channels, eps=eps),
        )
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        if conv.bias is not None:
            nn.init.zeros_(conv.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        x = x if self.norm is None else self.norm(x)
        return F.relu_(x) if self.relu else x


class Parallel(nn.Module):
    """Chains that read one input, with concatenated outputs: (b, c, s, s) to (b, k, t, t)."""

    def __init__(self, chains: Sequence[nn.Module]) -> None:
        super().__init__()
        self.chains = nn.ModuleList(chains)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([chain(x) for chain in self.chains], dim=1)


class Chained(nn.Module):
    """Steps in order, (b, c, s, s) to (b, k, t, t). The first layer of a network reads images."""

    draws = False

    def __init__(self, steps: Sequence[Step], inputs: int, *, pixels: Scaling = HALVES) -> None:
        super().__init__()
        self.steps, self.pixels = _chain(steps, inputs)[0], pixels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.steps(scaled(x, next(self.steps.parameters()), self.pixels))
        return output


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


class Residual(nn.Module):
    """Steps with a way around them, and ReLU of the sum: (b, c, s, s) to (b, k, t, t)."""

    def __init__(self, inner: nn.Module, around: nn.Module | None) -> None:
        super().__init__()
        self.inner, self.around = inner, around

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
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


# -- steps of a chain --------------------------------------------------------------------------------------------------


def _chain(steps: Sequence[Step], inputs: int) -> tuple[nn.Sequential, int]:
    modules = []
    for step in steps:
        module, inputs = step(inputs)
        modules.append(module)
    return nn.Sequential(*modules), inputs


def conv(
    outputs: int,
    sides: int | tuple[int, int],
    stride: int = 1,
    *,
    pads: bool | int = True,
    bias: bool = False,
    eps: float | None = SMALL_EPS,
    relu: bool = True,
) -> Step:
    """A convolution. `pads` is a number of pixels, or whether half the kernel; `eps` is of its batch norm."""
    rows, columns = sides if isinstance(sides, tuple) else (sides, sides)
    padding = ((rows // 2, columns // 2) if pads else 0) if isinstance(pads, bool) else pads

    def make(inputs: int) -> tuple[nn.Module, int]:
        return Convolved(nn.Conv2d(inputs, outputs, (rows, columns), stride, padding, bias=bias), eps, relu), outputs

    return make


def pool(side: int, stride: int, *, kind: type[nn.Module] = nn.MaxPool2d, padding: int = 0, up: bool = False) -> Step:
    """Maximum or mean of each window. With `up`, the output includes a window that ends outside the image."""
    return lambda inputs: (kind(side, stride, padding, ceil_mode=up), inputs)


def branches(*chains: Sequence[Step]) -> Step:
    """Chains that read one input. Their outputs are concatenated in this order."""

    def make(inputs: int) -> tuple[nn.Module, int]:
        built = [_chain(chain, inputs) for chain in chains]
        return Parallel([module for module, _ in built]), sum(outputs for _, outputs in built)

    return make


def bottleneck(inner: int, outputs: int, stride: int) -> Step:
    """A residual block of 1 x 1, 3 x 3 and 1 x 1 convolutions. The second has the stride, as in torchvision."""

    def make(inputs: int) -> tuple[nn.Module, int]:
        steps, _ = _chain([conv(inner, 1), conv(inner, 3, stride), conv(outputs, 1, relu=False)], inputs)
        changes = inputs != outputs or stride != 1
        return Residual(steps, conv(outputs, 1, stride, relu=False)(inputs)[0] if changes else None), outputs

    return make


MEAN = pool(3, 1, kind=nn.AvgPool2d, padding=1)


# -- networks ----------------------------------------------------------------------------------------------------------


def _vgg(shape: VGG) -> Iterator[Sequence[Step]]:
    for channels, count in zip(shape.channels, shape.convolutions, strict=True):
        for number in range(count):
            step = conv(channels, 3, bias=True, eps=SMALL_EPS if shape.norm else None)
            yield [step, *[pool(2, 2)] * (number == count - 1)]


def _alexnet(shape: AlexNet) -> Iterator[Sequence[Step]]:
    for number, (channels, side) in enumerate(zip(shape.channels, shape.sides, strict=True)):
        stride, padding = (1, True) if number else (shape.stride, shape.padding)
        yield [conv(channels, side, stride, pads=padding, bias=True, eps=None), *[pool(3, 2)] * (number in POOLED)]


def _resnet(shape: ResNet) -> Iterator[Sequence[Step]]:
    yield [conv(shape.stem, 7, 2), pool(3, 2, padding=1)]
    for group, (planes, count) in enumerate(zip(shape.planes, shape.blocks, strict=True)):
        for number in range(count):
            yield [bottleneck(shape.widen * planes, EXPANSION * planes, 2 if group and not number else 1)]


def _googlenet(shape: GoogLeNet) -> Iterator[Sequence[Step]]:
    small = shape.form == "small"
    behind = pool(3, 2, padding=1) if small else pool(3, 2, up=True)

    def one(channels: int, side: int, stride: int = 1) -> Step:
        return conv(_narrowed(shape, channels), side, stride, bias=small, eps=SMALL_EPS if small else EPS)

    yield [one(192, 3)] if small else [one(64, 7, 2), behind, one(64, 1), one(192, 3), behind]
    for group, modules in enumerate(GROUPS):
        for number, (straight, reduced_3, wide_3, reduced_5, wide_5, pooled) in enumerate(modules):
            module = branches(
                [one(straight, 1)],
                [one(reduced_3, 1), one(wide_3, 3)],
                [one(reduced_5, 1), *[one(wide_5, 3)] * (2 if small else 1)],
                [pool(3, 1, padding=1), one(pooled, 1)],
            )
            ends = number == len(modules) - 1 and group < len(GROUPS) - 1
            # torchvision's last pooling is of 2 x 2
            yield [module, *[behind if small or group == 0 else pool(2, 2, up=True)] * ends]


def _inception_v3(shape: InceptionV3) -> Iterator[Sequence[Step]]:
    def one(channels: int, sides: int | tuple[int, int], stride: int = 1, *, pads: bool = True) -> Step:
        return conv(_narrowed(shape, channels), sides, stride, pads=pads, eps=EPS)

    if shape.form == "small":
        yield [one(192, 3)]
    else:
        yield [one(32, 3, 2, pads=False), one(32, 3, pads=False)]
        yield [one(64, 3), pool(3, 2)]
        yield [one(80, 1), one(192, 3, pads=False), pool(3, 2)]
    for pooled in (32, 64, 64):
        deep = [one(64, 1), one(96, 3), one(96, 3)]
        yield [branches([one(64, 1)], [one(48, 1), one(64, 5)], deep, [MEAN, one(pooled, 1)])]
    halving = one(384, 3, 2, pads=False)
    yield [branches([halving], [one(64, 1), one(96, 3), one(96, 3, 2, pads=False)], [pool(3, 2)])]
    for inner in SEVENTHS:
        down, across = one(inner, (7, 1)), one(inner, (1, 7))
        short = [one(inner, 1), across, one(192, (7, 1))]
        long = [one(inner, 1), down, across, down, one(192, (1, 7))]
        yield [branches([one(192, 1)], short, long, [MEAN, one(192, 1)])]
    short = [one(192, 1), one(320, 3, 2, pads=False)]
    long = [one(192, 1), one(192, (1, 7)), one(192, (7, 1)), one(192, 3, 2, pads=False)]
    yield [branches(short, long, [pool(3, 2)])]
    both = branches([one(384, (1, 3))], [one(384, (3, 1))])
    for _ in range(2):
        spread = [one(448, 1), one(384, 3), both]
        yield [branches([one(320, 1)], [one(384, 1), both], spread, [MEAN, one(192, 1)])]


def _narrowed(shape: Inception, published: int) -> int:
    """Published number of channels divided by `narrow`, rounded up."""
    return -(-published // shape.narrow)


CHAINS: dict[type[ImageNetwork], Callable[..., Iterator[Sequence[Step]]]] = {
    VGG: _vgg,
    AlexNet: _alexnet,
    ResNet: _resnet,
    WideResNet: _resnet,
    GoogLeNet: _googlenet,
    InceptionV3: _inception_v3,
}


@cache
def _features(shape: ImageNetwork) -> tuple[list[Make], int, int]:
    """Makers of the layers before the first dense one, and channels and points of the output of the last of them.

    Raises InvalidRequest for images of which a layer leaves no pixel.
    """
    makers: list[Make] = []
    value = torch.empty(1, shape.colours, shape.image, shape.image, device="meta")
    for steps in CHAINS[type(shape)](shape):
        makers.append(partial(Chained, steps, value.shape[1], pixels=shape.scaling))
        try:
            with on_meta(), torch.no_grad():
                value = makers[-1]().train(False)(value)
        except RuntimeError as error:
            rule = f"every layer leaves at least one pixel ({error})"
            legal = f"model.shape.image={type(shape).image}"
            raise InvalidRequest("model.shape.image", shape.image, rule=rule, legal=legal) from error
    return makers, value.shape[1], value.shape[2:].numel()


def layers(shape: ImageNetwork, *, dropout: float = 0.0, dtype: str = "float32") -> list[Make]:
    """One factory per layer. A stage builds its own layers, and a layer draws the same weights on every stage.

    dropout: share of the outputs of VGG's dense layers, or of the inputs of AlexNet's first two dense layers (0.5 as
    published), or of the only dense layer of an Inception network (0.2 and 0.5); a ResNet has none
    """
    makers, channels, points = _features(shape)
    if isinstance(shape, VGG | AlexNet):
        dense = shape.dense if isinstance(shape, VGG) else len(ALEXNET_INPUTS)
        widths = channels * points, *[shape.hidden] * (dense - 1), shape.classes
        classifiers: list[Make] = []
        for number, (entering, leaving) in enumerate(pairwise(widths)):
            if isinstance(shape, VGG):
                published, rates = VGG_INPUTS[min(number, 2)] if dense > 1 else ALONE, {"dropout": dropout}
            else:  # input of the first layer, and its output for the second
                first = 0.0 if number else dropout
                published, rates = ALEXNET_INPUTS[number], {"dropout": first, "before": first}
            last = number == dense - 1
            classifiers.append(partial(Dense, entering, leaving, published=published, last=last, **rates))
    else:
        rate = 0.0 if isinstance(shape, ResNet) else dropout
        classifiers = [partial(ImageClassifier, channels, shape.classes, dropout=rate)]
    return factories((*makers, *classifiers), dtype)
