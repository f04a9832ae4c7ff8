"""Weight prediction: add the update rule's drift to the weights, for any layout of model states.

In mixed precision, full-precision weights are predicted and then rounded. Of pruned weights, the kept entries are
predicted and then expanded. Prediction works on slices of a stage's weights, which bounds its memory; every slicing
gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from suite.core.protocols import UpdateRule
from suite.engine.optim.optimizer import RuleState, predicted
from suite.engine.states.compress import expand
from suite.engine.states.state import ModelState

PIECE = 1 << 17  # entries predicted at a time


@torch.no_grad()
def predict(state: ModelState, rule: UpdateRule, updates_ahead: int, into: Sequence[torch.Tensor]) -> None:
    """Predict the weights of a stage after `updates_ahead` more updates (PipeOptim Equation 5). Only reads the states.

    Args:
        into: Tensors that receive the prediction, in the shapes and dtype of the layers' weights.
    """
    target = {id(parameter): tensor for parameter, tensor in zip(state.parameters, into, strict=True)}
    for key in state.kept:
        target[key].zero_()
    size = max(1, min(PIECE, state.bucket_numel))
    for start in range(0, state.entries, size):
        span = slice(start, min(state.entries, start + size))
        moments = {name: moment[span] for name, moment in state.rule.moments.items()}
        states = RuleState(state.bucket_weights(span), moments, state.rule.updates, start)
        weights = predicted(rule, states, updates_ahead)
        for parameter, part, position in state.flat.overlaps(span):
            flat = target[id(parameter)].view(-1)
            if (index := state.kept.get(id(parameter))) is None:
                flat[part].copy_(weights[position])
            else:
                expand(weights[position].to(flat.dtype), index[part], flat)
