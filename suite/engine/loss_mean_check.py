"""Check that a loss is a mean over the samples of a microbatch, by repeating rows.

The engine divides by microbatches and replicas, so a loss that is a sum (`reduction="sum"`) makes gradients too large
by the samples of a microbatch. A sum over k times the same rows is k times the loss. A mean does not change, nor does
one over tokens that leaves padding out. Two and three times the rows are tried: a contrastive loss fits one by chance.

Not detected: a sum with a term beside it that does not grow with the rows; a loss that is zero, or cannot be called
with repeated rows, in all of the first microbatches.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from suite.core.protocols import Value
from suite.engine.arguments import not_a_mean
from suite.engine.random_state import undisturbed

TRIES = 4  # microbatches, until one decides
_ONE, _ALL = slice(0, 1), slice(None)


class MeanCheck:
    """The check of one loss. left: microbatches that are looked at until one decides; 0 once it is known."""

    def __init__(self, loss: Callable[..., Any]) -> None:
        self.loss, self.left = loss, TRIES

    def look(self, outputs: Value, targets: Value) -> None:
        """Calls the loss with repeated rows of a microbatch, until a microbatch decides. Leaves random state, gradients
        and a loss module's own state as they are. Raises InvalidRequest for a loss that grows with the rows."""
        if not self.left:
            return
        self.left -= 1
        for rows in (_ONE, _ALL):  # one row is the cheapest, but may hold nothing that counts
            losses = self._losses(rows, outputs, targets)
            if losses is None:
                continue
            self.left = 0
            one, two, three = losses
            if _near(two, 2 * one) and _near(three, 3 * one):
                raise not_a_mean(self.loss, "doubles when every sample of a microbatch is repeated")
            return

    @torch.no_grad()
    def _losses(self, rows: slice, outputs: Value, targets: Value) -> list[float] | None:
        """The loss of `rows` once, twice and three times; None where it tells nothing."""
        try:
            with undisturbed():
                loss = copy.deepcopy(self.loss) if isinstance(self.loss, nn.Module) else self.loss
                losses = [loss(*_repeated(outputs, rows, n), *_repeated(targets, rows, n)) for n in (1, 2, 3)]
            shape = tuple(losses[1].shape)
            numbers = [float(each) for each in losses] if losses[1].numel() == 1 else []
        except Exception:
            return None
        if not numbers:
            raise not_a_mean(self.loss, f"returns a tensor of shape {shape} for twice as many samples")
        return numbers if all(map(math.isfinite, numbers)) and any(numbers) else None


def _near(value: float, wanted: float) -> bool:
    """Equal but for rounding, also in half precision, whose losses have eight bits."""
    return math.isclose(value, wanted, rel_tol=1e-2)


def _repeated(value: Value, rows: slice, times: int) -> Value:
    return tuple(torch.cat([tensor.detach()[rows]] * times) if tensor.dim() else tensor.detach() for tensor in value)
