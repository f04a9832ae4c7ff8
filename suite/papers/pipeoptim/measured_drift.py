"""Probes for PipeOptim's formulas: the engine's update rules on single weights in double precision.

The drift of a rule is evaluated after an update, as the gradient of a mini-batch is unknown before its forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from suite.engine.optim.optimizer import SGD, Adam, AdamW, RuleState, predicted, state_names

SMOOTHING = 0.9  # momentum of the gradient by which SpecTrain predicts


def state(rule: Any, weights: Sequence[float], updates: int = 0, **moments: Sequence[float]) -> RuleState:
    """State of a rule in double precision; missing moments are zero."""
    weight = [torch.tensor(weights, dtype=torch.float64)]
    names = state_names(rule, predicts=True)
    states = {name: torch.tensor(moments.get(name, [0.0] * len(weights)), dtype=torch.float64) for name in names}
    return RuleState(weight, states, updates)


def step(rule: Any, on: RuleState, *gradient: float) -> None:
    rule.step(on, torch.tensor(gradient, dtype=torch.float64))


def stepped(weight: float, lr: float, **gradients: float) -> float:
    """A weight after one step per gradient of the engine's SGD without momentum, in double precision."""
    rule = SGD(lr)
    on = state(rule, [weight])
    for gradient in gradients.values():
        step(rule, on, gradient)
    return float(on.weights[0])


def predict_sgd(weight: float, lr: float, change: float, steps: int) -> float:
    """Weight predicted `steps` updates ahead by the engine's SGD after a step with gradient `change`."""
    rule = SGD(lr)
    on = state(rule, [weight + lr * change])
    step(rule, on, change)
    return float(predicted(rule, on, steps)[0])


def predict_momentum(weight: float, lr: float, velocity: float, steps: int) -> float:
    """Weight predicted `steps` updates ahead by the engine's SGD with momentum whose last update left `velocity`."""
    rule = SGD(lr, momentum=SMOOTHING)
    return float(predicted(rule, state(rule, [weight], 1, velocity=[velocity]), steps)[0])


def direction(rule: Any, gradient: float, updates: int, **moments: float) -> float:
    """The drift of a rule over -lr, after update number `updates` (from 1) with `gradient` on these moments."""
    on = state(rule, [0.5], updates - 1, **{name: [value] for name, value in moments.items()})
    step(rule, on, gradient)
    on.updates = updates
    return float(rule.drift(on)) / -float(rule.lr)


def sgdm(momentum: float, dampening: float, gradient: float, velocity: float) -> float:
    """Drift of the engine's SGD with momentum after an update with the gradient, over -lr."""
    return direction(SGD(0.5, momentum, dampening), gradient, 2, velocity=velocity)


def adam(
    beta1: float, beta2: float, eps: float, gradient: float, updates: int, *, decoupled: bool, **moments: float
) -> float:
    """Drift of the engine's Adam after an update with the gradient, over -lr.

    The prediction of AdamW leaves out its default decay.
    """
    kind = AdamW if decoupled else Adam
    return direction(kind(0.5, beta1, beta2, eps), gradient, updates, **moments)
