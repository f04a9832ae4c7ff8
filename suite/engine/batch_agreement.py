"""Check that every rank of a grid makes the same calls on its engine, with the same batches.

Ranks with different batches would train on a mixture of them, and ranks with different calls or numbers of batches
would wait for one another without end. Each rank therefore contributes one row of numbers to a small reduction over the
grid, which names the call:

- at the start of every `train`, `evaluate` and `score`: the number of batches where it is known, and the sizes and
  types of the first batch, or of all batches of a list. Every rank waits for it before it computes;
- for each further batch, `train_batch` and `gradients`: whether there is a batch, its sizes and types. In training no
rank waits for it: ranks check it while they wait for messages, and before the update; - of batch 1 of an engine every
byte. Of the first batch of each call with several, of batches 2, 4, 8, ... and of every
  EVERY-th up to SAMPLE elements of each tensor, other ones each time. Streams send these with their losses, and end
  when the next losses are sent; otherwise every rank waits for them before it computes;
- at the start of `save`, `load` and `prune`: the call.

A difference raises on every rank, with its reason. Where a rank makes no further call at all, the others find its note
(comm.departures).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import torch

from suite.comm.p2p.polling import CHECK_INTERVAL, check_departures, wait_until
from suite.comm.rendezvous.departures import Departures, EngineCalls
from suite.core.errors import InvalidRequest, RankError
from suite.core.protocols import Handle, Transport, World
from suite.engine.batch_slicing import Rows
from suite.engine.batch_source import END, BatchSource
from suite.engine.batch_stream import BatchStream
from suite.engine.digests import content_of, digest, sizes_of

PATIENCE = 0.02  # seconds between looks at a reduction while a rank waits for a message
_DELIVERY = 10.0  # seconds in which a rank that fails informs the others
_ENDED, _FAILED = 0.0, -1.0  # instead of the digest of a batch's sizes
_UNKNOWN = -1.0  # instead of a length
_LISTED = 2  # the place of `listed` in a row
_MOST = 8  # ranks that a message lists
_RULE = "every rank of the grid is given the same batches"
_CALLS = {  # the call, and the progress of a rank in it
    "training": ("trains", "a stream"),
    "evaluation": ("evaluates", "an evaluation"),
    "gradients": ("computes gradients", "the gradients of a batch"),
    "saving": ("saves", "a checkpoint that is saved"),
    "loading": ("loads", "a checkpoint that is loaded"),
    "pruning": ("prunes", "a pruning"),
}
_NUMBERS = {call: float(number) for number, call in enumerate(_CALLS)}


class _Row(NamedTuple):
    """Row of one rank.

    Attributes:
        call: Its number in _CALLS.
        count: batches, _UNKNOWN if not known.
        listed: Digest of the sizes and types of all batches of a list, else 0.
        sizes: Digest of the sizes and types of this batch, _ENDED or _FAILED.
        content: Digest of elements of this batch, 0 if they are not compared.
    """

    call: float
    count: float = _UNKNOWN  # type: ignore[assignment]  # hides tuple.count, which nothing here calls
    listed: float = 0.0
    sizes: float = 0.0
    content: float = 0.0


@dataclass(frozen=True, slots=True)
class _Round:
    """A reduction under way.

    Attributes:
        number: The batch, from 1 in this call.
        source: Of a first batch.
    """

    handle: Handle
    rows: torch.Tensor
    number: int
    source: BatchSource | None


class BatchAgreement:
    """The checks of one rank. They do nothing on a grid of one rank, nor where ranks take turns on the same batches."""

    def __init__(self, world: World, transport: Transport, size: int, *, off: bool = False) -> None:
        self.rank, self.size, self.progress = world.rank, size, transport.progress
        self.off = off or size == 1 or transport.turns
        self.group = world.group(range(size)) if size > 1 else None
        self.polls = transport.polls
        self.compared: Counter[str] = Counter()  # batches of the engine, by the call that reads them
        self.pending: _Round | None = None
        self.last: tuple[Any, float] | None = None  # sizes, and their digest
        self.digests: dict[int, float] = {}  # of batches of a stream, by their places in it
        self.base = 0  # batches before the stream
        self.departures: Departures | None = None if self.off else world.departures  # type: ignore[attr-defined]
        self.calls = EngineCalls("") if self.departures is None else self.departures.register_engine()
        self.due = 0.0  # when to look whether a rank has ended

    # -- batches one by one ------------------------------------------------------------------------------------------

    def next(self, source: BatchSource, call: str) -> Any:
        """The next batch of `source`, or END.

        Raises:
            InvalidRequest: a rank has other batches, or another number of them.
            RankError: another rank could not read its batch.
        """
        if self.off:
            return source.next()
        first = source.taken == 0
        several = first and not source.single
        try:
            batch = source.next()
            if batch is END and not (source.each or several):
                return batch
            content = self._due(call, batch, first=several)
            sizes = _ENDED if batch is END else self._sizes_of(batch)
            listed = self._sizes_of(source.whole) if several and source.whole is not None else 0.0
        except Exception:
            self._announce_failure(call, source.taken + 1, source if several else None)
            raise
        count = _UNKNOWN if source.length is None else float(source.length)
        number = self.compared[call] if source.single else source.taken + (batch is END)
        row = _Row(_NUMBERS[call], count, listed, sizes, content)
        self._begin(call, row, number, source if several else None)
        if several or content or batch is END or not self.polls:
            self.settle()
        if batch is END:
            self.calls.end()
        return batch

    def one(self, batch: Any, call: str) -> None:
        """Compare the only batch of a call."""
        self.next(BatchSource([batch], single=True), call)

    @contextmanager
    def call(self, call: str) -> Iterator[None]:
        """A call without batches, which every rank makes."""
        if not self.off:
            self._begin(call, _Row(_NUMBERS[call]), 0, None)
            self.settle()
        yield
        self.calls.end()

    def close(self) -> None:
        """This rank makes no more calls."""
        if self.departures is not None:
            self.departures.close(self.calls)

    def patience(self) -> float | None:
        """Seconds that a rank waits for a message before it looks at the reduction; None while there is none."""
        return None if self.pending is None else PATIENCE

    def look(self) -> None:
        """Raise what the reduction shows, if it has ended, and RankError where a rank has ended without it."""
        if self.pending is None:
            return
        if self.pending.handle.done():
            self.settle()
        elif perf_counter() > self.due:
            self.due = perf_counter() + CHECK_INTERVAL
            check_departures()

    def settle(self) -> None:
        """Wait for the reduction, and raise what it shows."""
        if (pending := self.pending) is None:
            return
        wait_until(pending.handle.done, self.progress)
        self.pending = None
        rows = pending.rows.tolist()
        if pending.source is not None:
            pending.source.each = not all(row[_LISTED] for row in rows)
        if rows.count(rows[0]) < len(rows):
            self.calls.end()  # this rank has sent what the others need to raise too
            _check_rows([_Row(*row) for row in rows], pending.number, self.rank, first=pending.source is not None)

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Leave no reduction behind when the batch fails: memory that it writes to would be freed."""
        try:
            yield
        except BaseException:
            self._leave()
            raise

    def _sizes_of(self, value: Any) -> float:
        """The digest of sizes and types of a batch or a list of them; most batches are like the last one."""
        sizes = sizes_of(value)
        if self.last is None or sizes != self.last[0]:
            self.last = sizes, digest(repr(sizes).encode())
        return self.last[1]

    def _due(self, call: str, batch: Any, *, first: bool) -> float:
        if batch is END:
            return 0.0
        self.compared[call] += 1
        return content_of(batch, self.compared[call], first=first)

    def _begin(self, call: str, row: _Row, number: int, source: BatchSource | None, *, stream: bool = False) -> None:
        batches = self.compared["training"]
        single = call == "training" and not stream
        self.calls.begin(f"batch {batches + (row.sizes == _ENDED)}" if single else _CALLS[call][1], batches)
        self.due = perf_counter() + CHECK_INTERVAL
        rows = torch.zeros(self.size, len(row), dtype=torch.float64)
        rows.numpy()[self.rank] = row
        self.pending = _Round(self.reduce(rows), rows, number, source)

    def _announce_failure(self, call: str, number: int, source: BatchSource | None) -> None:
        """Make the other ranks raise too. This rank has an error to raise: it waits for them for a limited time."""
        self._begin(call, _Row(_NUMBERS[call], sizes=_FAILED), number, source)
        self._leave()

    def reduce(self, numbers: torch.Tensor) -> Handle:
        """Begin the sum of `numbers` over the grid."""
        assert self.group is not None
        return self.group.all_reduce(numbers)

    def _leave(self) -> None:
        if (pending := self.pending) is not None:
            self.pending = None
            with suppress(Exception):  # the caller raises the error of this rank
                wait_until(pending.handle.done, self.progress, _DELIVERY)

    # -- streams -----------------------------------------------------------------------------------------------------

    def begin_stream(self, source: BatchSource, rows: Rows, first: int) -> BatchStream:
        """The stream of `source`, once its length, sizes and first batch are compared."""
        self.digests.clear()
        self.base = self.compared["training"]
        if self.off:
            return BatchStream(source, rows, first).begun()
        try:
            stream = BatchStream(source, rows, first, self.read)
            content = content_of(stream.known[0], self.base + 1, first=True) if stream.known else 0.0
            sizes = self._sizes_of(stream.known[0]) if stream.known else _ENDED
            listed = self._sizes_of(stream.known) if stream.loader is None else 0.0
        except Exception:
            self._announce_failure("training", 1, source)
            raise
        self.compared["training"] += len(stream.counts)
        row = _Row(_NUMBERS["training"], float(len(stream.counts)), listed, sizes, content)
        self._begin("training", row, 1, source, stream=True)
        self.settle()
        return stream.begun()

    def read(self, place: int, batch: Any) -> None:
        """Batch `place` of the stream has been read."""
        if not self.off and place and (content := content_of(batch, self.base + place + 1)):
            self.digests[place] = content

    def numbers(self, places: range) -> tuple[list[int], torch.Tensor]:
        """What to add to a reduction over the grid in which the losses of batches `places` travel, and the batches of
        which it holds digests."""
        places_held = [place for place in places if place in self.digests]
        rows = torch.zeros(len(places_held), self.size, dtype=torch.float64)
        for at, place in enumerate(places_held):
            rows[at, self.rank] = self.digests.pop(place)
        return places_held, rows.reshape(-1)

    def fault(self, places: Sequence[int], numbers: torch.Tensor) -> InvalidRequest | None:
        """The error to raise if the sum of what ranks gave as `numbers` shows other batches."""
        rows = numbers.reshape(len(places), self.size).tolist()
        return next(filter(None, (_contents(row, place + 1) for place, row in zip(places, rows, strict=True))), None)


