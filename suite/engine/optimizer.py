"""Decides the update rules: SGD with momentum, Adam, AdamW, each with the change that it expects per update (`drift`).

Moments are flat tensors over all weights of a stage. Only single-rounding operations are used (no fused multiply-add),
so a result does not depend on where in a flat tensor an entry lies: every split, bucket and resume gives the same bits.
A rule moves the weights by its own drift, so that prediction at constant gradient is exact by construction. A step uses
the gradient up: it is the scratch, so that nothing is allocated beside the states that a layout counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from suite.core.errors import Refused
from suite.engine.rate import Rate, as_rate

_FEW = 4096  # entries of what little a step must hold beside its states


@dataclass
class RuleState:
    """What a rule works on. weights: the stage's tensors, in order; moments: flat, one entry per weight."""

    weights: list[torch.Tensor]
    moments: dict[str, torch.Tensor] = field(default_factory=dict)
    updates: int = 0

    @torch.no_grad()
    def move(self, drift: torch.Tensor) -> None:
        """Add a flat change to the weights."""
        torch._foreach_add_(self.weights, self.views(drift))

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parts of a flat tensor that belong to the weights, in their shapes."""
        parts = flat.split([weight.numel() for weight in self.weights])
        return [part.view(weight.shape) for part, weight in zip(parts, self.weights, strict=True)]

    @torch.no_grad()
    def decay(self, grad: torch.Tensor, factor: float) -> None:
        """Add `factor` times the weights to a flat gradient (coupled weight decay), a few entries at a time."""
        for weight, part in zip(self.weights, self.views(grad), strict=True):
            for few, own in zip(weight.reshape(-1).split(_FEW), part.reshape(-1).split(_FEW), strict=True):
                own.add_(few * factor)


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value < high:
        raise Refused(f"{name}={value}", rule=f"at least {low} and below {high}")


@dataclass(frozen=True)
class SGD:
    """SGD with momentum: v = u v + (1 - dampening) g, with v = g at the first update, as in PyTorch; w -= lr v.

    weight_decay is coupled: it is added to the gradient.
    """

    lr: float | Rate
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        as_rate(self.lr)
        _check("momentum", self.momentum, 0.0, 1.0)
        _check("weight_decay", self.weight_decay, 0.0, math.inf)

    @property
    def states(self) -> tuple[str, ...]:
        """The velocity; plain SGD keeps the last gradient there, which its drift needs."""
        return ("velocity",)

    @torch.no_grad()
    def step(self, state: RuleState, grad: torch.Tensor) -> None:
        velocity = state.moments["velocity"]
        if self.weight_decay:
            state.decay(grad, self.weight_decay)
        if state.updates == 0 or not self.momentum:
            velocity.copy_(grad)
        else:
            velocity.mul_(self.momentum).add_(grad.mul_(1 - self.dampening) if self.dampening else grad)
        state.move(torch.mul(velocity, -as_rate(self.lr)(state.updates), out=grad))
        state.updates += 1

    @torch.no_grad()
    def drift(self, state: RuleState) -> torch.Tensor:
        """-lr v of the last update; nothing before the first."""
        return state.moments["velocity"] * -as_rate(self.lr)(max(0, state.updates - 1))


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba); weight_decay is coupled (added to the gradient). PyTorch's formula."""

    lr: float | Rate
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled = False

    def __post_init__(self) -> None:
        as_rate(self.lr)
        _check("beta1", self.beta1, 0.0, 1.0)
        _check("beta2", self.beta2, 0.0, 1.0)
        _check("eps", self.eps, 0.0, math.inf)
        _check("weight_decay", self.weight_decay, 0.0, math.inf)

    @property
    def states(self) -> tuple[str, ...]:
        return ("moment_1", "moment_2")

    @torch.no_grad()
    def step(self, state: RuleState, grad: torch.Tensor) -> None:
        lr = as_rate(self.lr)(state.updates)
        if self.weight_decay and self.decoupled:
            torch._foreach_mul_(state.weights, 1 - lr * self.weight_decay)
        elif self.weight_decay:
            state.decay(grad, self.weight_decay)
        # the gradient becomes (1 - beta1) g, then its square scaled to (1 - beta2) g^2, then the change of the weights
        state.moments["moment_1"].mul_(self.beta1).add_(grad.mul_(1 - self.beta1))
        grad.mul_(grad).mul_((1 - self.beta2) / (1 - self.beta1) ** 2)
        state.moments["moment_2"].mul_(self.beta2).add_(grad)
        state.updates += 1
        state.move(self._direction(state, lr, grad))

    @torch.no_grad()
    def drift(self, state: RuleState) -> torch.Tensor:
        """-lr m^ / (sqrt(v^) + eps) of the last update; zero before the first. Without decoupled decay (Table I)."""
        moment = state.moments["moment_1"]
        if state.updates == 0:
            return torch.zeros_like(moment)
        return self._direction(state, as_rate(self.lr)(state.updates - 1), torch.empty_like(moment))

    def _direction(self, state: RuleState, lr: float, out: torch.Tensor) -> torch.Tensor:
        correction_1 = 1 - self.beta1**state.updates
        correction_2 = 1 - self.beta2**state.updates
        torch.div(state.moments["moment_2"], correction_2, out=out).sqrt_().add_(self.eps)
        return torch.div(state.moments["moment_1"], out, out=out).mul_(-lr / correction_1)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter), AxoNN's optimizer: w *= 1 - lr * weight_decay first."""

    weight_decay: float = 0.01
    decoupled = True
