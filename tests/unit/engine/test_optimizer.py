"""Update rules: within a rounding of PyTorch, independent of the split, without allocations, and their predictions.

Weights and predicted weights are compared with PipeOptim's Table I and Equation 5 in float64, over several steps and up
to three updates ahead. The formulas below are the papers', for single entries in Python floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from suite.engine.optim.lr_schedule import Steps
from suite.engine.optim.optimizer import SGD, Adam, AdamW, RMSprop, RuleState, predicted, state_names
from tests.support.drawn import cells

DECAY, MOMENTUM = {"weight_decay": 0.01}, {"momentum": 0.9}
OF_TORCH: list[tuple[Callable[..., Any], Any, dict[str, float]]] = [
    (SGD, torch.optim.SGD, {}),
    (SGD, torch.optim.SGD, MOMENTUM | DECAY),
    (Adam, torch.optim.Adam, DECAY),
    (AdamW, torch.optim.AdamW, {}),
    (RMSprop, torch.optim.RMSprop, {}),
    (RMSprop, torch.optim.RMSprop, MOMENTUM),
]


def noise(entries: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(entries, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def state_of(rule: Any, weight: torch.Tensor) -> RuleState:
    return RuleState([weight], {name: torch.zeros_like(weight) for name in rule.states})


def test_float32_step_is_within_one_rounding_of_torch_optim() -> None:
    """At most 1.2e-7 of the weight (of 1 for a smaller weight) per step at equal gradients (docs/papers/axonn.md)."""
    for kind, theirs, settings in OF_TORCH:
        rule, weight = kind(0.01, **settings), noise(4096, 5)
        parameter = torch.nn.Parameter(weight.clone())
        optimizer, state = theirs([parameter], lr=0.01, **settings), state_of(rule, weight)
        for step in range(1, 11):
            gradient = noise(4096, 5 + step)
            parameter.grad = gradient.clone()
            rule.step(state, gradient)
            optimizer.step()
            off = (weight - parameter.detach()).abs() / parameter.detach().abs().clamp_min(1.0)
            assert float(off.max()) <= 1.2e-7 * step, (rule, step)


RULES = [
    SGD(0.03),
    SGD(0.03, momentum=0.9, dampening=0.1, weight_decay=0.01),
    Adam(0.01, weight_decay=0.1),
    AdamW(Steps(0.01, (3,))),
    RMSprop(0.01, momentum=0.9, weight_decay=0.01),
]


@pytest.mark.parametrize(("rule", "dtype"), cells(RULES, [torch.float32, torch.float64], n=4), ids=str)
def test_split_states_step_bit_identically(rule: Any, dtype: torch.dtype) -> None:
    """A vectorised loop handles the end of a tensor differently; rounding must not depend on the position."""
    weights, gradients = noise(1009, 0, dtype), [noise(1009, 1 + k, dtype) for k in range(6)]
    whole = state_of(rule, weights.clone())
    for gradient in gradients:
        rule.step(whole, gradient.clone())
    for cut in (1, 3, 17, 500, 1003, 1008):
        parts = [state_of(rule, part.clone()) for part in (weights[:cut], weights[cut:])]
        for gradient in gradients:
            for part, piece in zip(parts, (gradient[:cut], gradient[cut:]), strict=True):
                rule.step(part, piece.clone())
        assert torch.equal(torch.cat([part.weights[0] for part in parts]), whole.weights[0]), cut
        for name in rule.states:
            assert torch.equal(torch.cat([part.moments[name] for part in parts]), whole.moments[name]), (cut, name)
        assert torch.equal(torch.cat([rule.drift(part) for part in parts]), rule.drift(whole)), cut


# -- predictions -----------------------------------------------------------------------------------------------------

SHAPES = [(3, 2), (5,), ()]
START = [0.7, -1.3, 2.1, 0.05, -0.4, 1.9, -2.2, 0.33, 0.8, -0.6, 1.1, -0.9]
STEPS = 6


def gradient(t: int, i: int) -> float:
    """Gradient of entry i at update t."""
    return math.sin(1.7 * t + 0.9 * i) + 0.3 * math.cos(3.1 * t * (i + 1))


def weights() -> list[torch.Tensor]:
    flat = torch.tensor(START, dtype=torch.float64)
    parts = flat.split([math.prod(shape) for shape in SHAPES])
    return [part.view(shape).clone() for part, shape in zip(parts, SHAPES, strict=True)]


def sgd(lr: Any, u: float, tau: float, decay: float, *, nesterov: bool = False, following: bool = False) -> Callable:
    """Weight of one entry, and its prediction, after t updates."""

    def entry(i: int, t: int, s: int) -> tuple[float, float]:
        w, v, g = START[i], 0.0, 0.0
        for k in range(t):
            g = gradient(k, i) + decay * w
            v = g if k == 0 or not u else u * v + (1 - tau) * g
            w -= lr(k) * (g + u * v if nesterov else v)
        delta = u * v + (1 - tau) * g if following and u else v
        if nesterov:
            delta = g + u * delta
        return w, w - lr(t) * s * delta * (t > 0)

    return entry


def rmsprop(lr: Any, alpha: float, eps: float, u: float, decay: float) -> Callable:
    def entry(i: int, t: int, s: int) -> tuple[float, float]:
        w, v, b, delta = START[i], 0.0, 0.0, 0.0
        for k in range(t):
            g = gradient(k, i) + decay * w
            v = alpha * v + (1 - alpha) * g * g
            delta = g / (math.sqrt(v) + eps)
            b = u * b + delta
            delta = b if u else delta
            w -= lr(k) * delta
        return w, w - lr(t) * s * delta

    return entry


def constant(lr: float) -> Callable[[int], float]:
    return lambda t: lr


FALLING = Steps(0.05, (2, 4), 0.5)
LR = constant(0.05)
CASES: dict[str, tuple[Any, Callable]] = {
    "sgdm": (SGD(0.05, momentum=0.9, weight_decay=5e-4), sgd(LR, 0.9, 0.0, 5e-4)),
    "dampened": (SGD(0.05, momentum=0.8, dampening=0.3), sgd(LR, 0.8, 0.3, 0.0)),
    "authors": (
        SGD(0.05, momentum=0.9, dampening=0.4, weight_decay=0.01, direction="next"),
        sgd(LR, 0.9, 0.4, 0.01, following=True),
    ),
    "nesterov": (SGD(0.05, momentum=0.9, nesterov=True), sgd(LR, 0.9, 0.0, 0.0, nesterov=True)),
    "falling rate": (SGD(FALLING, momentum=0.9), sgd(FALLING, 0.9, 0.0, 0.0)),
    "rmsprop": (RMSprop(0.05, weight_decay=0.02), rmsprop(LR, 0.99, 1e-8, 0.0, 0.02)),
    "rmsprop momentum": (RMSprop(FALLING, alpha=0.9, eps=1e-3, momentum=0.6), rmsprop(FALLING, 0.9, 1e-3, 0.6, 0.0)),
}


@pytest.mark.parametrize("name", CASES)
def test_predicted_weights_match_table_1_and_equation_5(name: str) -> None:
    """Adam, AdamW and plain momentum: tests/laws/test_asynchronous.py."""
    rule, right = CASES[name]
    entries = len(START)
    moments = {state: torch.zeros(entries, dtype=torch.float64) for state in state_names(rule, predicts=True)}
    state = RuleState(weights(), moments)
    for t in range(STEPS + 1):
        for s in (1, 2, 3):
            expected = [right(i, t, s) for i in range(entries)]
            before = [w.clone() for w in state.weights]
            predicted_weights = state.views(predicted(rule, state, s))
            assert all(torch.equal(a, b) for a, b in zip(before, state.weights, strict=True)), "live weights are read"
            for ours, which in ((state.weights, 0), (predicted_weights, 1)):
                flat = torch.cat([w.reshape(-1) for w in ours]).tolist()
                assert max(abs(a - b[which]) for a, b in zip(flat, expected, strict=True)) < 1e-12, (t, s, which)
            assert [f.shape for f in predicted_weights] == [torch.Size(shape) for shape in SHAPES]
            moved = max(abs(b[1] - b[0]) for b in expected)
            assert (moved > 1e-3) == (t > 0), "before the first update nothing is predicted"
        rule.step(state, torch.tensor([gradient(t, i) for i in range(entries)], dtype=torch.float64))
