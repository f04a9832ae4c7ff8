"""Losses of microbatches, and the check that they make up the loss of their batch.

A loss is a mean, or a pair (sum, count). The engine averages means over microbatches and replicas, which is the mean of
the batch only where all microbatches weigh the same. With padding or class weights they do not: of 8 rows in
microbatches of 2, one microbatch may hold 12 tokens and another 3. Sums and counts are added over all microbatches and
replicas, and divided once.

    loss=suite.cross_entropy                       # as torch's, with padding and class weights
    loss=lambda x, y: (((x - y) ** 2).sum(), x.numel())
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from suite.core.errors import InvalidRequest
from suite.core.protocols import Value
from suite.engine.callables import callable_name
from suite.engine.random_state import undisturbed
from suite.engine.torch_api.structure import OutputStructure, Targets, call_on_outputs

HELD_BYTES = 256 * 2**20  # outputs of a batch that the check holds for its call
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative; 0.03 in half precision
_PAIR = "(sum, count), as suite.cross_entropy returns, or nn.CrossEntropyLoss()"


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss of a microbatch.

    Attributes:
        total: A mean, or with `count` a sum. A tensor of one number.
        count: What the sum is divided by; None for a mean.
    """

    total: torch.Tensor
    count: torch.Tensor | None


# -- losses of torch as pairs ----------------------------------------------------------------------------------------


