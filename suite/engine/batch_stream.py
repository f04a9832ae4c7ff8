"""Rows of a stream of batches for each op, and the batch that each loss belongs to.

Every rank reads a batch when it computes on its first microbatch, also between the first and the last stage: so user
code draws the same random numbers on all ranks. The batch is freed after its last microbatch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

import torch

from suite.core.errors import InvalidRequest
from suite.core.protocols import Value
from suite.engine.batch_slicing import Rows, parts
from suite.engine.batch_source import END, BatchSource

Batch = Sequence[torch.Tensor | Sequence[torch.Tensor]]


class BatchStream:
    """The batches of one work, whose microbatches begin with number `first`.

    Attributes:
        ends: One past the last microbatch of each batch, from the beginning of the work. Of something that has a length
            but is no list (a loader) all batches are as long as the first; what has no length is read whole first.
        known: The batches that ranks compare before the work begins; on_read(place, batch) is called for each batch.
    """

    def __init__(
        self,
        batches: BatchSource | Sequence[Batch],
        rows: Rows,
        first: int,
        on_read: Callable[[int, Batch], None] | None = None,
    ) -> None:
        self.rows, self.first, self.on_read = rows, first, on_read
        self.loader: BatchSource | None = None
        self.known: Sequence[Batch]
        if not isinstance(batches, BatchSource):
            self.known = batches
        elif batches.whole is not None:
            self.known = batches.whole
        elif not batches.length:
            self.known = list(_rest(batches))
        else:
            self.loader, self.known = batches, [batches.next()]
        rest: Iterator[Any] = iter(()) if self.loader is None else _rest(self.loader)
        self.coming: Iterator[Any] = chain(self.known, rest)
        if self.loader is not None and self.known[0] is END:
            raise _short(0, self.loader.length)
        counts = [rows.count(parts(batch)[0]) for batch in self.known]
        self.counts = counts if self.loader is None else counts * (self.loader.length or 0)
        self.ends = list(accumulate(self.counts))
        self.open: dict[int, tuple[Value, Value]] = {}
        self.left = list(self.counts)  # forward passes of each batch that are still to come
        self.read = 0

    def begun(self) -> BatchStream:
        """This stream, which frees batches from now on."""
        self.known = ()
        return self

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

    def reach(self, index: int) -> None:
        """Read the batches up to the batch of microbatch `index`."""
        number = self.batch_of(index)
        while self.read <= number:
            self._read(self.read)
            self.read += 1

    def passed(self, index: int) -> None:
        """The forward pass of `index` has run. After the last one of a batch, in any order, the batch is freed."""
        batch = self.batch_of(index)
        self.left[batch] -= 1
        if not self.left[batch]:
            self.open.pop(batch, None)

    def finish(self) -> None:
        """Every microbatch has been computed. Raises InvalidRequest for a loader that has more batches than its
        length."""
        if self.loader is not None and self.loader.next() is not END:
            raise InvalidRequest(
                f"more than {len(self.ends)} batches of a loader of length {len(self.ends)}", rule=_LENGTH
            )

    def _at(self, index: int) -> tuple[tuple[Value, Value], int]:
        number = self.batch_of(index)
        return self.open[number], index - self.first - (self.ends[number] - self.counts[number])

    def _read(self, number: int) -> None:
        batch = next(self.coming, END)
        if batch is END:
            raise _short(number, len(self.ends))
        opened = parts(batch)
        if number and (count := self.rows.count(opened[0])) != self.counts[number]:
            what = f"batch {number + 1} has {count} microbatches, the batches before it have {self.counts[number]}"
            rule = "all batches of a loader that streams have as many samples as the first"
            raise InvalidRequest(what, rule=rule, legal="DataLoader(..., drop_last=True), or train(list(loader))")
        self.open[number] = opened
        if self.on_read is not None:
            self.on_read(number, batch)


def _rest(source: BatchSource) -> Iterator[Any]:
    """The batches that are left. Compared by identity, as == of arrays gives no single truth value."""
    while (batch := source.next()) is not END:
        yield batch


_LENGTH = "a loader has as many batches as its length"


def _short(number: int, length: int | None) -> InvalidRequest:
    return InvalidRequest(f"{number} batches of a loader of length {length}", rule=_LENGTH)
