"""Reference of mixed precision in one process."""

from __future__ import annotations

from typing import Any

import torch

from suite.conformance.reference import SEED, Reference, as_tuple
from suite.engine.optim.optimizer import RuleState
from suite.engine.random_state import drawing, initial
from tests.support.cases import Case

__all__ = ["SEED", "PlainLoop", "Reference", "as_tuple", "drawing", "initial"]


class PlainLoop(Reference):
    """Mixed precision in one process: half-precision passes and sums, a full-precision step, and a cast.

    A batch is skipped, and the scale halved, if a sum of its gradients could overflow or is not finite. This is decided
    before any sum is computed. Each weight has its own optimizer state; no state is flat.
    """

    def __init__(self, case: Case, replicas: int, half: torch.dtype, rule: Any, scale: float) -> None:
        super().__init__(case, replicas, half)
        self.rule, self.scale, self.first, self.skipped = rule, scale, 0, 0
        self.states = [
            RuleState([w], {name: torch.zeros_like(w).reshape(-1) for name in rule.states}) for w in self.masters
        ]

    def train(self, batch: tuple[Any, Any]) -> float:
        loss, sums = self.gradients(batch, self.first, self.scale)
        self.first += as_tuple(batch[0])[0].shape[0] // (self.case.microbatch * self.replicas)
        loss /= self.scale
        addends = self.replicas * max((len(tie) for tie in self.ties), default=1)
        if not (self.largest * addends <= torch.finfo(self.half).max and all(torch.isfinite(g).all() for g in sums)):
            self.skipped += 1
            self.scale /= 2
            return loss
        full = [g.to(w.dtype).div_(self.scale) for g, w in zip(sums, self.masters, strict=True)]
        for state, gradient, parameter in zip(self.states, full, self.parameters(), strict=True):
            self.rule.step(state, gradient.reshape(-1))
            parameter.data.copy_(state.weights[0])
        return loss
