"""Check that every rank of a grid makes the same calls on its engine, with the same batches.

Ranks with different batches would train on a mixture of them. Ranks with different calls, or different numbers of
batches, would wait for one another without end. Each rank therefore contributes one row of numbers to a small
all-reduce over the grid, which names the call:

- At the start of every `train`, `evaluate` and `score`: the number of batches if it is known, and sizes and dtypes.
  These cover the first batch, or all batches of a list. Every rank waits for this reduction before it computes.
- For each further batch, and for `train_batch` and `gradients`: whether there is a batch, its sizes and dtypes. In
  training no rank waits for this reduction: ranks poll it while they wait for messages, and before the update.
- A digest of the content. For the first batch of an engine it covers every byte. For the first batch of each call, for
  batches 2, 4, 8, ... and for every EVERY-th it covers up to SAMPLE elements of each tensor, different ones each time.
  Streams send these digests with their losses, and raise when they send the next losses. Otherwise every rank waits
  for the digest before it computes.
- At the start of `save`, `load` and `prune`: the call.

A difference raises on every rank, with its reason. If a rank makes no further call at all, the other ranks find the
note that it leaves (comm.rendezvous.departures).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from suite.accelerator import host_time
from suite.comm.p2p.polling import CHECK_INTERVAL, check_departures, complete
from suite.comm.rendezvous.departures import Departures, EngineCalls
from suite.core.errors import InvalidRequest, RankError
from suite.core.protocols import Handle, Transport, World
from suite.engine.batch_slicing import BatchSlicer
from suite.engine.batch_source import END, BatchSource
from suite.engine.batch_stream import BatchStream
from suite.engine.digests import content_of, digest, sizes_of

POLL_INTERVAL = 0.02  # seconds between polls of a reduction while a rank waits for a message
_DELIVERY_TIMEOUT = 10.0  # seconds that a failed rank waits for its last reduction
_ENDED, _FAILED = 0.0, -1.0  # in place of the digest of a batch's sizes
_UNKNOWN = -1.0  # in place of a length
_LIST_SIZES = 2  # position of `list_sizes` in a row
_MAX_LISTED_RANKS = 8
_SAME_BATCHES = "every rank of the grid receives the same batches"
_CALLS = {  # verb of each call, and the clause for a rank within it
    "training": ("trains", "a stream"),
    "evaluation": ("evaluates", "an evaluation"),
    "gradients": ("computes gradients", "the gradients of a batch"),
    "saving": ("saves", "saving a checkpoint"),
    "loading": ("loads", "loading a checkpoint"),
    "pruning": ("prunes", "a pruning"),
    "prediction": ("predicts", "a prediction"),
    "weights": ("collects or loads weights", "collecting or loading weights"),
}
_CALL_NUMBERS = {call: float(number) for number, call in enumerate(_CALLS)}


class _Row(NamedTuple):
    """One rank's row of numbers.

    Attributes:
        call: Number of the call in _CALLS.
        count: Number of batches; _UNKNOWN if not known.
        list_sizes: Digest of sizes and dtypes of all batches of a list, else 0.
        sizes: Digest of sizes and dtypes of this batch, _ENDED or _FAILED.
        content: Digest of elements of this batch; 0 if they are not compared.
    """

    call: float
    count: float = _UNKNOWN  # type: ignore[assignment]  # hides tuple.count, which nothing here calls
    list_sizes: float = 0.0
    sizes: float = 0.0
    content: float = 0.0


@dataclass(frozen=True, slots=True)
class _PendingReduction:
    """A reduction under way.

    Attributes:
        number: Number of the batch in its call, from 1.
        source: Source of the batch, if it is the first of a call.
    """

    handle: Handle
    rows: torch.Tensor
    number: int
    source: BatchSource | None


class BatchAgreement:
    """Agreement checks of one rank. They do nothing on one rank.

    Attributes:
        shards: Ranks that read the same batches, one entry for each part of a batch.
        compared: Batches of the engine so far, by call.
        pending: Reduction under way.
        last_sizes: Sizes of the last batch and their digest; most batches have the same sizes.
        digests: Content digests of a stream's batches that were not sent yet, by position.
        stream_base: Batches of the training before the stream.
        next_departure_check: Seconds on the clock of host_time.
    """

    def __init__(
        self,
        world: World,
        transport: Transport,
        size: int,
        *,
        off: bool = False,
        shards: Sequence[Sequence[int]] = (),
    ) -> None:
        self.shards = shards or [range(size)]
        self.rank, self.size, self.transport = world.rank, size, transport
        self.off = off or size == 1
        self.group = world.group(range(size)) if size > 1 else None
        self.polls = transport.polls
        self.compared: Counter[str] = Counter()
        self.pending: _PendingReduction | None = None
        self.last_sizes: tuple[Any, float] | None = None
        self.digests: dict[int, float] = {}
        self.stream_base = 0
        self.departures: Departures | None = None if self.off else world.departures  # type: ignore[attr-defined]
        self.calls = EngineCalls("") if self.departures is None else self.departures.register_engine()
        self.next_departure_check = 0.0

    # -- batches one by one ------------------------------------------------------------------------------------------

    def next(self, source: BatchSource, call: str) -> Any:
        """The next batch of `source`, or END.

        Raises:
            InvalidRequest: The batches, or their number, differ between ranks.
            RankError: Another rank failed to read its batch.
        """
        if self.off:
            return source.next()
        first_of_several = source.read == 0 and not source.single
        first_source = source if first_of_several else None
        try:
            batch = source.next()
            if batch is END and not (source.compare_each or first_of_several):
                return batch
            content = self._content_digest(call, batch, first=first_of_several)
            sizes = _ENDED if batch is END else self._sizes_digest(batch)
            is_list = first_of_several and source.batches is not None
            list_sizes = self._sizes_digest(source.batches) if is_list else 0.0
        except Exception:
            self._announce_failure(call, source.read + 1, first_source)
            raise
        count = _UNKNOWN if source.length is None else float(source.length)
        number = self.compared[call] if source.single else source.read + (batch is END)
        self._begin(call, _Row(_CALL_NUMBERS[call], count, list_sizes, sizes, content), number, first_source)
        if first_of_several or content or batch is END or not self.polls:
            self.settle()
        if batch is END:
            self.calls.end()
        return batch

    def compare_single(self, batch: Any, call: str) -> None:
        """Compare the only batch of a call."""
        self.next(BatchSource([batch], single=True), call)

    @contextmanager
    def call(self, call: str) -> Iterator[None]:
        """Context of a call without batches, which every rank makes."""
        if not self.off:
            self._begin(call, _Row(_CALL_NUMBERS[call]), 0, None)
            self.settle()
        yield
        self.calls.end()

    def close(self) -> None:
        """Leave a note that this rank makes no more calls."""
        if self.departures is not None:
            self.departures.close(self.calls)

    def patience(self) -> float | None:
        """Seconds to wait for a message before polling the reduction; None without a reduction."""
        return None if self.pending is None else POLL_INTERVAL

    def poll(self) -> None:
        """Raise the error that a complete reduction shows, and RankError if a rank has ended without taking part."""
        if self.pending is None:
            return
        if self.pending.handle.done():
            self.settle()
        elif host_time() > self.next_departure_check:
            self.next_departure_check = host_time() + CHECK_INTERVAL
            check_departures()

    def settle(self) -> None:
        """Wait for the reduction, and raise the error that it shows."""
        if (pending := self.pending) is None:
            return
        complete(pending.handle, self.transport)
        self.pending = None
        rows = pending.rows.tolist()
        if pending.source is not None:
            pending.source.compare_each = not all(row[_LIST_SIZES] for row in rows)
        if rows.count(rows[0]) < len(rows):
            first = pending.source is not None
            if len(self.shards) == 1:
                self.calls.end()  # the other ranks have all they need to raise too
            _check_rows([_Row(*row) for row in rows], pending.number, self.rank, first=first, shards=self.shards)

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Context that completes the reduction if a batch fails: its memory must not be freed while it is written."""
        try:
            yield
        except BaseException:
            self._complete_pending()
            raise

    def reduce(self, numbers: torch.Tensor) -> Handle:
        """Begin the sum of `numbers` over the grid."""
        assert self.group is not None
        return self.group.all_reduce(numbers)

    def _sizes_digest(self, value: Any) -> float:
        """Digest of sizes and dtypes of a batch, or of a list of batches."""
        sizes = sizes_of(value)
        if self.last_sizes is None or sizes != self.last_sizes[0]:
            self.last_sizes = sizes, digest(repr(sizes).encode())
        return self.last_sizes[1]

    def _content_digest(self, call: str, batch: Any, *, first: bool) -> float:
        """Digest of the content of a batch, which counts as compared; 0 if its content is not compared."""
        if batch is END:
            return 0.0
        self.compared[call] += 1
        return content_of(batch, self.compared[call], first=first)

    def _begin(self, call: str, row: _Row, number: int, source: BatchSource | None, *, stream: bool = False) -> None:
        batches = self.compared["training"]
        single = call == "training" and not stream
        self.calls.begin(f"batch {batches + (row.sizes == _ENDED)}" if single else _CALLS[call][1], batches)
        self.next_departure_check = host_time() + CHECK_INTERVAL
        rows = torch.zeros(self.size, len(row), dtype=torch.float64)
        rows.numpy()[self.rank] = row
        self.pending = _PendingReduction(self.reduce(rows), rows, number, source)

    def _announce_failure(self, call: str, number: int, source: BatchSource | None) -> None:
        """Make the other ranks raise too. This rank waits for them only for a limited time, as it has its own error."""
        self._begin(call, _Row(_CALL_NUMBERS[call], sizes=_FAILED), number, source)
        self._complete_pending()

    def _complete_pending(self) -> None:
        if (pending := self.pending) is not None:
            self.pending = None
            with suppress(Exception):  # the caller raises the error of this rank
                complete(pending.handle, self.transport, _DELIVERY_TIMEOUT)

    # -- streams -----------------------------------------------------------------------------------------------------

    def begin_stream(self, source: BatchSource, slicer: BatchSlicer, first: int) -> BatchStream:
        """The stream of `source`, after its length, sizes and first batch are compared."""
        self.digests.clear()
        self.stream_base = self.compared["training"]
        if self.off:
            return BatchStream(source, slicer, first).begin()
        try:
            stream = BatchStream(source, slicer, first, self.digest_stream_batch)
            content = content_of(stream.head[0], self.stream_base + 1, first=True) if stream.head else 0.0
            sizes = self._sizes_digest(stream.head[0]) if stream.head else _ENDED
            list_sizes = self._sizes_digest(stream.head) if stream.loader is None else 0.0
        except Exception:
            self._announce_failure("training", 1, source)
            raise
        self.compared["training"] += len(stream.counts)
        row = _Row(_CALL_NUMBERS["training"], float(len(stream.counts)), list_sizes, sizes, content)
        self._begin("training", row, 1, source, stream=True)
        self.settle()
        return stream.begin()

    def digest_stream_batch(self, position: int, batch: Any) -> None:
        """Compute the digest of a stream's batch, which has been read; the first batch is compared already."""
        if not self.off and position and (content := content_of(batch, self.stream_base + position + 1)):
            self.digests[position] = content

    def stream_digests(self, positions: range) -> tuple[list[int], torch.Tensor]:
        """Positions of the batches with a digest, and the numbers that this rank adds to the reduction of losses."""
        compared = [position for position in positions if position in self.digests]
        rows = torch.zeros(len(compared), self.size, dtype=torch.float64)
        for row, position in enumerate(compared):
            rows[row, self.rank] = self.digests.pop(position)
        return compared, rows.reshape(-1)

    def stream_fault(self, positions: Sequence[int], numbers: torch.Tensor) -> InvalidRequest | None:
        """The error to raise if the sum of all ranks' digests shows different batches."""
        rows = numbers.reshape(len(positions), self.size).tolist()
        faults = (_content_fault(row, position + 1, self.shards) for position, row in zip(positions, rows, strict=True))
        return next(filter(None, faults), None)


