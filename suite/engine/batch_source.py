"""The user's batches, read one by one as a plain loop reads them.

Every rank reads each batch once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

END: Any = object()  # returned after the last batch


class BatchSource:
    """Batches of one call of `train` or `score`.

    Attributes:
        batches: All batches, if they are a list or tuple.
        length: Number of batches; None if it is not known.
        single: Whether the call takes one batch.
        read: Batches read so far.
        compare_each: Whether ranks compare every batch.
    """

    def __init__(self, batches: Iterable[Any], *, single: bool = False) -> None:
        self.single, self.read, self.compare_each = single, 0, False
        self.batches = batches if isinstance(batches, list | tuple) else None
        self.length = _length(batches)
        self.iterator = iter(batches)

    def next(self) -> Any:
        """The next batch, or END."""
        batch = next(self.iterator, END)
        self.read += batch is not END
        return batch


def _length(batches: Iterable[Any]) -> int | None:
    """The length; None without one. A loader of a data set without a length raises TypeError."""
    if not isinstance(batches, Sized):
        return None
    try:
        return len(batches)
    except TypeError:
        return None
