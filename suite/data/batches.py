"""Batches of one round of a rank, drawn in advance if they fit in memory, otherwise one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, overload

AHEAD = 1 << 30  # bytes of batches that a rank may draw before a round
KEPT = 32  # batches kept in the cache: pipeline stages read the same batch at different times


def draw_batches(draw: Callable[[int], Any], numbers: range) -> Sequence[Any]:
    """The batches `numbers`: a list if they fit in AHEAD bytes, so that drawing is not timed, else a Lazy sequence."""
    if not numbers:
        return []
    first = draw(numbers[0])
    if size(first) * len(numbers) <= AHEAD:
        return [first, *map(draw, numbers[1:])]
    return Lazy(draw, numbers)


def size(batch: Any) -> int:
    """Total size of the arrays in a batch, in bytes."""
    return sum(map(size, batch)) if isinstance(batch, tuple | list) else int(batch.nbytes)


class Lazy(Sequence[Any]):
    """Sequence of batches drawn on access. `draw` must always return the same batch for the same number."""

    def __init__(self, draw: Callable[[int], Any], numbers: range) -> None:
        self.draw, self.numbers = lru_cache(KEPT)(draw), numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> Any: ...

    @overload
    def __getitem__(self, place: slice) -> Lazy: ...

    def __getitem__(self, place: int | slice) -> Any:
        numbers = self.numbers[place]
        return Lazy(self.draw, numbers) if isinstance(numbers, range) else self.draw(numbers)

    def __iter__(self) -> Iterator[Any]:
        return map(self.draw, self.numbers)

    def map(self, change: Callable[[Any], Any]) -> Lazy:
        """These batches, with `change` applied to each one when it is drawn."""
        draw = self.draw
        return Lazy(lambda number: change(draw(number)), self.numbers)


def map_batches(batches: Sequence[Any], change: Callable[[Any], Any]) -> Sequence[Any]:
    """Apply `change` to each batch: to a list at once, to a Lazy sequence when a batch is drawn."""
    return batches.map(change) if isinstance(batches, Lazy) else [change(batch) for batch in batches]