# -- differences between ranks --------------------------------------------------------------------------------------


def _check_rows(rows: Sequence[_Row], number: int, rank: int, *, first: bool, shards: Sequence[Sequence[int]]) -> None:
    """Raise the error for rows that differ, of batch `number` of a call."""
    calls = dict.fromkeys(row.call for row in rows)
    if len(calls) > 1:
        verbs = [verb for verb, _ in _CALLS.values()]
        ranks_by_call = {call: [rank for rank, row in enumerate(rows) if row.call == call] for call in calls}
        raise InvalidRequest(
            ", ".join(_rank_names(ranks, verbs[int(call)]) for call, ranks in ranks_by_call.items()),
            rule="every rank makes the same calls on its engine",
            legal="the call on every rank, without `if engine.rank == 0`",
        )
    failed = [rank for rank, row in enumerate(rows) if row.sizes == _FAILED]
    if failed and rank not in failed:
        raise RankError(f"{_rank_names(failed)} could not read batch {number}; that rank reports the error")
    counts = [row.count for row in rows if row.count != _UNKNOWN]
    if first and len(set(counts)) > 1:
        ranks_by_count = {count: [r for r, row in enumerate(rows) if row.count == count] for count in counts}
        text = ", ".join(f"{_rank_names(ranks)}: {int(count)} batches" for count, ranks in ranks_by_count.items())
        raise InvalidRequest(text, rule=_SAME_BATCHES, legal=f"{int(min(counts))} batches on every rank")
    ended = [rank for rank, row in enumerate(rows) if row.sizes == _ENDED]
    if ended and len(ended) < len(rows):
        others = [rank for rank in range(len(rows)) if rank not in ended]
        raise InvalidRequest(
            f"{_rank_names(ended)} ran out after {number - 1} batches, {_rank_names(others)} did not",
            rule=_SAME_BATCHES,
            legal=f"{number - 1} batches on every rank",
        )
    if difference := _difference([row.sizes for row in rows]):
        raise InvalidRequest(f"batch {number} has other sizes or types on {difference}", rule=_SAME_BATCHES)
    if all(row.list_sizes for row in rows) and (difference := _difference([row.list_sizes for row in rows])):
        raise InvalidRequest(f"a later batch of the list has other sizes or types on {difference}", rule=_SAME_BATCHES)
    if fault := _content_fault([row.content for row in rows], number, shards):
        raise fault


