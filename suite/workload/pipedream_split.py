"""Costs of PipeDream's rule for dividing layers over stages (Narayanan et al. 2019, Section 3.1).

PipeOptim runs every system on PipeDream's split (V-A). The rule minimizes the time of the slowest stage or cut:

    stage             seconds of its layers
    cut after a layer 2 bytes of its output / bandwidth: an activation and its gradient

Messages are assumed to overlap with the passes. PipeDream's plans also choose a number of replicas for each stage; here
every stage has as many.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.core.errors import InvalidRequest
from suite.workload.transformer import Network

PASSES = 3  # a backward pass is two forward passes
WIDTH = 4  # bytes of an entry


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates that convert the shape of a network to seconds.

    The defaults are round numbers of one GPU in a PCIe slot. Only their ratios decide a split.

    Attributes:
        flops: flop/s of matrix products.
        memory: bytes/s of all other kernels.
        link: bytes/s between stages.
    """

    flops: float = 5.0e12
    memory: float = 500.0e9
    link: float = 10.0e9

    def __post_init__(self) -> None:
        for name in ("flops", "memory", "link"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidRequest(f"rates.{name}={getattr(self, name)}", rule="finite and above 0", legal="1.0e+9")


def layer_seconds(shape: Network, rates: Rates) -> list[float]:
    """Seconds of the forward and backward pass of each layer for one sample.

    The time of a layer is the time of its flops plus the time of its memory traffic. A forward pass writes its saved
    activations and its output, and reads the same number of bytes. A backward pass moves twice as many bytes.
    """
    return [
        PASSES * (layer.flops / rates.flops + 2 * (layer.saved + layer.output) / rates.memory)
        for layer in shape.shapes(WIDTH)
    ]


def cut_seconds(shape: Network, rates: Rates) -> list[float]:
    """Seconds in which the activation of each layer's end and its gradient pass between two stages, for one sample."""
    return [2 * float(layer.output) / rates.link for layer in shape.shapes(WIDTH)]
