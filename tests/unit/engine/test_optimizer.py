"""Update rules: within a rounding of PyTorch, independent of the split, without allocations.

Steps in float64 are compared with the papers' formulas in test_prediction.py and with PyTorch in
test_torch_optimizer.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from suite.core.errors import InvalidRequest
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.optim.lr_schedule import Steps
from suite.engine.optim.optimizer import SGD, Adam, AdamW, RMSprop, RuleState
from tests.support.drawn import cells
from tests.support.refusals import refused

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


def test_step_allocates_only_scratch() -> None:
    """A step uses the gradient as scratch. Only coupled decay allocates more: a constant number of entries."""
    few = 4096
    for rule in RULES[:4]:
        state, gradient = state_of(rule, noise(8 * few, 0)), noise(8 * few, 1)
        with MemoryTracker() as live:
            rule.step(state, gradient)
            rule.step(state, gradient)
        coupled = rule.weight_decay and not getattr(rule, "decoupled", False)
        assert live.peak <= (few * gradient.element_size() if coupled else 0), rule


def test_invalid_arguments_are_rejected() -> None:
    rows: list[tuple[Callable[..., Any], str, object]] = [
        *((SGD, "lr", value) for value in (-0.1, math.nan, math.inf)),
        *((SGD, "momentum", value) for value in (1.0, -0.5)),
        (SGD, "weight_decay", -1.0),
        (Adam, "beta1", 1.0),
        (Adam, "beta2", -0.1),
        (Adam, "eps", -1e-8),
        (AdamW, "beta2", 1.5),
        (AdamW, "weight_decay", -0.01),
        (RMSprop, "alpha", 1.0),
    ]
    for kind, key, value in rows:
        with refused(InvalidRequest, key, str(value) if key == "lr" else value):
            kind(**{"lr": 0.1, key: value})
    with refused(InvalidRequest, subject="nesterov with momentum=0.0"):
        SGD(0.1, nesterov=True)
    with refused(InvalidRequest, subject="dampening=0.1"):
        SGD(0.1, momentum=0.9, dampening=0.1, nesterov=True)
