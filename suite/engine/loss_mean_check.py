"""Check that a loss is a mean over the samples of a microbatch.

The engine divides by microbatches and replicas, so a loss that is a sum (`reduction="sum"`) makes gradients too large
by the number of samples per microbatch. The check repeats the rows of a microbatch: a sum over k times the rows is k
times the loss, while a mean stays the same, also a mean over tokens without padding. It repeats them twice and three
times, because a contrastive loss may match one of the two by chance.

The check misses a sum with a second term that does not grow with the rows. It also misses a loss that is zero, or that
fails on repeated rows, in all of the first microbatches.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.core.protocols import Value
from suite.core.values import format_value
from suite.engine.random_state import undisturbed
from suite.engine.structure import OutputStructure, Targets, call_on_outputs

TRIES = 4  # microbatches that are checked at most
_MEANS = ("mean", "batchmean")  # reductions of torch.nn's losses that are means over a microbatch
_FIRST_ROW, _ALL_ROWS = slice(0, 1), slice(None)


class MeanCheck:
    """Check of one loss.

    Attributes:
        structure: Structure of the model's output; see structure.call_on_outputs.
        remaining: Microbatches that may still be checked; 0 after one was decisive.
    """

    def __init__(self, loss: Callable[..., Any], structure: OutputStructure | None = None) -> None:
        self.loss, self.structure, self.remaining = loss, structure, TRIES

    def observe(self, outputs: Value, targets: Targets) -> None:
        """Call the loss with repeated rows of a microbatch, unless an earlier microbatch was decisive.

        Random state, gradients and the state of a loss module do not change. Raises InvalidRequest for a loss that
        grows with the rows."""
        if not self.remaining:
            return
        self.remaining -= 1
        for rows in (_FIRST_ROW, _ALL_ROWS):  # one row is the cheapest, but may hold only padding
            losses = self._repeated_losses(rows, outputs, targets)
            if losses is None:
                continue
            self.remaining = 0
            once, twice, thrice = losses
            if _close(twice, 2 * once) and _close(thrice, 3 * once):
                raise not_a_mean(self.loss, "doubles when every sample of a microbatch is repeated")
            return

    @torch.no_grad()
    def _repeated_losses(self, rows: slice, outputs: Value, targets: Targets) -> list[float] | None:
        """The loss of `rows` once, twice and three times; None where the losses are not decisive."""

        def repeated_targets(times: int) -> Targets:
            if isinstance(targets, dict):
                return dict(zip(targets, _repeat(tuple(targets.values()), rows, times), strict=True))
            return _repeat(targets, rows, times)

        try:
            with undisturbed():
                loss = copy.deepcopy(self.loss) if isinstance(self.loss, nn.Module) else self.loss
                losses = [
                    call_on_outputs(loss, _repeat(outputs, rows, times), repeated_targets(times), self.structure)
                    for times in (1, 2, 3)
                ]
            shape = tuple(losses[1].shape)
            numbers = [float(number) for number in losses] if losses[1].numel() == 1 else []
        except Exception:
            return None
        if not numbers:
            raise not_a_mean(self.loss, f"returns a tensor of shape {shape} for twice as many samples")
        return numbers if all(map(math.isfinite, numbers)) and any(numbers) else None


def _close(a: float, b: float) -> bool:
    """Equality up to rounding, also in half precision, whose losses have eight bits."""
    return math.isclose(a, b, rel_tol=1e-2)


def _repeat(value: Value, rows: slice, times: int) -> Value:
    return tuple(torch.cat([tensor.detach()[rows]] * times) if tensor.dim() else tensor.detach() for tensor in value)


def check_loss(loss: Any) -> None:
    """Raises InvalidRequest for a loss that is not callable, has weights, or declares another reduction than a mean."""
    legal = "loss=torch.nn.functional.cross_entropy"
    if isinstance(loss, type):
        raise InvalidRequest(
            f"loss={loss.__name__}, a class",
            rule="a function, or an object of a module class",
            legal=f"loss={loss.__name__}()",
        )
    if not callable(loss):
        raise InvalidRequest(f"loss={format_value(loss)}", rule="a function of outputs and targets", legal=legal)
    if isinstance(loss, nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
        raise InvalidRequest(
            f"loss={type(loss).__name__}(...), which has trainable weights",
            rule="only weights of model= train",
            legal="a last layer that holds these weights",
        )
    reduction = _explicit_reduction(loss)
    if reduction is not None and reduction not in _MEANS:
        raise not_a_mean(loss, f"with reduction={reduction!r}")


def not_a_mean(loss: Any, reason: str) -> InvalidRequest:
    """The error for a loss that is not a mean over the samples of a microbatch; `reason` ends its first clause."""
    reduction = _explicit_reduction(loss) or _default_reduction(loss)
    has_keyword = reduction is not None and reduction not in _MEANS
    return InvalidRequest(
        f"loss={callable_name(loss)} {reason}",
        rule="the loss is the mean over the samples of a microbatch: the engine divides by microbatches and replicas",
        legal='reduction="mean"' if has_keyword else "a mean: .mean(), or a division by the number of samples",
    )


def _explicit_reduction(loss: Any) -> str | None:
    """The `reduction` of a loss module, or of a partial with that keyword; None for any other loss."""
    while isinstance(loss, partial) and "reduction" not in loss.keywords:
        loss = loss.func
    reduction = loss.keywords["reduction"] if isinstance(loss, partial) else getattr(loss, "reduction", None)
    return reduction if isinstance(reduction, str) else None


def _default_reduction(loss: Any) -> Any:
    """The default of a loss function's argument `reduction`; None without that argument."""
    try:
        argument = inspect.signature(loss).parameters.get("reduction")
    except (TypeError, ValueError):  # a builtin function has no signature
        return None
    return None if argument is None else argument.default


def callable_name(function: Any) -> str:
    """The name of a function, or the class name of any other object."""
    while isinstance(function, partial):
        function = function.func
    is_named = isinstance(function, type) or inspect.isroutine(function)
    return str(function.__name__ if is_named else type(function).__name__)
