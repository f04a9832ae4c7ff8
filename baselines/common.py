"""Decides what every peer has in common with the suite's own systems: start, split, rows of a batch, optimizer, bytes.

A peer brings its own engine, order and communication. What stands here must not differ between the systems that are
compared, or the comparison would be of something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from suite.comm.process_group import stay_on_host
from suite.core.build import build
from suite.core.errors import Refused, Unsupported
from suite.core.grid import Grid
from suite.core.protocols import World
from suite.engine.random import drawing, initial
from suite.engine.rate import Rate, as_rate
from suite.workload.split import Split, divide

_OPTIMIZERS = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}


class Plan:
    """A config as a peer needs it: the network, its split, the shape of a batch.

    ties: as Engine's `tied`; split: layers of each stage; microbatches: per replica and batch
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        model, batch = config["model"], config["batch"]
        self.grid = Grid(**config["grid"])
        self.network, self.shape = import_module(model["network"]), build(model["shape"])
        self.makers = self.network.layers(self.shape, dropout=model["dropout"], dtype=model["dtype"])
        self.ties: list[tuple[int, str, int, str]] = self.network.ties(self.shape)
        self.split: Split = divide(self.shape, self.grid.inter, config["split"])
        self.seed, self.microbatch = config["seed"], batch["microbatch"]
        self.size, self.microbatches = batch["size"], microbatches(config)

    def layer(self, number: int) -> nn.Module:
        """Layer `number` of the whole model with its initial weights: the same in every system and on every split."""
        with drawing(*initial(self.seed, number)):
            return self.makers[number]()

    def rows(self, part: Any, replica: int) -> torch.Tensor:
        """A replica's microbatches of a batch, [microbatches, microbatch, ...]: chunk index * replicas + replica."""
        chunks = torch.from_numpy(part).unflatten(0, (self.microbatches, self.grid.data, self.microbatch))
        return chunks[:, replica]


def microbatches(config: Mapping[str, Any]) -> int:
    """Microbatches per replica and batch. Raises Refused for a batch that is not a whole number of them."""
    size, chunk = config["batch"]["size"], config["batch"]["microbatch"] * config["grid"]["data"]
    if size < chunk or size % chunk:
        raise Refused(
            f"batch.size={size} in microbatches of {chunk} over all replicas",
            rule="a whole number of microbatches on every replica",
            legal=f"batch.size={max(1, size // chunk) * chunk}",
        )
    return int(size // chunk)


def refuse(config: Mapping[str, Any], *, dtypes: Sequence[str]) -> None:
    """What no peer has: layers split over ranks, an optimizer that torch does not have, another precision."""
    name, grid, dtype = config["system"]["name"], config["grid"], config["model"]["dtype"]
    if grid["tensor"] != 1:
        raise Unsupported(f"{name} with grid.tensor={grid['tensor']}", rule="no layer is split", legal="grid.tensor=1")
    if dtype not in dtypes:
        legal = f"model.dtype={dtypes[0]}"
        raise Unsupported(f"{name} with model.dtype={dtype}", rule=f"one of {', '.join(dtypes)}", legal=legal)
    optimizer_class(config)
    microbatches(config)


def join(layers: Mapping[int, nn.Module], ties: Iterable[tuple[int, str, int, str]]) -> None:
    """Where both ends of a tie are in `layers`, make them one parameter: the first layer's."""
    for first, first_name, last, last_name in ties:
        if first in layers and last in layers:
            owner, _, leaf = last_name.rpartition(".")
            setattr(layers[last].get_submodule(owner), leaf, layers[first].get_parameter(first_name))


def optimizer_class(config: Mapping[str, Any]) -> type[torch.optim.Optimizer]:
    """torch's optimizer of the same name as the suite's rule."""
    name = config["optimizer"]["_target_"].rpartition(".")[2]
    if name not in _OPTIMIZERS:
        what = f"{config['system']['name']} with {name}"
        raise Unsupported(what, rule=f"one of {', '.join(_OPTIMIZERS)}", legal="optimizer=adamw")
    return _OPTIMIZERS[name]


def optimizer(
    config: Mapping[str, Any], parameters: Iterable[nn.Parameter], **more: Any
) -> tuple[torch.optim.Optimizer, Rate]:
    """torch's own optimizer with the arguments of the suite's rule of the same name, and the rate of each update."""
    rule = config["optimizer"]
    arguments = {key: value for key, value in rule.items() if key not in ("_target_", "lr", "beta1", "beta2")}
    if "beta1" in rule:
        arguments["betas"] = (rule["beta1"], rule["beta2"])
    rate = as_rate(build(rule["lr"]))
    return optimizer_class(config)(parameters, lr=rate(0), **arguments, **more), rate


def set_rate(optimizer: Any, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def bytes_of_moments(optimizer: torch.optim.Optimizer) -> int:
    """What the optimizer remembers per weight; its counters of steps are numbers, not tensors of weights."""
    return bytes_of(t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.dim())


class DefaultGroup:
    """torch.distributed's default process group: the world's; a rank alone makes one of size 1, and ends it."""

    def __init__(self, world: World, grid: Grid) -> None:
        if world.size != grid.size:
            raise Refused(
                f"a grid of {grid.size} ranks ({grid}) in a world of {world.size}",
                rule="one rank per place of the grid",
                legal=f"{grid.size} ranks",
            )
        self.own = not dist.is_initialized()
        if not self.own:
            return
        if world.size > 1:
            raise Refused(
                f"{world.size} ranks without torch.distributed",
                rule="a peer's ranks are processes of one default process group",
                legal="mpiexec, or torchrun",
            )
        stay_on_host()
        backend = "nccl" if world.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)

    def close(self) -> None:
        if self.own and dist.is_initialized():
            dist.destroy_process_group()
