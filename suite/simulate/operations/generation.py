"""Constants of a generation of training software: what its kernels reach and which communication it overlaps.

A generation is a closed list of what a training stack has: unfused kernels, fused ones, flash attention, compiled
graphs, FP8 products, FP4 products. Every value is physical: shares of a data sheet's figures, bytes, seconds.
`products` is the one fitted constant: the share of a device's peak that large matrix products reach, by family of
devices. The values are in generations.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median

from suite.config.typed_yaml import read_typed
from suite.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class SoftwareGeneration:
    """Efficiency of one generation of software.

    Attributes:
        products: Share of peak that large matrix products reach, by family of devices (Machine.family).
        attention: Default attention kernel: unfused, fused_softmax, flash1 or flash2.
        flash: Share of peak that the forward and the backward pass of each flash kernel reach relative to large matrix
            products.
        traffic: Share of a device's memory bandwidth that element-wise kernels reach.
        pause: Seconds between two kernels of a device: launch, and the tail of the last tiles.
        dispatch: Seconds that the host needs to launch a kernel. A layer takes at least this time for each kernel.
        kernels: Kernels of the forward pass of a block; a backward pass has twice as many.
        dropout: Whether models without a gate train with dropout.
        fused_elementwise: Whether bias, activation, dropout and residual are one kernel each.
        fused_rotary: Whether rotary positions are one kernel.
        loss_forward, loss_backward: Bytes per logit that the loss moves, in addition to the product's output.
        step_bytes: Bytes per parameter that an optimizer step moves, with clipping and zeroing of gradients.
        gradient_bytes: Bytes per parameter in which gradients are accumulated and reduced.
        sharded_gradient_bytes: Bytes per parameter in which gradients of sharded parameters are reduced.
        tensor_overlap: Share of tensor-parallel communication that products can hide: in forward passes, in backward
            passes.
        reduction_overlap: Whether gradients are reduced during the last backward pass.
        within, between: Share of the bandwidth of links inside a node, and of network adapters, that collectives reach.
        collective: Seconds to launch a collective.
        hop: Seconds of a step of a collective inside a node.
        network_hop: Seconds of a step of a collective between nodes.
        sources: Source of each constant.
        ranges: Least and largest plausible value of each constant.
        fitted: Cells of public measurements to which a constant is fitted, by family of devices.
    """

    products: Mapping[str, float]
    attention: str
    flash: Mapping[str, tuple[float, float]]
    name: str = ""
    traffic: float = 0.8
    pause: float = 2.0e-6
    dispatch: float = 5.0e-6
    kernels: int = 22
    dropout: bool = False
    fused_elementwise: bool = True
    fused_rotary: bool = True
    loss_forward: float = 24.0
    loss_backward: float = 12.0
    step_bytes: float = 44.0
    gradient_bytes: int = 4
    sharded_gradient_bytes: int = 2
    tensor_overlap: tuple[float, float] = (0.0, 0.0)
    reduction_overlap: bool = False
    within: float = 0.77
    between: float = 0.8
    collective: float = 1.0e-5
    hop: float = 1.5e-6
    network_hop: float = 5.0e-6
    sources: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    fitted: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shares = {f"products.{family}": share for family, share in self.products.items()}
        shares |= {name: getattr(self, name) for name in ("traffic", "within", "between")}
        for name, share in shares.items():
            if not 0 < share <= 1:
                raise InvalidRequest(
                    f"generation.{name}={share}", rule="a share above 0 and at most 1", legal=f"generation.{name}=0.7"
                )
        if not self.products:
            raise InvalidRequest(
                f"generation.products of {self.name} is empty", rule="a share by family", legal="{a100: 0.7}"
            )

    def share(self, family: str) -> float:
        """Share of peak that large products reach; the median over all families for one without a constant."""
        return self.products.get(family, median(self.products.values()))


@cache
def generations() -> Mapping[str, SoftwareGeneration]:
    """The generations of generations.yaml by name."""
    read: dict[str, SoftwareGeneration] = read_typed(
        dict[str, SoftwareGeneration], Path(__file__).with_name("generations.yaml")
    )
    return {name: replace(generation, name=name) for name, generation in read.items()}
