"""Update rules with an expected change per update: SGD with momentum, Adam, AdamW and RMSprop.

The formulas are torch.optim's; the order of roundings differs. In float32 a step at equal gradients differs from
torch's by at most 1.2e-7 of the weight (of 1 for a smaller weight).

Moments are flat tensors over all weights of a stage. Steps use only operations with a single rounding (no fused
multiply-add). So a result does not depend on the position of an entry in a flat tensor, and every split, bucket and
resume gives the same bits. A step uses the gradient as scratch and allocates no further state.

The expected change (`drift`, PipeOptim Table I times -lr) follows from the state after the last update, because the
next gradient is unknown before the pass that needs the prediction. Before the first update it is zero. It uses the
learning rate of the next update, and never writes live weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch

from suite import accelerator
from suite.core.bounds import NonNegative, UnitInterval, check_bounds
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.protocols import UpdateRule
from suite.engine.optim.lr_schedule import Rate, as_rate

_SCRATCH, _DEVICE_SCRATCH = 1 << 12, 1 << 26  # entries of a step's scratch: on a device each piece is a launch
LAST_GRADIENT = "gradient"  # name of the state with the last gradient, if a drift needs it
DIRECTIONS = ("velocity", "next")


@dataclass
class RuleState:
    """State that a rule updates.

    Attributes:
        weights: Tensors of a stage, in order.
        moments: Flat tensors over all weights, by name.
        updates: Updates so far.
        start: Position of the first weight in the flat order of the stage.
    """

    weights: list[torch.Tensor]
    moments: dict[str, torch.Tensor] = field(default_factory=dict)
    updates: int = 0
    start: int = 0

    @torch.no_grad()
    def add_to_weights(self, change: torch.Tensor) -> None:
        """Add a flat change to the weights."""
        torch._foreach_add_(self.weights, self.views(change))

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Views of a flat tensor in the shapes of the weights."""
        views = flat.split([weight.numel() for weight in self.weights])
        return [view.view(weight.shape) for view, weight in zip(views, self.weights, strict=True)]

    @torch.no_grad()
    def add_weight_decay(self, grad: torch.Tensor, factor: float) -> None:
        """Add `factor` times the weights to a flat gradient (coupled weight decay), piece by piece."""
        for weight, view in zip(self.weights, self.views(grad), strict=True):
            for weight_piece, grad_piece in _pieces(weight.reshape(-1), view.reshape(-1)):
                grad_piece.add_(weight_piece * factor)


