"""Constants of a generation of training software: what its kernels reach and which communication it overlaps.

A generation is a closed list of what a training stack has: unfused kernels, fused ones, flash attention, compiled
graphs, FP8 products, FP4 products. Every value is physical: shares of a data sheet's figures, bytes, seconds.
`products` is the one fitted constant: the rate of large matrix products relative to the best published product of the
device (Machine.sustained), by family of devices. The simulator of public cells takes the fitted values of
suite/simulate/validation/constants.yaml instead. sources.yaml has the source and the range of each constant. The values
are in generations.json, which a browser reads too:

    unfused     kernels of 2019 and 2020: attention scores in memory, separate element-wise kernels
    fused       kernels of 2021 and 2022: fused softmax, fused bias and activation, attention scores in memory
    megatron    Megatron-LM in 2020 and 2021, which the software of Summit's papers has: each kernel moves the bytes of
                its inputs and outputs. The constants are from before the first comparison with public measurements. Not
                fitted to any of them; the cells of Megatron-LM alone use it.
    flash       2023: flash attention, otherwise as fused
    compiled    graphs compiled by torch.compile, with flash attention
    fp8         products in FP8 (Transformer Engine), with overlapped tensor parallelism and fused attention of cuDNN
    fp4         products in FP4, otherwise as fp8
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median

from suite.core.errors import InvalidRequest
from suite.core.values import Json


@dataclass(frozen=True, slots=True)
class SoftwareGeneration:
    """Efficiency of one generation of software.

    Attributes:
        products: Rate of large matrix products over the best published one of the device (Machine.sustained), by
            family of devices (Machine.family).
        attention: Default attention kernel: unfused, fused_softmax, flash1, flash2 or flash3.
        flash_version: Kernel that "flash attention" without a version means, by family of devices. "other" holds for
            families that are not named.
        flash: Share of peak that the forward and the backward pass of each flash kernel reach, by family of devices,
            relative to large matrix products. "other" holds for families that are not named.
        sparse: The same as products where pruned weights are skipped, credited with the flops of dense ones; 0 for
            dense products.
        traffic: Share of a device's memory bandwidth that element-wise kernels reach.
        norm_bytes, unfused_norm_bytes: Bytes per entry that a norm moves in one kernel, and in several kernels with
            single-precision intermediates.
        residual_bytes: Bytes per entry that adding a residual moves.
        cast_bytes: Bytes per entry of a product's inputs that casting to FP8 or FP4 moves.
        start: Depth of a product whose time a tile needs to fill its loads and to write its result.
        contention: Share of a hidden communication by which it slows the kernels beside it.
        pause: Seconds between two kernels of a device: launch, and the tail of the last tiles.
        dispatch: Seconds that the host needs to launch a kernel. A layer takes at least this time for each kernel.
        recompute_host: Seconds in which the host restores the state of random numbers before a block is computed again.
        jitter: Share by which a step grows with each doubling of the nodes: the slowest rank of many.
        kernels: Kernels of the forward pass of a block; a backward pass has twice as many.
        dropout: Whether models without a gate train with dropout.
        fused_elementwise: Whether bias, activation, dropout and residual are one kernel each.
        fused_rotary: Whether rotary positions are one kernel.
        loss_forward, loss_backward: Bytes per logit that the loss moves, in addition to the product's output.
        step_bytes: Bytes per parameter that an optimizer step moves, with clipping and zeroing of gradients.
        reduced_bytes: Bytes per parameter in which gradients are reduced; 2 for half-precision training.
        gradient_bytes: Bytes per parameter of the gradients that a device holds.
        saved_bytes: Bytes per entry of the inputs of products that are saved for the backward pass.
        gathered_logits: Whether tensor-parallel ranks gather the logits of the whole vocabulary for the loss.
        loss_bytes: Bytes per logit that the loss holds.
        blocking_messages: Whether a stage waits until its message has arrived.
        sharded_gradient_bytes: Bytes per parameter in which gradients of sharded parameters are reduced.
        tensor_overlap: Share of tensor-parallel communication that products can hide: in forward passes, in backward
            passes.
        reduction_overlap: Whether gradients are reduced during the last backward pass.
        within, between: Share of the bandwidth of links inside a node, and of network adapters, that collectives reach.
        shard_call: Seconds for each rank of a group over several nodes when updated weights are gathered: every rank
            broadcasts its own shard.
        collective: Seconds to launch a collective.
        hop: Seconds of a step of a collective inside a node.
        network_hop: Seconds of a step of a collective between nodes.
    """

    products: Mapping[str, float]
    attention: str
    flash: Mapping[str, Mapping[str, tuple[float, float]]]
    flash_version: Mapping[str, str] = field(default_factory=lambda: {"other": "flash2"})
    name: str = ""
    sparse: float = 0.0
    traffic: float = 0.8
    norm_bytes: float = 4.0
    unfused_norm_bytes: float = 47.0
    residual_bytes: float = 6.0
    cast_bytes: float = 4.0
    start: float = 96.0
    contention: float = 0.3
    pause: float = 2.0e-6
    dispatch: float = 8.0e-6
    kernels: int = 22
    recompute_host: float = 0.0
    jitter: float = 0.0
    dropout: bool = False
    fused_elementwise: bool = True
    fused_rotary: bool = True
    loss_forward: float = 24.0
    loss_backward: float = 12.0
    step_bytes: float = 44.0
    reduced_bytes: int = 4
    gradient_bytes: int = 4
    saved_bytes: float = 2.0
    gathered_logits: bool = False
    loss_bytes: float = 10.0
    blocking_messages: bool = True
    sharded_gradient_bytes: int = 2
    tensor_overlap: tuple[float, float] = (0.0, 0.0)
    reduction_overlap: bool = False
    within: float = 0.77
    between: float = 0.8
    shard_call: float = 0.0
    collective: float = 1.0e-5
    hop: float = 1.5e-6
    network_hop: float = 5.0e-6

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
        """Constant of a family; the median over all families for one without a constant."""
        return self.products.get(family, median(self.products.values()))

    def varied(self, constant: str, value: float, family: str, kernel: str) -> SoftwareGeneration:
        """The generation with another value of a constant: on a family of devices, and for both passes of a kernel."""
        if constant == "products":
            return replace(self, products={family: value})
        if constant == "flash":
            return replace(self, flash={**self.flash, kernel: {"other": (value, value)}})
        if constant == "tensor_overlap":
            return replace(self, tensor_overlap=(value, value))
        return replace(self, **{constant: value})  # type: ignore[arg-type]

    def flash_kernel(self, family: str) -> str:
        """Kernel that "flash attention" without a version means on a device of this family."""
        return self.flash_version.get(family, self.flash_version["other"])


@cache
def generations() -> Mapping[str, SoftwareGeneration]:
    """The generations of generations.json by name."""
    text = Path(__file__).with_name("generations.json").read_text(encoding="utf-8")
    content = json.loads(text, object_hook=_with_pairs)
    return {name: SoftwareGeneration(name=name, **constants) for name, constants in content.items()}


def _with_pairs(content: Mapping[str, Json]) -> Mapping[str, Json]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
