"""Weight prediction: add the rule's drift to the weights, for any layout of model states.

In mixed precision full-precision weights are predicted, then rounded; of pruned ones what is kept, then expanded. It
goes through a stage's weights in pieces, so that what it makes for itself stays small; every slicing gives the same
bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from suite.core.protocols import UpdateRule
from suite.engine.optim.optimizer import RuleState, predicted
from suite.engine.states.compress import expand
from suite.engine.states.state import ModelState

PIECE = 1 << 17  # entries that are predicted at a time


@torch.no_grad()
def predict(state: ModelState, rule: UpdateRule, ahead: int, into: Sequence[torch.Tensor]) -> None:
    """Writes what `rule` expects the weights of a stage to be after `ahead` more updates (PipeOptim Equation 5) `into`
    tensors as the layers' own are, in the type that passes compute in. Reads the states, and writes none."""
    target = {id(p): tensor for p, tensor in zip(state.parameters, into, strict=True)}
    for key in state.pruned:
        target[key].zero_()
    if state.copy is not None:  # what a step expands from, and a prediction as well
        state.copied = torch.empty(state.copy.entries, dtype=getattr(torch, state.copy.dtype), device=state.device)
    size = max(1, min(PIECE, state.bucket))
    for start in range(0, state.entries, size):
        at = slice(start, min(state.entries, start + size))
        weights = state.weights_at(at)
        moments = {name: moment[at] for name, moment in state.rule.moments.items()}
        full = predicted(rule, RuleState(weights, moments, state.rule.updates), ahead)
        for parameter, part, where in state.flat.pieces(at):
            flat = target[id(parameter)].view(-1)
            if (index := state.pruned.get(id(parameter))) is None:
                flat[part].copy_(full[where])
            else:
                expand(full[where].to(flat.dtype), index[part], flat)
    state.copied = None
