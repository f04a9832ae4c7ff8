"""Optimizer step of the compared systems that leave it to the user: torch's optimizer on float32 master weights.

In mixed precision the weights of the passes and their gradients are in half precision, and the optimizer steps on
float32 masters. The step widens the gradients, divides them by the loss scale, clips them, and casts the stepped
masters back. A batch whose gradients overflow changes only the scale. It is no update, so the learning rate does not
move either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from baselines.common import bytes_of, bytes_of_moments, optimizer, set_rate, train_options
from suite.config.run import RunConfig
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.optim.loss_scaler import DynamicLossScaler


class Stepper:
    """The optimizer of one rank's weights, which it casts to half precision if the config requests it.

    Attributes:
        uncounted: Weights that another rank counts in the norm of all gradients.
        sum_over_ranks: Sums the squared norms of all ranks; the result is equal on every rank. The default is the
            identity, for a rank that holds the whole model.
    """

    def __init__(
        self,
        config: RunConfig,
        weights: Sequence[nn.Parameter],
        *,
        fused: bool | None = None,
        uncounted: Sequence[nn.Parameter] = (),
        sum_over_ranks: Callable[[float], float] = float,
    ) -> None:
        self.options = train_options(config)
        self.weights = list(weights)
        self.masters = self.weights
        if self.options.half:
            self.masters = [nn.Parameter(weight.detach().clone()) for weight in self.weights]
            for weight in self.weights:
                weight.data = weight.data.to(self.options.half)
        skipped = {id(weight) for weight in uncounted}
        self.counted = [m for w, m in zip(self.weights, self.masters, strict=True) if id(w) not in skipped]
        self.sum_over_ranks = sum_over_ranks
        self.scale: DynamicLossScaler | None = None
        if self.options.half is torch.float16:
            self.scale = self.options.scale()
        self.optimizer, self.rate = optimizer(config, self.masters, fused=fused)
        self.updates = 0
        self.live: MemoryTracker | None = None  # marks the beginning of a step, while bytes are counted

    @property
    def factor(self) -> float:
        """Factor of a loss before its backward pass."""
        return float(self.scale.scale) if self.scale else 1.0

    @torch.no_grad()
    def step(self) -> bool:
        """Update the weights from their gradients. Returns False for a skipped update, after an overflow."""
        if self.live is not None:
            self.live.phase = "scratch"
        mixed = self.masters is not self.weights
        if mixed:
            for weight, master in zip(self.weights, self.masters, strict=True):
                master.grad = weight.grad.to(master.dtype)  # type: ignore[union-attr]
                if self.scale:
                    master.grad.div_(self.factor)
        done = self._clip() and self._step()
        if mixed:
            for weight, master in zip(self.weights, self.masters, strict=True):
                if done:
                    weight.copy_(master)
                master.grad = None
        return done

    def _clip(self) -> bool:
        """Clip the gradients. Returns False if scaled gradients are not finite on some rank."""
        if not (self.scale or self.options.clip):
            return True
        local_norm = float(get_total_norm([m.grad for m in self.counted if m.grad is not None]))
        norm = math.sqrt(self.sum_over_ranks(local_norm * local_norm))
        if self.scale:
            overflow = not math.isfinite(norm)
            self.scale.observe(overflow)
            if overflow:
                return False
        if self.options.clip:
            clip_grads_with_norm_(self.masters, self.options.clip, torch.tensor(norm, device=self.masters[0].device))
        return True

    def _step(self) -> bool:
        set_rate(self.optimizer, self.rate(self.updates))
        self.updates += 1
        self.optimizer.step()
        return True

    def measured(self, train: Callable[[], float]) -> tuple[float, dict[str, int]]:
        """The loss that `train` returns, and this rank's bytes by kind.

        The kinds are the memory that lives between batches (weights, moments, gradients, and masters in mixed
        precision), and the peak of the additional memory, under the phase in which it was reached.
        """
        with MemoryTracker() as self.live:
            loss = train()
        live, self.live = self.live, None
        masters = {"masters": bytes_of(self.masters)} if self.masters is not self.weights else {}
        bytes_by_kind = {"weights": bytes_of(self.weights), **masters, "moments": bytes_of_moments(self.optimizer)}
        bytes_by_kind["gradients"] = bytes_of(weight.grad for weight in self.weights if weight.grad is not None)
        return loss, {**bytes_by_kind, live.peak_phase: live.peak}
