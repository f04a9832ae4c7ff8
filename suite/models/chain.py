"""Modules of AlexNet, GoogLeNet and Inception-V3, whose layers suite.workload counts.

A network is described once (workload.conv_spec), and modules are built from the same steps as the counts. Images are
bytes from 0 to 255, or normalised by their data set, and have no gradient. Each replica keeps its own running
statistics of batch norms. A layer's `draws` says whether it uses random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from suite.models.accuracy import SCORES
from suite.models.accuracy import top as scores
from suite.models.convnet import HALVES, Dense, ImageClassifier, Scaling, converted, loss, scaled
from suite.workload import AlexNet, GoogLeNet, InceptionV3
from suite.workload.conv_spec import Branches, Convolution, Pooling, Step, Value, after, through
from suite.workload.normalization import scaling

__all__ = ["SCORES", "Chained", "layers", "loss", "scores", "ties"]

PUBLISHED = (
    9216,
    4096,
    4096,
)  # published number of inputs of AlexNet's dense layers, at which the weights have a deviation of 0.01


class Convolved(nn.Module):
    """A convolution, an optional batch norm, and ReLU: (b, c, s, s) to (b, k, t, t)."""

    def __init__(self, step: Convolution, inputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            inputs, step.outputs, step.sides, stride=step.stride, padding=step.padding, bias=step.bias
        )
        self.norm = nn.BatchNorm2d(step.outputs, eps=step.eps) if step.norm else None
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        if self.conv.bias is not None:
            nn.init.zeros_(self.conv.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        return F.relu_(x if self.norm is None else self.norm(x))


class Pooled(nn.Module):
    """Maximum or mean over windows: (b, c, s, s) to (b, c, t, t)."""

    def __init__(self, step: Pooling) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pool = F.max_pool2d if self.step.kind == "max" else F.avg_pool2d
        return pool(x, self.step.side, stride=self.step.stride, padding=self.step.padding, ceil_mode=self.step.up)


class Parallel(nn.Module):
    """Chains that read one input, with concatenated outputs: (b, c, s, s) to (b, k, t, t)."""

    def __init__(self, step: Branches, value: Value) -> None:
        super().__init__()
        self.chains = nn.ModuleList(nn.Sequential(*_steps(chain, value)) for chain in step.chains)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([chain(x) for chain in self.chains], dim=1)


class Chained(nn.Module):
    """One layer of the network: steps in order, (b, c, s, s) to (b, k, t, t). The first layer reads images."""

    draws = False

    def __init__(self, chain: Sequence[Step], value: Value, *, pixels: Scaling = HALVES) -> None:
        super().__init__()
        self.steps, self.pixels = nn.Sequential(*_steps(chain, value)), pixels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.steps(scaled(x, next(self.steps.parameters()), self.pixels))
        return output


def _steps(chain: Sequence[Step], value: Value) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for step in chain:
        match step:
            case Convolution():
                layers.append(Convolved(step, value[0]))
            case Pooling():
                layers.append(Pooled(step))
            case Branches():
                layers.append(Parallel(step, value))
        value = through(step, value)
    return layers


def layers(
    shape: AlexNet | GoogLeNet | InceptionV3, *, dropout: float = 0.0, dtype: str = "float32"
) -> list[Callable[[], nn.Module]]:
    """One factory per layer. A stage builds its own layers, and a layer draws the same weights on every stage.

    dropout: share of the inputs of AlexNet's first two dense layers (0.5 as published), or of the only dense layer of
    the others (0.2 and 0.5)
    """
    kinds: list[Callable[[], nn.Module]] = []
    value = shape.entered
    for _, chain in shape.chains():
        kinds.append(partial(Chained, chain, value, pixels=scaling(shape)))
        value = after(chain, value)
    if isinstance(shape, AlexNet):
        for number, (entering, leaving) in enumerate(pairwise(shape.widths)):
            rate = dropout if number == 0 else 0.0  # input size of the first layer, and its output size for the second
            dense = partial(Dense, published=PUBLISHED[number], last=number == 2, dropout=rate, before=rate)
            kinds.append(partial(dense, entering, leaving))
    else:
        kinds.append(partial(ImageClassifier, value[0], shape.classes, dropout=dropout))
    return [partial(converted, kind, dtype) for kind in kinds]


def ties(shape: AlexNet | GoogLeNet | InceptionV3) -> list[tuple[int, str, int, str]]:
    """No weights are tied."""
    return []
