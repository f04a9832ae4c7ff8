"""Check that every rank of a grid makes the same calls on its engine, with the same batches.

Ranks with different batches would train on a mixture of them. Each reduction of a number over the grid, such as that of
a batch's loss, also carries a code of every rank: its call, and hashes of its batch. The hash of sizes and dtypes is of
every batch, that of the content of the first batch of an engine and of every 64th. So the check adds no message, and a
difference raises on every rank before the loss is returned.

Ranks whose calls or sizes differ may wait for one another instead, without end. Then the notes of
comm.rendezvous.peer_exit show the difference, or that a rank has left.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from suite.comm.p2p.polling import CHECK_INTERVAL
from suite.comm.rendezvous.peer_exit import Call, EngineCalls
from suite.core.errors import InvalidRequest, RankError
from suite.core.protocols import Transport, World

EVERY = 64  # the content of one batch in so many is compared
SAMPLE = 1024  # elements per tensor that are compared; of the first batch all are
_BITS = 24  # of each hash: a double holds the number of a call and two hashes exactly
_CALLS = {  # clause for a rank within each call
    "training": "training",
    "evaluation": "an evaluation",
    "gradients": "the gradients of a batch",
    "saving": "saving a checkpoint",
    "loading": "loading a checkpoint",
    "pruning": "a pruning",
    "prediction": "a prediction",
    "weights": "collecting or loading weights",
}
_MAX_LISTED_RANKS = 8
_SAME_BATCHES = "every rank of the grid receives the same batches"


class RankConsistencyCheck:
    """Reductions over all ranks of a grid, which also compare the calls and batches of the ranks.

    Attributes:
        replica: Replica of this rank.
        shards: Ranks that read the same batches, one entry for each part of a batch.
        off: Whether calls and batches are not compared.
        group: All ranks; None on one rank.
        calls: Calls of this rank, for the notes.
        patience: Limit in seconds of a wait for a message, within which the rank reads the notes; None if it does not.
        code: Code of the running call.
        batches: Batches of the engine so far, by call.
        streamed: Hashes of the batches of a stream whose losses are not sent yet, by position.
    """

    def __init__(
        self, world: World, transport: Transport, replica: int, shards: Sequence[Sequence[int]], *, off: bool
    ) -> None:
        self.world, self.transport, self.replica, self.shards = world, transport, replica, shards
        self.size = sum(map(len, shards))
        self.off = off or self.size == 1
        self.group = world.group(range(self.size)) if self.size > 1 else None
        self.departures = None if self.off else world.departures  # type: ignore[attr-defined]
        self.calls = EngineCalls("") if self.departures is None else self.departures.register_engine()
        self.patience = None if self.off or not transport.polls else 2 * CHECK_INTERVAL
        self.code, self.batches = 0, Counter[str]()
        self.streamed: dict[int, int] = {}

    # -- calls and batches -------------------------------------------------------------------------------------------

    def begin(self, call: str, batch: Any = None, *, counts: Sequence[int] = ()) -> None:
        """Begin a call, with its batch. A stream begins with the numbers of microbatches of its batches, `counts`."""
        if self.off:
            return
        self.code = (list(_CALLS).index(call) + 1) << 2 * _BITS
        clause = _CALLS[call]
        if batch is not None:
            self.code += self.code_of(call, batch)
            clause = f"batch {self.batches[call]}" if call == "training" else clause
        elif call == "training":
            clause = "a stream"
            self.code += _hash(repr(counts).encode()) << _BITS
        number, batches = self.calls.call.number + 1, self.batches["training"]
        self.calls.call, self.calls.in_call = Call(number, clause, batches, self.code >> _BITS), True
        if not self.transport.polls:  # a rank that waits cannot read notes
            self.reduce(0.0)

    def end(self) -> None:
        """End a call."""
        self.calls.in_call = False

    @contextmanager
    def call(self, call: str) -> Iterator[None]:
        """Context of a call without batches, which every rank makes."""
        self.begin(call)
        self.reduce(0.0)
        yield
        self.end()

    def close(self) -> None:
        """Leave a note that this rank makes no more calls."""
        if self.departures is not None:
            self.departures.close(self.calls)

    def code_of(self, call: str, batch: Any) -> int:
        """Hashes of the next batch of a call: of its sizes and dtypes, and of its content where that is compared."""
        self.batches[call] += 1
        number = self.batches[call]
        compared = number == 1 or number % EVERY == 0
        content = _hash(*(elements(tensor, number) for tensor in tensors_in(batch))) if compared else 0
        return (_hash(repr(_sizes(batch)).encode()) << _BITS) + content

    # -- streams -----------------------------------------------------------------------------------------------------

    def read(self, position: int, batch: Any) -> None:
        """Keep the hashes of a batch of a stream until its loss is sent."""
        if not self.off:
            self.streamed[position] = self.code_of("training", batch)

    def stream_slots(self, positions: Iterable[int]) -> list[float]:
        """What this rank adds to the reduction of the losses of several batches."""
        codes = [self.streamed.pop(position, 0) for position in positions]
        sizes, contents = ([divmod(code, 1 << _BITS)[part] for code in codes] for part in (0, 1))
        hashes = (_hash(repr(sizes).encode()) << _BITS) + (_hash(repr(contents).encode()) if any(contents) else 0)
        return [] if self.off else self._slots(self.code >> 2 * _BITS << 2 * _BITS | hashes)

    # -- reductions --------------------------------------------------------------------------------------------------

    def reduce(self, number: float, op: str = "sum") -> float:
        """The sum or maximum of one number per rank. Raises InvalidRequest where calls or batches differ."""
        if self.size == 1:
            return number
        reduced, *codes = self._all_reduce([number, *([] if self.off else self._slots(self.code))], op)
        if (fault := self.fault(codes, self.calls.call.clause)) is not None:
            self.end()  # the other ranks have all they need to raise too
            raise fault
        return reduced

    def _slots(self, code: int) -> list[float]:
        """A number for each rank, of which this rank contributes its own: their sum, or maximum, holds all codes."""
        slots = [0.0] * self.size
        slots[self.world.rank] = float(code)
        return slots

    def _all_reduce(self, numbers: Sequence[float], op: str) -> Sequence[float]:
        return self.world.all_reduce_numbers(numbers, op, self.transport.progress)

    def fault(self, codes: Sequence[float], batch: str) -> InvalidRequest | None:
        """The error to raise if the codes of the ranks differ; `batch` is a clause for what they are of."""
        if len(set(codes)) < 2:
            return None
        parts = [(code >> 2 * _BITS, code >> _BITS, code % (1 << _BITS)) for code in map(int, codes)]
        calls = dict.fromkeys(call for call, _, _ in parts)
        if len(calls) > 1:
            clauses = ["no call", *_CALLS.values()]
            ranks_by_call = {call: [rank for rank, part in enumerate(parts) if part[0] == call] for call in calls}
            return InvalidRequest(
                ", ".join(
                    f"{_rank_names(ranks)} {'are' if len(ranks) > 1 else 'is'} at {clauses[call]}"
                    for call, ranks in ranks_by_call.items()
                ),
                rule="every rank makes the same calls on its engine",
                legal="the call on every rank, without `if engine.rank == 0`",
            )
        if difference := _difference([sizes for _, sizes, _ in parts], range(self.size)):
            return InvalidRequest(f"{batch} has other sizes or types on {difference}", rule=_SAME_BATCHES)
        for ranks in self.shards:
            if difference := _difference([parts[rank][2] for rank in ranks], ranks):
                return InvalidRequest(
                    f"{batch} has other contents on {difference}",
                    rule=_SAME_BATCHES,
                    legal="torch.manual_seed(0) on every rank before batches are drawn",
                )
        return None

    # -- decisions that all ranks make together ----------------------------------------------------------------------

    def max(self, number: int) -> int:
        """The largest `number` of all ranks."""
        return int(self.reduce(float(number), "max"))

    def sum_over_stages(self, number: float) -> float:
        """The sum of one number per stage; all replicas of a stage hold the same number."""
        return self.reduce(number if self.replica == 0 else 0.0)

    @contextmanager
    def all_or_none(self, action: str) -> Iterator[None]:
        """Context in which an error of one rank raises on every rank; `action` is a clause for the other ranks."""
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        worst = self.max(0 if error is None else 2 * self.world.rank + 1 + isinstance(error, InvalidRequest))
        if error is not None:
            raise error
        if worst:
            error_class = RankError if worst % 2 else InvalidRequest
            raise error_class(f"{action}: rank {(worst - 1) // 2} failed and reports the reason")

    def all_equal(self, data: bytes | None) -> bool:
        """Whether all ranks that contribute `data` contribute the same bytes. Every rank calls it."""
        if self.size == 1:
            return True
        digests = self._all_reduce(self._slots(0 if data is None else 1 + _hash(data, bits=48)), "max")
        return len({digest for digest in digests if digest}) <= 1


# -- hashes of batches ----------------------------------------------------------------------------------------------


def _hash(*parts: Any, bits: int = _BITS) -> int:
    hashed = hashlib.blake2b(digest_size=bits // 8)
    for part in parts:
        hashed.update(part)
    return int.from_bytes(hashed.digest(), "big")


def _sizes(value: Any) -> Any:
    """Sizes and dtypes of the tensors of a batch."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, list | tuple):
        return list(map(_sizes, value))
    if isinstance(value, Mapping):
        return [(name, _sizes(value[name])) for name in sorted(value, key=str)]
    return type(value).__name__


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, Mapping):  # ranks may make it in another order
        for name in sorted(value, key=str):
            yield from tensors_in(value[name])


@torch.no_grad()
def elements(tensor: torch.Tensor, number: int) -> Any:
    """Bytes of all elements in batch 1, and of evenly spaced elements in other batches."""
    if tensor.is_meta:  # the slicer refuses it, on every rank
        return b""
    tensor = (tensor if tensor.layout is torch.strided else tensor.to_dense()).detach()
    flat = tensor.resolve_conj().resolve_neg().reshape(-1)
    step = 1 if number == 1 else max(1, -(-flat.numel() // SAMPLE))
    return flat[number % step :: step].contiguous().cpu().view(torch.uint8).numpy()


# -- names of ranks -------------------------------------------------------------------------------------------------


def _difference(values: Sequence[int], ranks: Sequence[int]) -> str:
    """Clause that names the ranks whose value is not the most common one, and one rank that has it; empty if equal."""
    most_common, _ = Counter(values).most_common(1)[0]  # a tie goes to the first rank's value
    others = [rank for rank, value in zip(ranks, values, strict=True) if value != most_common]
    return f"{_rank_names(others)} than on rank {ranks[values.index(most_common)]}" if others else ""


def _rank_names(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _MAX_LISTED_RANKS} more" if len(ranks) > _MAX_LISTED_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_MAX_LISTED_RANKS]))}{more}"
