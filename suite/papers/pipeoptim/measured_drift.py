"""Probes for PipeOptim's formulas: the engine's update rules on single weights in double precision.

The drift of a rule is evaluated after an update, as the gradient of a mini-batch is unknown before its forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from suite.claims.answer import Cases, Question
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


def stepped(weight: float, lr: float, gradients: Sequence[float]) -> float:
    """A weight after one plain SGD step per gradient."""
    rule = SGD(lr)
    on = state(rule, [weight])
    for gradient in gradients:
        step(rule, on, gradient)
    return float(on.weights[0])


def predict_sgd(weight: float, lr: float, change: float, steps: int) -> float:
    """The weight predicted `steps` updates ahead, after a plain SGD step with gradient `change`."""
    rule = SGD(lr)
    on = state(rule, [weight + lr * change])
    step(rule, on, change)
    return float(predicted(rule, on, steps)[0])


def predict_momentum(weight: float, lr: float, velocity: float, steps: int) -> float:
    """The weight predicted `steps` updates ahead by SGD with momentum whose last update left `velocity`."""
    rule = SGD(lr, momentum=SMOOTHING)
    return float(predicted(rule, state(rule, [weight], 1, velocity=[velocity]), steps)[0])


def direction(rule: Any, gradient: float, updates: int, **moments: float) -> float:
    """The drift of a rule over -lr, after update number `updates` (from 1) with `gradient` on these moments."""
    on = state(rule, [0.5], updates - 1, **{name: [value] for name, value in moments.items()})
    step(rule, on, gradient)
    on.updates = updates
    return float(rule.drift(on)) / -float(rule.lr)


def update_sum(question: Question, source: Any) -> tuple[Cases, str]:
    values = [stepped(p["w"], p["lr"], [p["d0"], p["d1"], p["d2"]]) for p in question.points]
    return [values], "three steps of the engine's SGD without momentum, in double precision"


def prediction(question: Question, source: Any) -> tuple[Cases, str]:
    values = [predict_sgd(p["w"], p["lr"], p["dw"], int(p["s"])) for p in question.points]
    return [values], "predicted by the engine's SGD after a step with this change, in double precision"


def smoothed(question: Question, source: Any) -> tuple[Cases, str]:
    values = [predict_momentum(p["w"], p["lr"], p["v"], int(p["s"])) for p in question.points]
    return [values], "predicted by the engine's SGD with momentum, in double precision"


def sgdm(question: Question, source: Any) -> tuple[Cases, str]:
    values = [direction(SGD(0.5, p["u"], p["tau"]), p["g"], 2, velocity=p["v_prev"]) for p in question.points]
    return [values], "the drift of the engine's rule after an update with g, over -lr"


def adam(question: Question, source: Any, *, decoupled: bool) -> tuple[Cases, str]:
    """Increment of Adam, or of AdamW with the optimizer's default decay, which its prediction leaves out."""
    kind = AdamW if decoupled else Adam
    values = [
        direction(
            kind(0.5, p["b1"], p["b2"], p["eps"]), p["g"], int(p["t"]), moment_1=p["m_prev"], moment_2=p["v_prev"]
        )
        for p in question.points
    ]
    return [values], "the drift of the engine's rule after an update with g, over -lr"
