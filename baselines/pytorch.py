"""Plain PyTorch in one process: the reference whose losses and speed everything else is compared with.

A model, torch.optim, a loop over microbatches; no schedule, stage or transport of the suite. It starts from the same
initial weights and reads the same rows in the same order, so that what differs is the parallelism (and dropout masks,
where there is dropout: it draws as PyTorch does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from baselines.common import Plan, bytes_of, bytes_of_moments, join, optimizer, set_rate
from suite.core.errors import Unsupported
from suite.core.protocols import Missing, Ready, Value, World
from suite.core.trace import BACKWARD, FORWARD, STEP, Trace
from suite.engine.host import now
from suite.engine.live import LiveBytes


class PyTorch:
    """One process; gradients accumulate over the microbatches of a batch."""

    @classmethod
    def probe(cls, config: Mapping[str, Any]) -> Ready | Missing:
        grid = config["grid"]
        if grid["data"] * grid["inter"] * grid["tensor"] != 1:
            raise Unsupported("pytorch on several ranks", rule="one process", legal="grid.data=1 grid.inter=1")
        return Ready()

    def __init__(self, world: World, config: Mapping[str, Any]) -> None:
        plan = Plan(config)
        layers = {number: plan.layer(number) for number in range(len(plan.makers))}
        join(layers, plan.ties)
        self.model, self.device = nn.Sequential(*layers.values()).to(world.device), world.device
        self.loss = plan.network.loss
        self.optimizer, self.rate = optimizer(config, self.model.parameters())
        self.updates = 0
        self.microbatch = plan.microbatch
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
        set_rate(self.optimizer, self.rate(self.updates))
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
        held = {"weights": bytes_of(self.model.parameters())}
        with LiveBytes() as live:
            loss = self.train_batch(batch)
        held["gradients"] = bytes_of(p.grad for p in self.model.parameters() if p.grad is not None)
        held["moments"] = bytes_of_moments(self.optimizer)
        return loss, {**held, "activations": live.peak}

    def close(self) -> None:
        """Nothing is held."""