def cross_entropy(
    outputs: torch.Tensor,
    targets: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum and count of torch.nn.functional.cross_entropy, whose mean is their quotient.

    Args:
        outputs: Logits of shape (rows, classes, ...).
        targets: Classes of shape (rows, ...), or probabilities of the shape of `outputs`.
    """
    losses = functional.cross_entropy(outputs, targets, weight, None, ignore_index, None, "none", label_smoothing)
    return _pair(losses, targets, weight, ignore_index)


def _pair(
    losses: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor | None, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum and count of the losses of targets. The sum has at least float32: thousands of tokens overflow float16."""
    total = losses.sum(dtype=torch.promote_types(losses.dtype, torch.float32))
    if targets.is_floating_point():
        return total, torch.tensor(losses.numel())
    kept = targets[targets != ignore_index]
    return total, torch.tensor(kept.numel()) if weight is None else weight[kept].sum()


def as_counted(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's CrossEntropyLoss and NLLLoss as functions that return pairs; any other loss as it is."""
    if type(loss) not in (nn.CrossEntropyLoss, nn.NLLLoss) or loss.reduction != "mean":  # type: ignore[attr-defined]
        return loss
    each: Any = copy.copy(loss)
    each.reduction = "none"

    def counted(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _pair(each(outputs, targets), targets, each.weight, each.ignore_index)

    counted.__name__ = type(loss).__name__
    return counted


# -- what a loss returns ---------------------------------------------------------------------------------------------


def read_loss(loss: Any, returned: Any) -> Loss:
    """What the user's loss has returned. Raises InvalidRequest for anything but one number or a pair of numbers."""
    total, count = returned if isinstance(returned, tuple | list) and len(returned) == 2 else (returned, None)
    if not isinstance(total, torch.Tensor):
        raise InvalidRequest(
            f"loss={callable_name(loss)} returns a {type(returned).__name__}",
            rule="a tensor of one number, the mean over the samples of a microbatch, or a pair (sum, count)",
            legal="the tensor itself, without .item() or float()",
        )
    if total.numel() != 1 or (isinstance(count, torch.Tensor) and count.numel() != 1):
        shapes = [tuple(part.shape) for part in (total, count) if isinstance(part, torch.Tensor)]
        raise not_a_mean(loss, f"returns a tensor of shape {next((s for s in shapes if math.prod(s) != 1), ())}")
    if count is None:
        return Loss(total, None)
    return Loss(total, torch.as_tensor(count, device=total.device).detach().double().reshape(()))


def unit_of(outputs: Value, targets: Targets) -> float:
    """A power of two near the count of a microbatch without padding: sums that are divided by it keep the range of
    half precision, and their digits."""
    return float(2.0 ** round(math.log2(max(1, (*_values(targets), *outputs)[0].numel()))))


# -- the check -------------------------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """Rows of a batch with their loss."""

    outputs: Value
    targets: Targets
    loss: Loss

    @property
    def rows(self) -> int:
        return int((*_values(self.targets), *self.outputs)[0].shape[0])


class LossCheck:
    """Comparison of the losses of microbatches with one loss of all their rows.

    A checked batch costs one more call of the loss, without gradients, on at most HELD_BYTES of outputs at a time.
    Random state, gradients and buffers of a loss module do not change. A loss that draws random numbers, or that fails
    on another number of rows, is not compared. Nor are replicas with one another.
    """

    def __init__(self, loss: Callable[..., Any], structure: OutputStructure | None, replicas: int) -> None:
        self.loss, self.structure, self.replicas = loss, structure, replicas
        self.pieces: dict[int, list[_Piece]] = {}
        self.missing: dict[int, int] = {}  # microbatches that have not run, by batch
        self.draws = False

    def begin(self) -> None:
        """Forget the microbatches of a batch that was interrupted."""
        self.pieces.clear()
        self.missing.clear()

    def observe(self, batch: int, microbatches: int, outputs: Value, targets: Targets, loss: Loss) -> None:
        """Add one of the microbatches of a batch, or of an update of a stream; compare them after the last.

        Raises InvalidRequest where they do not make up the loss of all their rows."""
        if self.draws:
            return
        pieces = self.pieces.setdefault(batch, [])
        kept = tuple(tensor.detach() for tensor in outputs)
        pieces.append(_Piece(kept, targets, Loss(loss.total.detach(), loss.count)))
        self.missing[batch] = self.missing.get(batch, microbatches) - 1
        if not self.missing[batch]:
            del self.missing[batch], self.pieces[batch]
            with undisturbed():
                self._compare(pieces if microbatches > 1 or self.replicas == 1 else self._halves(pieces))
        elif sum(tensor.nbytes for piece in pieces for tensor in piece.outputs) > HELD_BYTES:
            with undisturbed():
                self._compare(pieces)
            del pieces[:-1]  # the next microbatches are compared with this one

    def _halves(self, pieces: Sequence[_Piece]) -> Sequence[_Piece]:
        """The halves of a replica's only microbatch, which stand for the microbatches of the replicas."""
        half = pieces[0].rows // 2
        rows = [_rows(pieces, part) for part in (slice(half), slice(half, None))] if half else []
        return [_Piece(*each, loss) for each in rows if (loss := self._call(*each)) is not None]

    def _compare(self, pieces: Sequence[_Piece]) -> None:
        whole = self._call(*_rows(pieces)) if len(pieces) > 1 else None
        if whole is None:
            return
        means = whole.count is None
        rows = [piece.rows / sum(each.rows for each in pieces) if means else 1.0 for piece in pieces]
        added = math.fsum(n * float(piece.loss.total) for n, piece in zip(rows, pieces, strict=True))
        counted = math.fsum(float(piece.loss.count) for piece in pieces if piece.loss.count is not None)
        tolerance = max(_TOLERANCE.get(each.dtype, 0.03) for each in (*pieces[0].outputs, whole.total))
        largest = max(abs(float(piece.loss.total)) for piece in pieces)
        near = partial(math.isclose, rel_tol=tolerance, abs_tol=tolerance * largest)
        equal = near(added, float(whole.total)) and (means or near(counted, float(whole.count)))  # type: ignore[arg-type]
        if equal or not math.isfinite(whole.total) or self._draws(pieces[0]):
            return
        if means and near(added * len(pieces), float(whole.total)):
            raise not_a_mean(self.loss, "adds up the losses of samples")
        raise InvalidRequest(
            f"loss={callable_name(self.loss)}: {added:.7g} of {len(pieces)} microbatches, {float(whole.total):.7g} of "
            "all their rows",
            rule="a mean whose microbatches weigh the same, or a pair (sum, count), which the engine adds up",
            legal=f"{_PAIR}; check_loss=0 where a loss compares the samples of a microbatch with one another",
        )

    def _draws(self, piece: _Piece) -> bool:
        """Whether the loss draws random numbers, found by two calls."""
        one, other = (self._call(piece.outputs, piece.targets) for _ in range(2))
        self.draws = one is None or other is None or not torch.allclose(one.total, other.total, 0, 0, equal_nan=True)
        return self.draws

    @torch.no_grad()
    def _call(self, outputs: Value, targets: Targets) -> Loss | None:
        """The loss of some rows; None where it fails."""

        def with_copied_buffers(*args: Any, **names: Any) -> Any:
            buffers = {name: buffer.clone() for name, buffer in self.loss.named_buffers()}  # type: ignore[attr-defined]
            return functional_call(self.loss, buffers, args, names)  # type: ignore[arg-type]

        function = with_copied_buffers if isinstance(self.loss, nn.Module) else self.loss
        try:
            returned = call_on_outputs(function, outputs, targets, self.structure)
        except Exception:
            return None
        return read_loss(self.loss, returned)


def _values(targets: Targets) -> Value:
    return tuple(targets.values()) if isinstance(targets, dict) else targets


def _rows(pieces: Sequence[_Piece], part: slice = slice(None)) -> tuple[Value, Targets]:
    """Outputs and targets of all pieces, one after the other; of each, the rows `part`."""

    def joined(values: Sequence[Value]) -> Value:
        return tuple(
            torch.cat([tensor[part] for tensor in tensors]) if tensors[0].dim() else tensors[0]
            for tensors in zip(*values, strict=True)
        )

    targets = joined([_values(piece.targets) for piece in pieces])
    named = pieces[0].targets
    outputs = joined([piece.outputs for piece in pieces])
    return outputs, dict(zip(named, targets, strict=True)) if isinstance(named, dict) else targets


# -- arguments -------------------------------------------------------------------------------------------------------


def is_loss(loss: Any) -> bool:
    """Whether an argument may be a loss: a function, or an object of a module class without weights that train."""
    if isinstance(loss, nn.Module):
        return not any(parameter.requires_grad for parameter in loss.parameters())
    return callable(loss) and not isinstance(loss, type)


def not_a_mean(loss: Any, reason: str) -> InvalidRequest:
    """The error for a loss that is not a mean over the samples of a microbatch; `reason` ends its first clause."""
    return InvalidRequest(
        f"loss={callable_name(loss)} {reason}",
        rule="the loss is the mean over the samples of a microbatch, or (sum, count)",
        legal='a mean: .mean(), a division by the number of samples, or reduction="mean"',
    )