def _pieces(*flat: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Pieces of flat tensors of one size, which bound the scratch of an operation on them."""
    size = _SCRATCH if accelerator.on_host(flat[0].device) else _DEVICE_SCRATCH
    return zip(*(tensor.split(size) for tensor in flat), strict=True)


def _rate_at(lr: float | Rate, update: int) -> float:
    """Learning rate of an update."""
    return lr(update) if callable(lr) else lr


def _store_gradient(state: RuleState, grad: torch.Tensor) -> None:
    """Store the gradient if a drift needs it."""
    if (last := state.moments.get(LAST_GRADIENT)) is not None:
        last.copy_(grad)


@dataclass(frozen=True)
class SGD(UpdateRule):
    """SGD with momentum u: v = u v + (1 - dampening) g, with v = g at the first update, as in PyTorch.

    The step is w -= lr v, and with nesterov w -= lr (g + u v).

    Attributes:
        weight_decay: Coupled decay, which is added to the gradient.
        direction: Direction of the drift. "velocity" is the last update's, v (PipeOptim Table I). "next" is
            u v + (1 - dampening) g, as in PipeOptim's public code: the next velocity if the last gradient repeats.
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
        """The velocity; for plain SGD it is the last gradient, which its drift needs."""
        return ("velocity",)

    @property
    def drift_states(self) -> tuple[str, ...]:
        return (LAST_GRADIENT,) if self.nesterov or (self.momentum and self.direction == "next") else ()

    @torch.no_grad()
    def step(self, state: RuleState, grad: torch.Tensor) -> None:
        velocity = state.moments["velocity"]
        if self.weight_decay:
            state.add_weight_decay(grad, self.weight_decay)
        _store_gradient(state, grad)
        if state.updates == 0 or not self.momentum:
            velocity.copy_(grad)
        elif self.nesterov:
            velocity.mul_(self.momentum).add_(grad)
        else:
            velocity.mul_(self.momentum).add_(grad.mul_(1 - self.dampening) if self.dampening else grad)
        lr = _rate_at(self.lr, state.updates)
        if self.nesterov:
            for grad_piece, velocity_piece in _pieces(grad, velocity):
                grad_piece.add_(velocity_piece * self.momentum)
            state.add_to_weights(grad.mul_(-lr))
        else:
            state.add_to_weights(torch.mul(velocity, -lr, out=grad))
        state.updates += 1

    @torch.no_grad()
    def drift(self, state: RuleState) -> torch.Tensor:
        """-lr times the direction; zero before the first update, because the velocity is zero."""
        direction = state.moments["velocity"]
        if self.momentum and self.direction == "next":
            direction = direction * self.momentum + state.moments[LAST_GRADIENT] * (1 - self.dampening)
        if self.nesterov:
            direction = direction * self.momentum + state.moments[LAST_GRADIENT]
        return direction * -_rate_at(self.lr, state.updates)


@dataclass(frozen=True)
class Adam(UpdateRule):
    """Adam (Kingma and Ba) with PyTorch's formula. `weight_decay` is coupled: it is added to the gradient."""

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
        lr = _rate_at(self.lr, state.updates)
        if self.weight_decay and self.decoupled:
            torch._foreach_mul_(state.weights, 1 - lr * self.weight_decay)
        elif self.weight_decay:
            state.add_weight_decay(grad, self.weight_decay)
        # `grad` becomes (1 - beta1) g, then (1 - beta2) g^2, then the change of the weights
        state.moments["moment_1"].mul_(self.beta1).add_(grad.mul_(1 - self.beta1))
        grad.mul_(grad).mul_((1 - self.beta2) / (1 - self.beta1) ** 2)
        state.moments["moment_2"].mul_(self.beta2).add_(grad)
        state.updates += 1
        state.add_to_weights(self._direction(state, lr, grad))

    @torch.no_grad()
    def drift(self, state: RuleState) -> torch.Tensor:
        """-lr m^ / (sqrt(v^) + eps) of the last update; zero before the first."""
        moment = state.moments["moment_1"]
        if state.updates == 0:
            return torch.zeros_like(moment)
        return self._direction(state, _rate_at(self.lr, state.updates), torch.empty_like(moment))

    def _direction(self, state: RuleState, lr: float, out: torch.Tensor) -> torch.Tensor:
        correction_1 = 1 - self.beta1**state.updates
        correction_2 = 1 - self.beta2**state.updates
        torch.div(state.moments["moment_2"], correction_2, out=out).sqrt_().add_(self.eps)
        return torch.div(state.moments["moment_1"], out, out=out).mul_(-lr / correction_1)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter): w *= 1 - lr * weight_decay first. AxoNN's optimizer.

    Attributes:
        predict_decay: Whether the drift includes the decay, -lr * weight_decay * w. PipeOptim's Table I excludes it.
    """

    weight_decay: NonNegative = 0.01
    predict_decay: bool = False
    decoupled = True

    @torch.no_grad()
    def drift(self, state: RuleState) -> torch.Tensor:
        """Adam's drift, with predict_decay including the decay; zero before the first update."""
        step = super().drift(state)
        if self.predict_decay and state.updates:
            factor = -_rate_at(self.lr, state.updates) * self.weight_decay
            for piece, weight in zip(state.views(step), state.weights, strict=True):
                piece.add_(weight * factor)
        return step


@dataclass(frozen=True)
class RMSprop(UpdateRule):
    """RMSprop (Tieleman and Hinton) with PyTorch's formula: v = alpha v + (1 - alpha) g^2, d = g / (sqrt(v) + eps).

    The step is w -= lr d, or with momentum u: b = u b + d and w -= lr b. `weight_decay` is coupled."""

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
        return () if self.momentum else (LAST_GRADIENT,)

    @torch.no_grad()
    def step(self, state: RuleState, grad: torch.Tensor) -> None:
        if self.weight_decay:
            state.add_weight_decay(grad, self.weight_decay)
        _store_gradient(state, grad)
        for grad_piece, square in _pieces(grad, state.moments["square"]):
            square.mul_(self.alpha).add_((grad_piece * grad_piece).mul_(1 - self.alpha))
            grad_piece.div_(square.sqrt().add_(self.eps))
        lr = _rate_at(self.lr, state.updates)
        if self.momentum:
            velocity = state.moments["velocity"].mul_(self.momentum).add_(grad)
            torch.mul(velocity, -lr, out=grad)
        else:
            grad.mul_(-lr)
        state.add_to_weights(grad)
        state.updates += 1

    @torch.no_grad()
    def drift(self, state: RuleState) -> torch.Tensor:
        """-lr times the direction of the last update; zero before the first."""
        lr = _rate_at(self.lr, state.updates)
        if self.momentum:
            return state.moments["velocity"] * -lr
        return state.moments[LAST_GRADIENT] / state.moments["square"].sqrt().add_(self.eps) * -lr


def state_names(rule: UpdateRule, *, predicts: bool) -> tuple[str, ...]:
    """Names of the flat states of a rule; with `predicts` also of the states that only its drift needs."""
    return (*rule.states, *(rule.drift_states if predicts else ()))


@torch.no_grad()
def predicted(rule: UpdateRule, state: RuleState, updates_ahead: int) -> torch.Tensor:
    """Flat weights that `rule` expects after `updates_ahead` more updates, in a new tensor.

    They are w + updates_ahead * drift (PipeOptim Equation 5, whose Delta W is -drift / lr). `state` has all of
    `state_names`."""
    flat: torch.Tensor = rule.drift(state) * updates_ahead
    for weight, view in zip(state.weights, state.views(flat), strict=True):
        view.add_(weight)
    return flat
