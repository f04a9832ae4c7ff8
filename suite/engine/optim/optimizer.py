"""Update rules with an expected change per update: SGD with momentum, Adam, AdamW and RMSprop.

The formulas are torch.optim's, the order of roundings is not: in float32 a step at equal gradients differs from torch's
by at most 1.2e-7 of the weight (of 1 for a smaller weight).

Moments are flat tensors over all weights of a stage. Only single-rounding operations are used (no fused multiply-add),
so a result does not depend on where in a flat tensor an entry lies: every split, bucket and resume gives the same bits.
A step consumes the gradient as scratch, so nothing is allocated in addition to the states of the layout.

What a rule expects (`drift`, PipeOptim Table I times -lr) comes from the state that the last update left, as the next
gradient is not known before the pass that is predicted for; before the first update nothing is expected. It takes the
learning rate of the update to come. Live weights are never written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from suite.core.bounds import NonNegative, UnitInterval, check_bounds
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.members import lacking
from suite.core.protocols import UpdateRule
from suite.engine.optim.lr_schedule import Rate, as_rate

_FEW = 4096  # entries of a step's scratch
LAST = "gradient"  # the state that holds the last gradient, where a drift needs it
DIRECTIONS = ("velocity", "next")


@dataclass
class RuleState:
    """State that a rule works on.

    Attributes:
        weights: The stage's tensors, in order.
        moments: flat, one entry per weight.
    """

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
            for few, piece in zip(weight.reshape(-1).split(_FEW), part.reshape(-1).split(_FEW), strict=True):
                piece.add_(few * factor)


def _keep(state: RuleState, grad: torch.Tensor) -> None:
    """The last gradient, where a drift will ask for it."""
    if (last := state.moments.get(LAST)) is not None:
        last.copy_(grad)


@dataclass(frozen=True)
class SGD(UpdateRule):
    """SGD with momentum: v = u v + (1 - dampening) g, with v = g at the first update, as in PyTorch; w -= lr v, and
    with nesterov w -= lr (g + u v).

    weight_decay is coupled: it is added to the gradient.
    direction: of the drift. velocity: that of the last update, v (PipeOptim Table I); next: u v + (1 - dampening) g,
        as PipeOptim's public code has it, which is the next velocity if the last gradient comes again
    """

    lr: float | Rate
    momentum: UnitInterval = 0.0
    dampening: float = 0.0
    weight_decay: NonNegative = 0.0
    nesterov: bool = False
    direction: Literal["velocity", "next"] = "velocity"

    def __post_init__(self) -> None:
        as_rate(self.lr)
        check_bounds(self)
        if self.nesterov and (not self.momentum or self.dampening):
            message = f"nesterov with momentum={self.momentum} and dampening={self.dampening}"
            raise InvalidRequest(message, rule="momentum above 0 and no dampening", legal="momentum=0.9 dampening=0.0")
        if self.direction not in DIRECTIONS:
            raise UnknownName("direction of a drift", str(self.direction), DIRECTIONS)

    @property
    def states(self) -> tuple[str, ...]:
        """The velocity; plain SGD keeps the last gradient there, which its drift needs."""
        return ("velocity",)

    @property
    def drift_states(self) -> tuple[str, ...]:
        return (LAST,) if self.nesterov or (self.momentum and self.direction == "next") else ()

    @torch.no_grad()
    def step(self, state: RuleState, grad: torch.Tensor) -> None:
        velocity = state.moments["velocity"]
        if self.weight_decay:
            state.decay(grad, self.weight_decay)
        _keep(state, grad)
        if state.updates == 0 or not self.momentum:
            velocity.copy_(grad)
        elif self.nesterov:
            velocity.mul_(self.momentum).add_(grad)
        else:
            velocity.mul_(self.momentum).add_(grad.mul_(1 - self.dampening) if self.dampening else grad)
        lr = as_rate(self.lr)(state.updates)
        if self.nesterov:
            for few, piece in zip(grad.split(_FEW), velocity.split(_FEW), strict=True):
                few.add_(piece * self.momentum)
            state.move(grad.mul_(-lr))
        else:
            state.move(torch.mul(velocity, -lr, out=grad))
        state.updates += 1

    @torch.no_grad()
    def drift(self, state: RuleState) -> torch.Tensor:
        """-lr times the direction; nothing before the first update, as the velocity is zero."""
        direction = state.moments["velocity"]
        if self.momentum and self.direction == "next":
            direction = direction * self.momentum + state.moments[LAST] * (1 - self.dampening)
        if self.nesterov:
            direction = direction * self.momentum + state.moments[LAST]
        return direction * -as_rate(self.lr)(state.updates)


@dataclass(frozen=True)
class Adam(UpdateRule):
    """Adam (Kingma and Ba); weight_decay is coupled (added to the gradient). PyTorch's formula."""

    lr: float | Rate
    beta1: UnitInterval = 0.9
    beta2: UnitInterval = 0.999
    eps: NonNegative = 1e-8
    weight_decay: NonNegative = 0.0
    decoupled = False

    def __post_init__(self) -> None:
        as_rate(self.lr)
        check_bounds(self)

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
        """-lr m^ / (sqrt(v^) + eps) of the last update; zero before the first."""
        moment = state.moments["moment_1"]
        if state.updates == 0:
            return torch.zeros_like(moment)
        return self._direction(state, as_rate(self.lr)(state.updates), torch.empty_like(moment))

    def _direction(self, state: RuleState, lr: float, out: torch.Tensor) -> torch.Tensor:
        correction_1 = 1 - self.beta1**state.updates
        correction_2 = 1 - self.beta2**state.updates
        torch.div(state.moments["moment_2"], correction_2, out=out).sqrt_().add_(self.eps)
        return torch.div(state.moments["moment_1"], out, out=out).mul_(-lr / correction_1)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter), AxoNN's optimizer: w *= 1 - lr * weight_decay first.

    predict_decay: whether the drift has the decay too, -lr * weight_decay * w; PipeOptim's Table I leaves it out
    """

    weight_decay: NonNegative = 0.01
    predict_decay: bool = False
    decoupled = True

    @torch.no_grad()
    def drift(self, state: RuleState) -> torch.Tensor:
        """Adam's, and with predict_decay the decay; zero before the first update."""
        step = super().drift(state)
        if self.predict_decay and state.updates:
            factor = -as_rate(self.lr)(state.updates) * self.weight_decay
            for piece, weight in zip(state.views(step), state.weights, strict=True):
                piece.add_(weight * factor)
        return step


