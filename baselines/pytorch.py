"""Plain PyTorch in one process: the reference for the losses and the speed of all other systems.

It is a model, torch.optim and a loop over microbatches, without a schedule, stage or transport of the suite. It starts
from the same initial weights and reads the same rows in the same order. So only the parallelism differs, and the
dropout masks, which it draws as PyTorch does. In mixed precision the gradients of the microbatches are added in half
precision, as in the suite's engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from baselines.common import PeerPlan, join, refuse_pairs, stage_of, train_options
from baselines.stepping import Stepper
from suite.config.protocols import System
from suite.config.run import RunConfig
from suite.core.protocols import Missing, Ready, Value, World
from suite.core.trace import BACKWARD, FORWARD, STEP, Trace
from suite.engine.process_setup import now


class PyTorch(System):
    """One process; gradients accumulate over the microbatches of a batch."""

    @classmethod
    def probe(cls, config: RunConfig) -> Ready | Missing:
        train_options(config)
        refuse_pairs(config)
        return Ready()

    def __init__(self, world: World, config: RunConfig) -> None:
        plan = PeerPlan(config)
        layers = {number: plan.layer(number) for number in range(len(plan.makers))}
        join(layers, plan.ties)
        self.model, self.device = stage_of(plan, layers).to(world.device), world.device
        self.loss = plan.loss
        self.stepper = Stepper(config, list(self.model.parameters()), fused=config.kernels.fused or None)
        self.microbatch = plan.microbatch
        self.trace = Trace()

    def train_batch(self, batch: Value) -> float:
        pairs = self._microbatches(batch)
        self.model.train()
        self.trace = Trace()
        losses = []
        for x, y in pairs:
            start = now()
            loss = self.loss(self.model(x), y) / len(pairs)
            middle = now()
            (loss * self.stepper.factor).backward()
            losses.append(loss.detach())
            self.trace.add(0, FORWARD, start, middle)
            self.trace.add(0, BACKWARD, middle, now())
        start = now()
        self.stepper.step()
        self.model.zero_grad(set_to_none=False)
        self.trace.add(0, STEP, start, now())
        return float(sum(loss.double() for loss in losses))

    @torch.no_grad()
    def evaluate(self, batches: Sequence[Value]) -> float:
        self.model.eval()
        losses = [[float(self.loss(self.model(x), y)) for x, y in self._microbatches(batch)] for batch in batches]
        return sum(sum(each) / len(each) for each in losses) / len(batches)

    def observe(self) -> Trace:
        return self.trace

    def memory(self, batch: Value) -> tuple[float, dict[str, int]]:
        return self.stepper.measured(lambda: self.train_batch(batch))

    def _microbatches(self, batch: Value) -> list[tuple[torch.Tensor, ...]]:
        return list(
            zip(*(torch.from_numpy(part).to(self.device).split(self.microbatch) for part in batch), strict=True)
        )

    def close(self) -> None:
        """Nothing is held."""