# -- what a reduction shows ------------------------------------------------------------------------------------------


def _check_rows(rows: Sequence[_Row], number: int, own: int, *, first: bool) -> None:
    """Raise where `rows` of all ranks, of batch `number` of this call, differ."""
    calls = dict.fromkeys(row.call for row in rows)
    if len(calls) > 1:
        verbs = [verb for verb, _ in _CALLS.values()]
        ranks_by_value = {call: [rank for rank, row in enumerate(rows) if row.call == call] for call in calls}
        raise InvalidRequest(
            ", ".join(f"{_names(ranks, verbs[int(call)])}" for call, ranks in ranks_by_value.items()),
            rule="every rank makes the same calls on its engine",
            legal="the call on every rank, without `if engine.rank == 0`",
        )
    failed = [rank for rank, row in enumerate(rows) if row.sizes == _FAILED]
    if failed and own not in failed:
        raise RankError(f"{_names(failed)} could not read batch {number}; the error is on that rank")
    counts = [row.count for row in rows if row.count != _UNKNOWN]
    if first and len(set(counts)) > 1:
        ranks_by_value = {count: [r for r, row in enumerate(rows) if row.count == count] for count in counts}
        text = ", ".join(f"{_names(ranks)}: {int(count)} batches" for count, ranks in ranks_by_value.items())
        raise InvalidRequest(text, rule=_RULE, legal=f"{int(min(counts))} batches on every rank")
    ended = [rank for rank, row in enumerate(rows) if row.sizes == _ENDED]
    if ended and len(ended) < len(rows):
        others = [rank for rank in range(len(rows)) if rank not in ended]
        raise InvalidRequest(
            f"{_names(ended)} ran out after {number - 1} batches, {_names(others)} did not",
            rule=_RULE,
            legal=f"{number - 1} batches on every rank",
        )
    if apart := _apart([row.sizes for row in rows]):
        raise InvalidRequest(f"batch {number} has other sizes or types on {apart}", rule=_RULE)
    if all(row.listed for row in rows) and (apart := _apart([row.listed for row in rows])):
        raise InvalidRequest(f"a later batch of the list has other sizes or types on {apart}", rule=_RULE)
    if fault := _contents([row.content for row in rows], number):
        raise fault


def _contents(contents: Sequence[float], number: int) -> InvalidRequest | None:
    """The error to raise if the contents of batch `number` differ."""
    if not (apart := _apart(contents)):
        return None
    return InvalidRequest(
        f"batch {number} has other contents on {apart}",
        rule=_RULE,
        legal="torch.manual_seed(0) on every rank before batches are drawn",
    )


def _apart(values: Sequence[float]) -> str:
    """The ranks whose row differs from the most common row, and one rank with the common row; empty if all agree."""
    usual, _ = Counter(values).most_common(1)[0]  # of several as common ones the first rank's
    ranks = [rank for rank, value in enumerate(values) if value != usual]
    return f"{_names(ranks)} than on rank {values.index(usual)}" if ranks else ""


def _names(ranks: Sequence[int], verb: str = "") -> str:
    """Ranks, and their action: `verb` is in the singular."""
    more = f" and {len(ranks) - _MOST} more" if len(ranks) > _MOST else ""
    names = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_MOST]))}{more}"
    first, _, rest = verb.partition(" ")
    first = first.removesuffix("s") if len(ranks) > 1 else first
    return f"{names} {first} {rest}".strip()