@dataclass(frozen=True)
class RMSprop(UpdateRule):
    """RMSprop (Tieleman and Hinton): v = alpha v + (1 - alpha) g^2, d = g / (sqrt(v) + eps); w -= lr d, or with
    momentum b = u b + d and w -= lr b. PyTorch's formula; weight_decay is coupled."""

    lr: float | Rate
    alpha: UnitInterval = 0.99
    eps: NonNegative = 1e-8
    momentum: UnitInterval = 0.0
    weight_decay: NonNegative = 0.0

    def __post_init__(self) -> None:
        as_rate(self.lr)
        check_bounds(self)

    @property
    def states(self) -> tuple[str, ...]:
        return ("square", "velocity") if self.momentum else ("square",)

    @property
    def drift_states(self) -> tuple[str, ...]:
        return () if self.momentum else (LAST,)

    @torch.no_grad()
    def step(self, state: RuleState, grad: torch.Tensor) -> None:
        if self.weight_decay:
            state.decay(grad, self.weight_decay)
        _keep(state, grad)
        for few, square in zip(grad.split(_FEW), state.moments["square"].split(_FEW), strict=True):
            square.mul_(self.alpha).add_((few * few).mul_(1 - self.alpha))
            few.div_(square.sqrt().add_(self.eps))
        lr = as_rate(self.lr)(state.updates)
        if self.momentum:
            velocity = state.moments["velocity"].mul_(self.momentum).add_(grad)
            torch.mul(velocity, -lr, out=grad)
        else:
            grad.mul_(-lr)
        state.move(grad)
        state.updates += 1

    @torch.no_grad()
    def drift(self, state: RuleState) -> torch.Tensor:
        """-lr times the last update's direction; zero before the first."""
        lr = as_rate(self.lr)(state.updates)
        if self.momentum:
            return state.moments["velocity"] * -lr
        return state.moments[LAST] / state.moments["square"].sqrt().add_(self.eps) * -lr


def states_of(rule: UpdateRule, *, predicts: bool) -> tuple[str, ...]:
    """The flat states of a rule; where its drift is asked for, those that only the drift needs too."""
    return (*rule.states, *(rule.drift_states if predicts else ()))


@torch.no_grad()
def predicted(rule: UpdateRule, state: RuleState, ahead: int) -> torch.Tensor:
    """The weights that `rule` expects after `ahead` more updates, flat: w + ahead * drift (PipeOptim Equation 5, whose
    Delta W is -drift / lr). A new tensor: nothing of `state` is written.

    Raises InvalidRequest for a rule without a drift, and for a state that lacks what the drift needs."""
    if missing := lacking(rule, UpdateRule):
        raise InvalidRequest(
            f"{type(rule).__name__} predicts nothing",
            rule=f"an update rule with {' and '.join(missing)}, as suite.core.protocols.UpdateRule has",
            legal="SGD, Adam",
        )
    for name in states_of(rule, predicts=True):
        if name not in state.moments:
            raise InvalidRequest(f"{type(rule).__name__} without its state {name!r}", rule="all of states_of(rule)")
    flat: torch.Tensor = rule.drift(state) * ahead
    for weight, part in zip(state.weights, state.views(flat), strict=True):
        part.add_(weight)
    return flat
