"""Batches of one flush interval, and the rows of each op.

Every rank reads a batch when it computes on its first microbatch, also between the first and the last stage. So user
code draws the same random numbers on all ranks. A batch is freed after its last microbatch.

Microbatch `index` of a replica is chunk (index * replicas + replica) of `microbatch` rows. With `shard` each replica
reads its own part of a batch, and the microbatch is chunk `index` of the part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from operator import length_hint
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from suite import accelerator
from suite.core.errors import InvalidRequest
from suite.core.op import Place
from suite.core.protocols import Value
from suite.core.values import format_value
from suite.engine.torch_api.structure import Targets

Batch = Sequence[torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]]
_END: Any = object()  # compared by identity, because == of arrays has no single truth value
_LENGTH_RULE = "a loader has as many batches as its length"
_LEGAL = "(inputs, targets), each a tensor, or a tuple or dict of tensors"
_RULE = "a tensor with values and the samples in its first dimension, or a tuple or dict of such tensors"


def _named_values(name: str, tensors: Any) -> Targets:
    """Tensors as a tuple or a dict. Raises InvalidRequest for anything else."""
    if isinstance(tensors, Mapping) and all(isinstance(key, str) for key in tensors):
        return dict(zip(tensors, _to_value(name, list(tensors.values())), strict=True))
    return _to_value(name, tensors)


def _to_value(name: str, tensors: Any) -> Value:
    is_list = isinstance(tensors, tuple | list)
    value = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors) if is_list else None
    if value is None or not all(isinstance(each, torch.Tensor) and each.dim() and not each.is_meta for each in value):
        legal = f"torch.from_numpy({name})" if isinstance(tensors, np.ndarray) else _LEGAL
        raise InvalidRequest(f"{name} of a batch: {format_value(tensors)}", rule=_RULE, legal=legal)
    return value


@dataclass(frozen=True, slots=True)
class BatchSlicer:
    """Slices the rows of one rank from a batch; samples lie in the first dimension.

    Attributes:
        microbatch: Samples per microbatch.
        half: Dtype of the first stage's inputs in mixed precision; None keeps their own.
        shard: Whether each replica reads its own part of every batch, in place of the whole batch.
        input_names: Arguments of the model that inputs hold, in their order; None for a list of layers.
    """

    place: Place
    microbatch: int
    device: torch.device
    half: torch.dtype | None = None
    shard: bool = False
    input_names: tuple[str, ...] | None = None

    @property
    def parts(self) -> int:
        """Replicas that share the rows of one batch as it is read."""
        return 1 if self.shard else self.place.replicas

    def whole(self, samples: int) -> int:
        """Samples of the whole batch, of which `samples` are read."""
        return samples * (self.place.replicas // self.parts)

    def split(self, batch: Any) -> tuple[Value, Targets]:
        """The inputs of the first layer and the targets of the loss.

        Raises InvalidRequest unless all are tensors with equally many samples, and the inputs have their names."""
        if isinstance(batch, torch.Tensor) or not isinstance(batch, Sequence) or len(batch) != 2:
            rule = "a batch is a pair; train and evaluate take a list of batches, train_batch takes one"
            raise InvalidRequest(f"a batch that is {format_value(batch)}", rule=rule, legal=_LEGAL)
        inputs, targets = self._in_order(_named_values("inputs", batch[0])), _named_values("targets", batch[1])
        target_values = tuple(targets.values()) if isinstance(targets, dict) else targets
        samples = sorted({tensor.shape[0] for tensor in (*inputs, *target_values)})
        if not inputs or len(samples) != 1:
            raise InvalidRequest(
                f"a batch with {' and '.join(map(str, samples))} samples" if inputs else "a batch without inputs",
                rule="all tensors of a batch have their samples in the first dimension",
                legal=_LEGAL,
            )
        if any(tensor.requires_grad for tensor in inputs):
            raise InvalidRequest(
                "inputs of a batch that require a gradient, as those of a module outside the engine do",
                rule="no gradient leaves the model of an engine",
                legal="inputs.detach(), or the other module as a part of model=",
            )
        return inputs, targets

    def _in_order(self, inputs: Targets) -> Value:
        """Inputs in the order of their names. Raises InvalidRequest unless these are `input_names`."""
        names = self.input_names
        if isinstance(inputs, dict):
            if names is not None and inputs.keys() == {*names}:
                return tuple(inputs[name] for name in names)
            what, legal = f"the names {list(inputs)}", f"input_names={list(inputs)}"
        else:
            if names is None or len(inputs) == len(names):
                return inputs
            what, legal = f"{len(inputs)} tensors", f"a tuple of {len(names)} tensors"
        rule = f"inputs hold the arguments input_names={list(names or ())} of the model's forward"
        if names is None:
            rule = "a list of layers has no names for its inputs, which its first layer gets by position"
            legal = "a tensor or a tuple of tensors, or a module as model="
        raise InvalidRequest(f"inputs of a batch with {what}", rule=rule, legal=legal)

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
        return tuple(accelerator.to(tensor[start : start + self.microbatch], self.device) for tensor in tensors)

    def targets(self, tensors: Targets, index: int) -> Targets:
        """Rows of microbatch `index` as targets of the loss, by name if they have names."""
        if isinstance(tensors, dict):
            return dict(zip(tensors, self.rows(tuple(tensors.values()), index), strict=True))
        return self.rows(tensors, index)

    def inputs(self, tensors: Value, index: int) -> Value:
        """Rows of microbatch `index` as inputs of the first stage, in its dtype."""
        rows = self.rows(tensors, index)
        return tuple(row.to(self.half) if row.is_floating_point() else row for row in rows) if self.half else rows

    def _start(self, index: int) -> int:
        return (index * self.parts + self.place.replica % self.parts) * self.microbatch


class BatchStream:
    """Batches of one flush interval.

    All batches of a loader with a length have the size of the first. An iterable without a length is read completely
    in advance.

    Attributes:
        first: Number of the first microbatch in the whole training.
        on_read: Called with the position and the content of each batch when it is read.
        counts: Microbatches of each batch.
        ends: One past the last microbatch of each batch, counted from the beginning of the interval.
        open_batches: Inputs and targets of the batches with microbatches to come, by position.
        remaining: Forward passes of each batch that are still to come.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        slicer: BatchSlicer,
        first: int,
        on_read: Callable[[int, Batch], None] | None = None,
    ) -> None:
        self.slicer, self.first, self.on_read = slicer, first, on_read
        head: Sequence[Batch]
        if isinstance(batches, list | tuple):
            head, tail, repeats = batches, iter(()), 1
        else:
            length = length_hint(batches)  # 0 for a generator, and for a loader of a data set without a length
            # copies, as a loader may use its tensors again while their microbatches are in flight
            tail = (tree_map_only(torch.Tensor, torch.clone, batch) for batch in batches)
            head, repeats = list(islice(tail, 1 if length else None)), length or 1
            if length and not head:
                raise _too_few(0, length)
        self.counts = [slicer.count(slicer.split(batch)[0]) for batch in head] * repeats
        self.iterator: Iterator[Any] = chain(head, tail)
        self.ends = list(accumulate(self.counts))
        self.open_batches: dict[int, tuple[Value, Targets]] = {}
        self.remaining = list(self.counts)
        self.read = 0

    @property
    def microbatches(self) -> int:
        return self.ends[-1] if self.ends else 0

    def inputs(self, index: int) -> Value:
        """This rank's inputs of microbatch `index` of the whole training."""
        (inputs, _), position = self._locate(index)
        return self.slicer.inputs(inputs, position)

    def targets(self, index: int) -> Targets:
        """This rank's targets of microbatch `index` of the whole training."""
        (_, targets), position = self._locate(index)
        return self.slicer.targets(targets, position)

    def batch_of(self, index: int) -> int:
        """Position of the batch that contains microbatch `index`."""
        return bisect_right(self.ends, index - self.first)

    def read_up_to(self, index: int) -> None:
        """Read batches up to the batch that contains microbatch `index`."""
        batch = self.batch_of(index)
        while self.read <= batch:
            self._read(self.read)
            self.read += 1

    def forward_done(self, index: int) -> None:
        """Free the batch of microbatch `index` after the last of its forward passes, which may come in any order."""
        batch = self.batch_of(index)
        self.remaining[batch] -= 1
        if not self.remaining[batch]:
            self.open_batches.pop(batch, None)

    def finish(self) -> None:
        """Raises InvalidRequest for a loader that has more batches than its length."""
        if next(self.iterator, _END) is not _END:
            length = len(self.ends)
            raise InvalidRequest(f"more than {length} batches of a loader of length {length}", rule=_LENGTH_RULE)

    def _locate(self, index: int) -> tuple[tuple[Value, Targets], int]:
        """The batch of microbatch `index`, and the microbatch's position in it."""
        batch = self.batch_of(index)
        return self.open_batches[batch], index - self.first - (self.ends[batch] - self.counts[batch])

    def _read(self, position: int) -> None:
        batch = next(self.iterator, _END)
        if batch is _END:
            raise _too_few(position, len(self.ends))
        tensors = self.slicer.split(batch)
        if position and (count := self.slicer.count(tensors[0])) != self.counts[position]:
            raise InvalidRequest(
                f"batch {position + 1} has {count} microbatches, the batches before it have {self.counts[position]}",
                rule="all batches of a loader that streams have as many samples as the first",
                legal="DataLoader(..., drop_last=True), or train(list(loader))",
            )
        self.open_batches[position] = tensors
        if self.on_read is not None:
            self.on_read(position, batch)


def _too_few(batches: int, length: int) -> InvalidRequest:
    return InvalidRequest(f"{batches} batches of a loader of length {length}", rule=_LENGTH_RULE)
