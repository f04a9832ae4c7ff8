"""Plain PyTorch in one process: the reference whose losses and speed everything else is compared with.

A model, torch.optim, a loop over microbatches; no schedule, stage or transport of the suite. It starts from the same
initial weights and reads the same rows in the same order, so that what differs is the parallelism (and dropout masks,
where there is dropout: it draws as PyTorch does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import nn

from suite.core.build import build
from suite.core.errors import Unsupported
from suite.core.protocols import Missing, Ready, Value, World
from suite.core.trace import BACKWARD, FORWARD, STEP, Trace
from suite.engine.host import now
from suite.engine.live import LiveBytes
from suite.engine.random import drawing, initial
from suite.engine.rate import Rate, as_rate

_OPTIMIZERS = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}


class PyTorch:
    """One process; gradients accumulate over the microbatches of a batch."""

    @classmethod
    def probe(cls, config: Mapping[str, Any]) -> Ready | Missing:
        grid = config["grid"]
        if grid["data"] * grid["inter"] * grid["tensor"] != 1:
            raise Unsupported("pytorch on several ranks", rule="one process", legal="grid.data=1 grid.inter=1")
        return Ready()

    def __init__(self, world: World, config: Mapping[str, Any]) -> None:
        model, seed = config["model"], config["seed"]
        network, shape = import_module(model["network"]), build(model["shape"])
        layers = []
        for number, make in enumerate(network.layers(shape, dropout=model["dropout"], dtype=model["dtype"])):
            with drawing(*initial(seed, number)):
                layers.append(make())
        self.model, self.device = nn.Sequential(*layers).to(world.device), world.device
        for first, first_name, last, last_name in network.ties(shape):
            owner, _, leaf = last_name.rpartition(".")
            setattr(layers[last].get_submodule(owner), leaf, layers[first].get_parameter(first_name))
        self.loss = network.loss
        self.optimizer, self.rate = _optimizer(config["optimizer"], self.model)
        self.updates = 0
        self.microbatch = config["batch"]["microbatch"]
        self.trace = Trace()

    def train_batch(self, batch: Value) -> float:
        inputs, targets = (torch.from_numpy(part).to(self.device).split(self.microbatch) for part in batch)
        self.model.train()
        self.trace = Trace()
        losses = []
        for x, y in zip(inputs, targets, strict=True):
            start = now()
            loss = self.loss(self.model(x), y) / len(inputs)
            middle = now()
            loss.backward()
            losses.append(loss.detach())
            self.trace.add(0, FORWARD, start, middle)
            self.trace.add(0, BACKWARD, middle, now())
        start = now()
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.updates)
        self.updates += 1
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        self.trace.add(0, STEP, start, now())
        return float(sum(loss.double() for loss in losses))

    @torch.no_grad()
    def evaluate(self, batches: Sequence[Value]) -> float:
        self.model.eval()
        total = 0.0
        for inputs, targets in batches:
            parts = zip(
                *(torch.from_numpy(p).to(self.device).split(self.microbatch) for p in (inputs, targets)), strict=True
            )
            losses = [float(self.loss(self.model(x), y)) for x, y in parts]
            total += sum(losses) / len(losses)
        return total / len(batches)

    def observe(self) -> Trace:
        return self.trace

    def memory(self, batch: Value) -> tuple[float, dict[str, int]]:
        held = {"weights": _bytes(self.model.parameters())}
        with LiveBytes() as live:
            loss = self.train_batch(batch)
        held["gradients"] = _bytes(p.grad for p in self.model.parameters() if p.grad is not None)
        held["moments"] = _bytes(t for s in self.optimizer.state.values() for t in s.values() if t.dim())
        return loss, {**held, "activations": live.peak}

    def close(self) -> None:
        """Nothing is held."""


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _optimizer(config: Mapping[str, Any], model: nn.Module) -> tuple[torch.optim.Optimizer, Rate]:
    """torch's own optimizer with the arguments of the suite's rule of the same name, and the rate of each update."""
    name, rate = config["_target_"].rpartition(".")[2], as_rate(build(config["lr"]))
    if name not in _OPTIMIZERS:
        raise Unsupported(f"pytorch with {name}", rule=f"one of {', '.join(_OPTIMIZERS)}", legal="optimizer=adamw")
    arguments = {key: value for key, value in config.items() if key not in ("_target_", "lr", "beta1", "beta2")}
    if "beta1" in config:
        arguments["betas"] = (config["beta1"], config["beta2"])
    return _OPTIMIZERS[name](model.parameters(), lr=rate(0), **arguments), rate
