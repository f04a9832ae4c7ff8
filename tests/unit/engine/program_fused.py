"""Program of test_fused.py, in a process of its own: Triton reads TRITON_INTERPRET when it is imported.

Prints as JSON, by rule: the largest difference of three fused steps from the rule's own steps, relative to the largest
number of each state; and the losses of two engines, fused and not."""

from __future__ import annotations

import json
from typing import Any

import torch

from suite import SGD, Adam, AdamW, Engine, RMSprop
from suite.core.protocols import UpdateRule
from suite.engine.optim import fused
from suite.engine.optim.optimizer import RuleState
from tests.support.small_engines import alone, linears, mse_loss, normal_batches

RULES: dict[str, UpdateRule] = {
    "AdamW": AdamW(0.01, weight_decay=0.1),
    "Adam": Adam(0.01, weight_decay=0.1),
    "SGD": SGD(0.1, weight_decay=0.1),
    "momentum": SGD(0.1, momentum=0.9, dampening=0.2),
    "Nesterov": SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "RMSprop": RMSprop(0.01, weight_decay=0.1),
    "RMSprop with momentum": RMSprop(0.01, momentum=0.9),
}
ENTRIES, FACTOR = fused.BLOCK + 77, 0.25


def difference(rule: UpdateRule) -> float:
    torch.manual_seed(0)
    weights = torch.randn(ENTRIES)
    states = [RuleState([weights.clone()], {name: torch.zeros(ENTRIES) for name in rule.states}) for _ in range(2)]
    for updates in range(3):
        gradient = torch.randn(ENTRIES).bfloat16()
        for state in states:
            state.updates = updates
        fused.step(rule, states[0], gradient, FACTOR)
        rule.step(states[1], gradient.float() * FACTOR)
    pairs = zip(*([state.weights[0], *state.moments.values()] for state in states), strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def engine(*, fused: bool) -> Engine:
    more: Any = {"half": "bfloat16", "fused": fused, "check_loss": 0, "world": alone()}
    return Engine(linears(4, 8, 4, dtype=torch.float32), loss=mse_loss, optimizer=AdamW(0.01), microbatch=2, **more)


if __name__ == "__main__":
    batches = normal_batches(4, 4, 4, 4, torch.float32)
    losses = [list(engine(fused=each).train(batches)) for each in (True, False)]
    differences = {name: difference(rule) for name, rule in RULES.items()}
    print(json.dumps([differences, losses]))
