"""Update rules: equal to PyTorch, independent of the split, and with correct drift.

At constant gradient a prediction by `drift` must equal the future weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.core.errors import InvalidRequest
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.optim.lr_schedule import Steps, WarmupCosine
from suite.engine.optim.optimizer import SGD, Adam, AdamW, RMSprop, RuleState
from tests.support.refusals import fault, refused

SHAPES = [(3,), (2, 5), (), (1, 4, 2), (7, 1)]


def noise(shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def state_of(rule: Any, weights: Sequence[torch.Tensor]) -> RuleState:
    entries, dtype = sum(weight.numel() for weight in weights), weights[0].dtype
    return RuleState(list(weights), {name: torch.zeros(entries, dtype=dtype) for name in rule.states})


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


RATES = [0.03, Steps(0.05, (4, 11), 0.3), WarmupCosine(0.04, 20, warmup=5)]
PAIRS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": (SGD, lambda p: torch.optim.SGD(p, lr=1.0)),
    "sgd_decay": (lambda lr: SGD(lr, weight_decay=0.1), lambda p: torch.optim.SGD(p, lr=1.0, weight_decay=0.1)),
    "momentum": (
        lambda lr: SGD(lr, momentum=0.9, weight_decay=0.02),
        lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, weight_decay=0.02),
    ),
    "dampening": (
        lambda lr: SGD(lr, momentum=0.8, dampening=0.3),
        lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.8, dampening=0.3),
    ),
    "adam": (
        lambda lr: Adam(lr, beta1=0.8, beta2=0.95, eps=1e-6),
        lambda p: torch.optim.Adam(p, lr=1.0, betas=(0.8, 0.95), eps=1e-6),
    ),
    "adam_decay": (lambda lr: Adam(lr, weight_decay=0.1), lambda p: torch.optim.Adam(p, lr=1.0, weight_decay=0.1)),
    "adamw": (lambda lr: AdamW(lr, weight_decay=0.2), lambda p: torch.optim.AdamW(p, lr=1.0, weight_decay=0.2)),
    "adamw_default": (AdamW, lambda p: torch.optim.AdamW(p, lr=1.0)),
    "nesterov": (
        lambda lr: SGD(lr, momentum=0.9, weight_decay=0.02, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, weight_decay=0.02, nesterov=True),
    ),
    "rmsprop": (lambda lr: RMSprop(lr, weight_decay=0.1), lambda p: torch.optim.RMSprop(p, lr=1.0, weight_decay=0.1)),
    "rmsprop_momentum": (
        lambda lr: RMSprop(lr, alpha=0.9, eps=1e-6, momentum=0.7),
        lambda p: torch.optim.RMSprop(p, lr=1.0, alpha=0.9, eps=1e-6, momentum=0.7),
    ),
}


ROUNDED: dict[str, tuple[Any, Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": (SGD(0.05), lambda p: torch.optim.SGD(p, lr=0.05)),
    "sgd_momentum_decay": (
        SGD(0.05, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    ),
    "adam": (Adam(0.01, weight_decay=0.01), lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01)),
    "adamw": (AdamW(0.01), lambda p: torch.optim.AdamW(p, lr=0.01)),
    "rmsprop": (RMSprop(0.01), lambda p: torch.optim.RMSprop(p, lr=0.01)),
    "rmsprop_momentum": (RMSprop(0.01, momentum=0.9), lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9)),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_float32_step_is_within_one_rounding_of_torch_optim(name: str) -> None:
    """At most 1.2e-7 of the weight (of 1 for a smaller weight) per step at equal gradients (docs/papers/axonn.md)."""
    rule, theirs = ROUNDED[name]
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(4096, generator=generator)
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = theirs([parameter])
    state = RuleState([weight], {moment: torch.zeros(4096) for moment in rule.states})
    for step in range(1, 11):
        gradient = torch.randn(4096, generator=generator)
        parameter.grad = gradient.clone()
        rule.step(state, gradient)
        optimizer.step()
        off = (weight - parameter.detach()).abs() / parameter.detach().abs().clamp_min(1.0)
        assert float(off.max()) <= 1.2e-7 * step, step


@pytest.mark.parametrize("lr", RATES, ids=["constant", "steps", "cosine"])
@pytest.mark.parametrize("name", PAIRS)
def test_twenty_steps_match_torch_optim(name: str, lr: Any) -> None:
    rule_class, theirs = PAIRS[name]
    rule = rule_class(lr)
    start = [noise(shape, seed) for seed, shape in enumerate(SHAPES)]
    state = state_of(rule, [weight.clone() for weight in start])
    parameters = [torch.nn.Parameter(weight.clone()) for weight in start]
    reference = theirs(parameters)
    for update in range(20):
        gradients = [noise(shape, 100 * update + seed + 7) for seed, shape in enumerate(SHAPES)]
        reference.param_groups[0]["lr"] = lr(update) if callable(lr) else lr
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        reference.step()
        rule.step(state, flat(gradients))
    assert state.updates == 20
    for ours, right, begin in zip(state.weights, parameters, start, strict=True):
        assert not torch.equal(ours, begin)
        assert ((ours - right.detach()).abs() <= 1e-12 * right.detach().abs().clamp(min=1e-3)).all()


RULES = [
    SGD(0.03),
    SGD(0.03, momentum=0.9, dampening=0.1, weight_decay=0.01),
    Adam(0.01, weight_decay=0.1),
    AdamW(Steps(0.01, (3,))),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_split_states_step_bit_identically(rule: Any, dtype: torch.dtype) -> None:
    """A vectorised loop handles the end of a tensor differently; rounding must not depend on the position."""
    entries = 1009
    weights, gradients = noise((entries,), 0, dtype), [noise((entries,), 1 + k, dtype) for k in range(6)]
    whole = state_of(rule, [weights.clone()])
    for gradient in gradients:
        rule.step(whole, gradient.clone())
    for cut in (1, 3, 17, 500, 1003, 1008):
        parts = [state_of(rule, [part.clone()]) for part in (weights[:cut], weights[cut:])]
        for gradient in gradients:
            for part, piece in zip(parts, (gradient[:cut], gradient[cut:]), strict=True):
                rule.step(part, piece.clone())
        assert torch.equal(flat([part.weights[0] for part in parts]), whole.weights[0]), cut
        for name in rule.states:
            assert torch.equal(torch.cat([part.moments[name] for part in parts]), whole.moments[name]), (cut, name)
        drifts = torch.cat([rule.drift(part) for part in parts])
        assert torch.equal(drifts, rule.drift(whole)), cut


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_step_allocates_only_scratch(rule: Any) -> None:
    """A step uses the gradient as scratch. Only coupled decay allocates more: a constant number of entries."""
    few = 4096
    state, gradient = state_of(rule, [noise((8 * few,), 0)]), noise((8 * few,), 1)
    with MemoryTracker() as live:
        rule.step(state, gradient)
        rule.step(state, gradient)
    coupled = rule.weight_decay and not getattr(rule, "decoupled", False)
    assert live.peak <= (few * gradient.element_size() if coupled else 0)


@given(
    weight=st.floats(-4, 4),
    gradient=st.floats(-4, 4),
    lr=st.floats(1e-4, 0.5),
    ahead=st.integers(1, 8),
)
def test_law_7_within_as_many_ulps_as_steps(weight: float, gradient: float, lr: float, ahead: int) -> None:
    rule = SGD(lr)
    state = state_of(rule, [torch.tensor([weight], dtype=torch.float64)])
    grad = torch.tensor([gradient], dtype=torch.float64)
    rule.step(state, grad.clone())
    predicted = float(state.weights[0] + ahead * rule.drift(state))
    largest = abs(float(state.weights[0]))
    for _ in range(ahead):
        rule.step(state, grad.clone())
        largest = max(largest, abs(float(state.weights[0])))
    # ulp of the largest intermediate number: a sum that cancels was rounded when it was large
    assert abs(predicted - float(state.weights[0])) <= ahead * math.ulp(max(largest, abs(ahead * lr * gradient)))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: SGD(-0.1), fault("lr", "-0.1")),
        (lambda: SGD(math.nan), fault("lr", "nan")),
        (lambda: Adam(math.inf), fault("lr", "inf")),
        (lambda: SGD(0.1, momentum=1.0), fault("momentum", 1.0)),
        (lambda: SGD(0.1, momentum=-0.5), fault("momentum", -0.5)),
        (lambda: SGD(0.1, weight_decay=-1.0), fault("weight_decay", -1.0)),
        (lambda: Adam(0.1, beta1=1.0), fault("beta1", 1.0)),
        (lambda: Adam(0.1, beta2=-0.1), fault("beta2", -0.1)),
        (lambda: Adam(0.1, eps=-1e-8), fault("eps", -1e-08)),
        (lambda: AdamW(0.1, beta2=1.5), fault("beta2", 1.5)),
        (lambda: AdamW(0.1, weight_decay=-0.01), fault("weight_decay", -0.01)),
    ],
)
def test_invalid_arguments_are_rejected(make: Callable[[], Any], expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        make()
