"""Batches of one flush interval, and the rows of each op.

Every rank reads a batch when it computes on its first microbatch, also between the first and the last stage. So user
code draws the same random numbers on all ranks. A batch is freed after its last microbatch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import accumulate, chain, islice
from typing import Any

import torch

from suite.core.errors import InvalidRequest
from suite.core.protocols import Value
from suite.engine.batch_slicing import BatchSlicer
from suite.engine.prefetch import map_tensors
from suite.engine.structure import Targets

Batch = Sequence[torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]]
_END: Any = object()  # compared by identity, because == of arrays has no single truth value
_LENGTH_RULE = "a loader has as many batches as its length"


class BatchStream:
    """Batches of one flush interval.

    All batches of a loader with a length have the size of the first. An iterable without a length is read completely
    in advance.

    Attributes:
        first: Number of the first microbatch in the whole training.
        on_read: Called with the position and the content of each batch when it is read.
        head: Batches that ranks compare before the interval begins: the first of a loader, all otherwise.
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
        self.head: Sequence[Batch]
        if isinstance(batches, list | tuple):
            self.head, tail, repeats = batches, iter(()), 1
        else:
            length = _length(batches)
            # copies, as a loader may use its tensors again while their microbatches are in flight
            tail = (map_tensors(batch, torch.clone) for batch in batches)
            self.head, repeats = list(islice(tail, 1 if length else None)), length or 1
            if length and not self.head:
                raise _too_few(0, length)
        self.iterator: Iterator[Any] = chain(self.head, tail)
        self.counts = [slicer.count(slicer.split(batch)[0]) for batch in self.head] * repeats
        self.ends = list(accumulate(self.counts))
        self.open_batches: dict[int, tuple[Value, Targets]] = {}
        self.remaining = list(self.counts)
        self.read = 0

    def begin(self) -> BatchStream:
        """This stream. It frees batches from now on."""
        self.head = ()
        return self

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


def _length(batches: Iterable[Batch]) -> int | None:
    """The length; None without one. A loader of a data set without a length raises TypeError."""
    if not isinstance(batches, Sized):
        return None
    try:
        return len(batches)
    except TypeError:
        return None


def _too_few(batches: int, length: int | None) -> InvalidRequest:
    return InvalidRequest(f"{batches} batches of a loader of length {length}", rule=_LENGTH_RULE)
