"""One Triton kernel per optimizer step of mixed precision: it reads the half-precision gradient and writes all states.

A step equals the rule's own (engine.optim.optimizer) up to the rounding of products that a GPU adds in one operation. A
step of AdamW moves 26 bytes per entry (gradient 2; master and two moments, each read and written in 4), where separate
operations move about 155.

The module is imported only where a step is fused: it requires Triton, which requires the names of a kernel at the top
of its module.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from suite.core.protocols import UpdateRule
from suite.engine.optim.lr_schedule import as_rate
from suite.engine.optim.optimizer import SGD, Adam, RMSprop, RuleState

BLOCK = 1024  # entries per program
ADAM, NESTEROV, SQUARES = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit  # type: ignore[untyped-decorator]
def _step(  # type: ignore[no-untyped-def]
    weights, gradient, first, second, count, factor, lr, decay, a, b, c, d,
    RULE: tl.constexpr, FLAG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Step of Adam (FLAG: decoupled decay), SGD (FLAG: Nesterov) or RMSprop (FLAG: momentum)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    w = tl.load(weights + at, mask=mask, other=0.0)
    g = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32) * factor
    m = tl.load(first + at, mask=mask, other=0.0)
    if RULE == ADAM:  # a, b: beta1, beta2; c: eps; d: 1 / (1 - beta2^n); lr is divided by 1 - beta1^n
        v = tl.load(second + at, mask=mask, other=0.0)
        if FLAG:
            w -= w * decay
        else:
            g += w * decay
        m = m * a + g * (1 - a)
        v = v * b + g * g * (1 - b)
        w -= lr * m / (tl.sqrt(v * d) + c)
        tl.store(second + at, v, mask=mask)
    elif RULE == NESTEROV:  # a: momentum; b: share of the gradient in the velocity
        g += w * decay
        m = m * a + g * b
        w -= lr * (g + m * a) if FLAG else lr * m
    else:  # a: alpha; b: momentum; c: eps
        g += w * decay
        m = m * a + g * g * (1 - a)
        g = g / (tl.sqrt(m) + c)
        if FLAG:
            v = tl.load(second + at, mask=mask, other=0.0) * b + g
            tl.store(second + at, v, mask=mask)
            g = v
        w -= lr * g
    tl.store(first + at, m, mask=mask)
    tl.store(weights + at, w, mask=mask)


@torch.no_grad()
def step(rule: UpdateRule, state: RuleState, gradient: torch.Tensor, factor: float) -> None:
    """Step the flat weights of `state` by `factor` times the flat gradient, which has any dtype and stays.

    Its caller counts the update.
    """
    (weights,) = state.weights
    first, second = (state.moments[rule.states[place]] for place in (0, -1))
    lr, decay = as_rate(rule.lr)(state.updates), rule.weight_decay  # type: ignore[attr-defined]
    if isinstance(rule, Adam):
        updates = state.updates + 1
        numbers = (rule.beta1, rule.beta2, rule.eps, 1 / (1 - rule.beta2**updates), ADAM.value, rule.decoupled)
        lr, decay = lr / (1 - rule.beta1**updates), lr * decay if rule.decoupled else decay
    elif isinstance(rule, SGD):
        share = 1.0 if state.updates == 0 or not rule.momentum else 1 - rule.dampening
        numbers = (rule.momentum, share, 0.0, 0.0, NESTEROV.value, rule.nesterov)
    else:
        assert isinstance(rule, RMSprop)
        numbers = (rule.alpha, rule.momentum, rule.eps, 0.0, SQUARES.value, bool(rule.momentum))
    count = weights.numel()
    _step[(triton.cdiv(count, BLOCK),)](weights, gradient, first, second, count, factor, lr, decay, *numbers, BLOCK)
