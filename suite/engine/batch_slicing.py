"""Rows of a batch for each microbatch of each replica.

Microbatch `index` of a replica is chunk (index * replicas + replica) of `microbatch` rows. With `shard` each replica
reads its own part of a batch, and the microbatch is chunk `index` of the part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from suite.core.errors import InvalidRequest
from suite.core.op import Place
from suite.core.protocols import Value
from suite.core.values import format_value

_LEGAL = "(inputs, targets), each a tensor or a tuple of tensors"


def split_batch(batch: Any) -> tuple[Value, Value]:
    """The inputs and the targets of a batch. Raises InvalidRequest unless all are tensors with equally many samples."""
    if isinstance(batch, torch.Tensor) or not isinstance(batch, Sequence) or len(batch) != 2:
        description = (
            f"a tensor of shape {tuple(batch.shape)}" if isinstance(batch, torch.Tensor) else format_value(batch)
        )
        rule = "a batch is a pair; train and evaluate take a list of batches, train_batch takes one"
        raise InvalidRequest(f"a batch that is {description}", rule=rule, legal=_LEGAL)
    inputs, targets = (_to_value(name, tensors) for name, tensors in zip(("inputs", "targets"), batch, strict=True))
    samples = sorted({tensor.shape[0] for tensor in (*inputs, *targets)})
    if not inputs or len(samples) != 1:
        raise InvalidRequest(
            f"a batch with {' and '.join(map(str, samples))} samples" if inputs else "a batch without inputs",
            rule="all tensors of a batch have their samples in the first dimension",
            legal=_LEGAL,
        )
    return inputs, targets


def _to_value(name: str, tensors: Any) -> Value:
    is_list = isinstance(tensors, tuple | list)
    value = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors) if is_list else None
    if value is None or not all(isinstance(tensor, torch.Tensor) and tensor.dim() for tensor in value):
        legal = f"torch.from_numpy({name})" if isinstance(tensors, np.ndarray) else _LEGAL
        rule = "a tensor with the samples in its first dimension, or a tuple of such tensors"
        raise InvalidRequest(f"{name} of a batch: {format_value(tensors)}", rule=rule, legal=legal)
    return value


@dataclass(frozen=True, slots=True)
class BatchSlicer:
    """Slices the rows of one rank from a batch; samples lie in the first dimension.

    Attributes:
        microbatch: Samples per microbatch.
        half: Dtype of the first stage's inputs in mixed precision; None keeps their own.
        shard: Whether each replica reads its own part of every batch, in place of the whole batch.
    """

    place: Place
    microbatch: int
    device: torch.device
    half: torch.dtype | None = None
    shard: bool = False

    @property
    def parts(self) -> int:
        """Replicas that share the rows of one batch as it is read."""
        return 1 if self.shard else self.place.replicas

    def whole(self, samples: int) -> int:
        """Samples of the whole batch, of which `samples` are read."""
        return samples * (self.place.replicas // self.parts)

    def count(self, inputs: Value) -> int:
        """Microbatches per replica. Raises InvalidRequest for a batch that they do not divide."""
        samples, chunk = inputs[0].shape[0], self.microbatch * self.parts
        if samples == 0 or samples % chunk:
            said = f"a batch of {samples} samples on {self.place.replicas} replicas"
            raise InvalidRequest(
                f"{f'a part of {samples} samples' if self.shard else said} with microbatch={self.microbatch}",
                rule="microbatch divides each part" if self.shard else "replicas * microbatch divides the batch",
                legal=f"a batch of {max(1, samples // chunk) * chunk} samples",
            )
        return int(samples // chunk)

    def count_evaluation(self, inputs: Value) -> tuple[int, int]:
        """Microbatches of an evaluation: on this replica, and on the replica with the most.

        The last microbatch may be short, and the last replicas may have one less. Raises InvalidRequest for a batch
        without samples."""
        samples = inputs[0].shape[0]
        if not samples:
            raise InvalidRequest("a batch of 0 samples", rule="at least 1 sample", legal="a batch of 1 sample")
        chunks, parts = -(-samples // self.microbatch), self.parts
        return -(-max(0, chunks - self.place.replica % parts) // parts), -(-chunks // parts)

    def size(self, index: int, samples: int) -> int:
        """Samples of microbatch `index` in a batch of `samples`."""
        return min(self.microbatch, samples - self._start(index))

    def rows(self, tensors: Value, index: int) -> Value:
        """Rows of microbatch `index`, on the device."""
        start = self._start(index)
        return tuple(tensor[start : start + self.microbatch].to(self.device) for tensor in tensors)

    def inputs(self, tensors: Value, index: int) -> Value:
        """Rows of microbatch `index` as inputs of the first stage, in its dtype."""
        rows = self.rows(tensors, index)
        return tuple(row.to(self.half) if row.is_floating_point() else row for row in rows) if self.half else rows

    def _start(self, index: int) -> int:
        return (index * self.parts + self.place.replica % self.parts) * self.microbatch