def _content_fault(digests: Sequence[float], number: int, shards: Sequence[Sequence[int]]) -> InvalidRequest | None:
    """The error to raise if the contents of batch `number` differ between ranks that read the same part of it."""
    for ranks in shards:
        if difference := _difference([digests[rank] for rank in ranks], ranks):
            break
    else:
        return None
    return InvalidRequest(
        f"batch {number} has other contents on {difference}",
        rule=_SAME_BATCHES,
        legal="torch.manual_seed(0) on every rank before batches are drawn",
    )


def _difference(values: Sequence[float], names: Sequence[int] = ()) -> str:
    """Clause that names the ranks whose value is not the most common one, and one rank that has it; empty if equal."""
    most_common, _ = Counter(values).most_common(1)[0]  # a tie goes to the first rank's value
    names = names or range(len(values))
    ranks = [rank for rank, value in zip(names, values, strict=True) if value != most_common]
    return f"{_rank_names(ranks)} than on rank {names[values.index(most_common)]}" if ranks else ""


def _rank_names(ranks: Sequence[int], verb: str = "") -> str:
    """Ranks and a verb in the third person singular, which loses its "s" for several ranks."""
    more = f" and {len(ranks) - _MAX_LISTED_RANKS} more" if len(ranks) > _MAX_LISTED_RANKS else ""
    names = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_MAX_LISTED_RANKS]))}{more}"
    first, _, rest = verb.partition(" ")
    first = first.removesuffix("s") if len(ranks) > 1 else first
    return f"{names} {first} {rest}".strip()
