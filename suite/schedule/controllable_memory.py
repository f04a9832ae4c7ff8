"""V-Half and V-Min pipeline schedules (Pipeline Parallelism with Controllable Memory, arXiv 2405.15362).

Two chunks per rank in a V. A building block gives the tick of each op of one microbatch and repeats every six ticks.
Its offsets bound the activations held: about half the memory of 1F1B for V-Half, and a third for V-Min. Ops then move
to earlier idle ticks as far as this bound allows, and weight gradients fill the ticks that stay idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Op, Place, message_of, needs
from suite.schedule.ordered import Ordered, Pass

PERIOD = 6  # ticks per microbatch: forward pass, input gradient and weight gradient of two chunks
Ticks = dict[int, Op]


@dataclass(frozen=True)
class ControllableMemory(Ordered):
    """Schedule of a building block with bounded activations.

    Attributes:
        memory: "half" or "min", as a share of the activations of 1F1B.
        split: Separate the weight gradients from the backward pass.
    """

    memory: str = "half"
    split: bool = True
    chunks = 2
    fold = True

    def __post_init__(self) -> None:
        if self.memory not in ("half", "min"):
            raise InvalidRequest(f"schedule.memory={self.memory}", rule="half or min", legal="half")

    def order(self, place: Place, microbatches: int) -> Iterator[Pass]:
        orders = _orders(self.memory, place.ranks, microbatches)
        return ((op.kind, op.stage, op.index) for op in orders[place.rank])


def bound(memory: str, ranks: int) -> int:
    """Most chunk activations held on a rank (arXiv 2405.15362, Table 1)."""
    return 2 * ((ranks + 2) // 2 if memory == "half" else (ranks + 4) // 3)


def _block(memory: str, place: Place) -> dict[tuple[Kind, int], int]:
    """Tick of each (kind, chunk) of microbatch 0 on one rank."""
    rank, ranks = place.rank, place.ranks
    if memory == "half":
        delay = 3 if ranks % 2 == 0 else 0
        ticks = (2 * rank, 3 * ranks - 2 - rank, 3 * ranks - 1 + delay + 2 * rank, 6 * ranks - 2 + delay - rank)
    else:
        delay = 2 if ranks % 3 == 0 else 0
        ticks = (rank, 2 * ranks - 1 - rank, 2 * ranks + delay + rank, 4 * ranks - 1 + delay - rank)
    passes = ((Kind.FORWARD, 0), (Kind.FORWARD, 1), (Kind.INPUT, 1), (Kind.INPUT, 0))
    return dict(zip(passes, ticks, strict=True))


@lru_cache(maxsize=32)
def _orders(memory: str, ranks: int, microbatches: int) -> tuple[tuple[Op, ...], ...]:
    """Ops of each rank for microbatches 0, 1, ...; at unit cost an op takes one tick."""
    places = [Place(rank, ranks, chunks=2, fold=True) for rank in range(ranks)]
    planned = sorted(
        (tick + PERIOD * index, place.rank, Op(place.stage_of(chunk), kind, index))
        for place in places
        for (kind, chunk), tick in _block(memory, place).items()
        for index in range(microbatches)
    )
    table: list[Ticks] = [{} for _ in places]
    for tick, rank, op in planned:
        table[rank][tick] = op
    steady = range(0)
    if memory == "half":  # the building block itself is best while every rank runs both directions
        steady = range(_block(memory, places[0])[Kind.INPUT, 0], PERIOD * (microbatches - 1) + 1)
    end: dict[Op, int] = {}  # tick after the op that sends each message
    latest: dict[tuple[int, Kind], int] = {}  # tick of the previous microbatch's op
    limit = bound(memory, ranks)
    for tick, rank, op in planned:
        need = needs(op, 2 * ranks)
        earliest = max(end[need] if need else 0, latest.get((op.stage, op.kind), -1) + 1)
        if op.kind is Kind.INPUT and need is None:
            earliest = max(earliest, end[Op(op.stage, Kind.FORWARD, op.index)])
        moved = tick
        if tick not in steady:
            moved = next(t for t in range(earliest, tick + 1) if _fits(table[rank], tick, t, limit))
        del table[rank][tick]
        table[rank][moved] = op
        end[message_of(op)] = moved + 1
        latest[op.stage, op.kind] = moved
    return tuple(tuple(_with_weight_gradients(ticks)) for ticks in table)


def _fits(ticks: Ticks, old: int, new: int, limit: int) -> bool:
    """Whether the op at tick `old` may move to tick `new`: it is idle, and at most `limit` activations are held."""
    if new == old:
        return True
    if new in ticks:
        return False
    activations = owed = 0  # an idle tick runs an owed weight gradient, as in _with_weight_gradients
    for tick in range(max(ticks) + 1):
        op = ticks.get(old if tick == new else tick) if tick != old else None
        if op is None:
            activations, owed = (activations - 1, owed - 1) if owed else (activations, owed)
        elif op.kind is Kind.INPUT:
            owed += 1
        else:
            activations += 1
            if activations > limit:
                return False
    return True


def _with_weight_gradients(ticks: Ticks) -> Iterator[Op]:
    """Ops of one rank in order, with weight gradients in idle ticks, first in first out."""
    owed: deque[Op] = deque()
    for tick in range(max(ticks) + 1):
        op = ticks.get(tick)
        if op is not None:
            if op.kind is Kind.INPUT:
                owed.append(op._replace(kind=Kind.WEIGHT))
            yield op
        elif owed:
            yield owed.popleft()
    yield from owed
