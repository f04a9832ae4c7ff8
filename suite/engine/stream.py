"""Decides which rows of a stream of batches an op computes on, and which losses belong to which batch.

A batch is read when its first microbatch is, and let go when its last one has been.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import accumulate
from typing import Any

import torch

from suite.core.errors import Refused
from suite.core.protocols import Value
from suite.engine.rows import Rows
from suite.engine.stage import as_value

Batch = Sequence[torch.Tensor | Sequence[torch.Tensor]]


def parts(batch: Batch) -> tuple[Value, Value]:
    """Its inputs and its targets."""
    inputs, targets = (as_value(part) for part in batch)
    return inputs, targets


class Stream:
    """The batches of one work, whose microbatches begin with number `first`.

    ends: one past the last microbatch of each batch, from the beginning of the work. Of something that has a length
    but is no sequence (a loader) all batches are as long as the first; what has no length is read whole first.
    """

    def __init__(self, batches: Iterable[Batch], rows: Rows, first: int) -> None:
        self.rows, self.first = rows, first
        if not isinstance(batches, Sized):
            batches = list(batches)
        self.open: dict[int, tuple[Value, Value]] = {}
        if isinstance(batches, Sequence):
            counts = [rows.count(parts(batch)[0]) for batch in batches]
            self.coming: Iterator[Any] = iter(batches)
        else:
            self.coming = iter(batches)
            size, counts = len(batches), []
            if size:
                self._read(0)
                counts = [rows.count(self.open[0][0])] * size
        self.counts = counts
        self.ends = list(accumulate(counts))
        self.read = len(self.open)

    @property
    def microbatches(self) -> int:
        return self.ends[-1] if self.ends else 0

    def inputs(self, index: int) -> Value:
        """Of microbatch `index` of the whole training, on this rank."""
        (inputs, _), at = self._at(index)
        return self.rows.inputs(inputs, at)

    def targets(self, index: int) -> Value:
        (_, targets), at = self._at(index)
        return self.rows.of(targets, at)

    def batch_of(self, index: int) -> int:
        return bisect_right(self.ends, index - self.first)

    def passed(self, index: int) -> None:
        """The forward pass of `index` has been, the last that reads rows of it."""
        if index - self.first + 1 == self.ends[batch := self.batch_of(index)]:
            self.open.pop(batch, None)

    def _at(self, index: int) -> tuple[tuple[Value, Value], int]:
        number = self.batch_of(index)
        while self.read <= number:
            self._read(self.read)
            self.read += 1
        return self.open[number], index - self.first - (self.ends[number] - self.counts[number])

    def _read(self, number: int) -> None:
        try:
            found = parts(next(self.coming))
        except StopIteration:
            raise Refused(f"{number} batches of something {len(self.ends)} long", rule="its length is told") from None
        if number and (own := self.rows.count(found[0])) != self.counts[number]:
            told = f"batch {number} of {own} microbatches after others of {self.counts[number]}"
            raise Refused(told, rule="a loader's batches are alike (drop_last)", legal="a list of batches")
        self.open[number] = found
