"""Rows of a batch that each microbatch of each replica has: chunk (microbatch * replicas + replica) of `microbatch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from suite.core.errors import InvalidRequest
from suite.core.op import Place
from suite.core.protocols import Value
from suite.core.values import shown

_LEGAL = "(inputs, targets), each a tensor or a tuple of tensors"


def parts(batch: Any) -> tuple[Value, Value]:
    """The inputs and the targets of a batch. Raises InvalidRequest for anything but tensors with as many samples
    each."""
    if isinstance(batch, torch.Tensor) or not isinstance(batch, Sequence) or len(batch) != 2:
        what = f"a tensor of shape {tuple(batch.shape)}" if isinstance(batch, torch.Tensor) else shown(batch)
        rule = "a batch is a pair; train and evaluate take a list of batches, train_batch takes one"
        raise InvalidRequest(f"a batch that is {what}", rule=rule, legal=_LEGAL)
    inputs, targets = (_value(name, part) for name, part in zip(("inputs", "targets"), batch, strict=True))
    samples = sorted({tensor.shape[0] for tensor in (*inputs, *targets)})
    if not inputs or len(samples) != 1:
        what = f"a batch with {' and '.join(map(str, samples))} samples" if inputs else "a batch without inputs"
        raise InvalidRequest(
            what, rule="all tensors of a batch have their samples in the first dimension", legal=_LEGAL
        )
    return inputs, targets


def _value(name: str, part: Any) -> Value:
    value = (part,) if isinstance(part, torch.Tensor) else tuple(part) if isinstance(part, tuple | list) else None
    if value is None or not all(isinstance(tensor, torch.Tensor) and tensor.dim() for tensor in value):
        legal = f"torch.from_numpy({name})" if isinstance(part, np.ndarray) else _LEGAL
        rule = "a tensor with the samples in its first dimension, or a tuple of such tensors"
        raise InvalidRequest(f"{name} of a batch: {shown(part)}", rule=rule, legal=legal)
    return value


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a batch for one rank; samples lie in the first dimension.

    Attributes:
        microbatch: Samples.
        half: The type that inputs of the first stage are computed in, None for their own.
    """

    place: Place
    microbatch: int
    device: torch.device
    half: torch.dtype | None = None

    def count(self, inputs: Value) -> int:
        """Microbatches per replica in a batch; InvalidRequest where they do not divide it."""
        samples, chunk = inputs[0].shape[0], self.microbatch * self.place.replicas
        if samples == 0 or samples % chunk:
            raise InvalidRequest(
                f"a batch of {samples} samples on {self.place.replicas} replicas of microbatch {self.microbatch}",
                rule="replicas * microbatch divides the batch",
                legal=f"a batch of {max(1, samples // chunk) * chunk}",
            )
        return int(samples // chunk)

    def evaluated(self, inputs: Value) -> tuple[int, int]:
        """Microbatches of an evaluation on this replica, and on the replica with the most. The last chunk may be short,
        and the last replicas may have a chunk less. Raises InvalidRequest for a batch of nothing."""
        samples = inputs[0].shape[0]
        if not samples:
            raise InvalidRequest("a batch of 0 samples", rule="at least 1 sample", legal="a batch of 1")
        chunks, replicas = -(-samples // self.microbatch), self.place.replicas
        return -(-max(0, chunks - self.place.replica) // replicas), -(-chunks // replicas)

    def size(self, index: int, samples: int) -> int:
        """Samples of microbatch `index` on this replica, in a batch of `samples`."""
        start = (index * self.place.replicas + self.place.replica) * self.microbatch
        return min(self.microbatch, samples - start)

    def of(self, parts: Value, index: int) -> Value:
        """The rows of the batch's microbatch `index` on this replica."""
        start = (index * self.place.replicas + self.place.replica) * self.microbatch
        return tuple(part[start : start + self.microbatch].to(self.device) for part in parts)

    def inputs(self, parts: Value, index: int) -> Value:
        """Those rows where they enter the first stage."""
        rows = self.of(parts, index)
        return tuple(row.to(self.half) if row.is_floating_point() else row for row in rows) if self.half else rows
