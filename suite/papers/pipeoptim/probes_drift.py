"""Probes for PipeOptim's formulas: the engine's update rules in double precision.

Table I and Equation 5 are about one weight, so everything here is about one, or a few. A rule is asked for its drift
after an update, as no gradient of a mini-batch is known before its forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from suite.engine.optim.optimizer import SGD, RuleState, predicted, state_names

SMOOTHING = 0.9  # of the gradient that SpecTrain predicts by


def state(rule: Any, weights: Sequence[float], updates: int = 0, **moments: Sequence[float]) -> RuleState:
    """State that a rule works on, in double precision; moments that are not given are zero."""
    weight = [torch.tensor(weights, dtype=torch.float64)]
    names = state_names(rule, predicts=True)
    states = {name: torch.tensor(moments.get(name, [0.0] * len(weights)), dtype=torch.float64) for name in names}
    return RuleState(weight, states, updates)


def step(rule: Any, on: RuleState, *gradient: float) -> None:
    rule.step(on, torch.tensor(gradient, dtype=torch.float64))


def stepped(weight: float, lr: float, gradients: Sequence[float]) -> float:
    """A weight after plain steps, one per gradient."""
    rule = SGD(lr)
    on = state(rule, [weight])
    for gradient in gradients:
        step(rule, on, gradient)
    return float(on.weights[0])


def ahead(weight: float, lr: float, change: float, further: int) -> float:
    """The prediction `further` updates ahead of `weight`, after a plain step with `change`."""
    rule = SGD(lr)
    on = state(rule, [weight + lr * change])
    step(rule, on, change)
    return float(predicted(rule, on, further)[0])


def smoothed_ahead(weight: float, lr: float, velocity: float, further: int) -> float:
    """The same of SGD with momentum whose last update has left `velocity`."""
    rule = SGD(lr, momentum=SMOOTHING)
    return float(predicted(rule, state(rule, [weight], 1, velocity=[velocity]), further)[0])


def direction(rule: Any, gradient: float, updates: int, **moments: float) -> float:
    """The change that `rule` expects next, over -lr, after an update with `gradient` on these moments, which is number
    `updates` (from 1)."""
    on = state(rule, [0.5], updates - 1, **{name: [value] for name, value in moments.items()})
    step(rule, on, gradient)
    on.updates = updates
    return float(rule.drift(on)) / -float(rule.lr)
