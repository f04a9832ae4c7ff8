"""The user's batches, read one by one as a plain loop reads them.

Every call of the user's code (`len`, `iter`, `next`) runs at the random state that the user's code left, see
engine.random. Each batch is read once, by every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from suite.engine.random_state import user_code

END: Any = object()  # after the last batch


class BatchSource:
    """Batches of one call of `train` or `score`.

    Attributes:
        whole: All of them, if they are a list.
        length: How many there are, None if that is not known.
        exclusive: See random.user_code.
        single: A call that takes one batch.
        taken: Batches that have been read.
        each: Whether ranks compare every one of them.
    """

    def __init__(self, batches: Iterable[Any], *, exclusive: bool = False, single: bool = False) -> None:
        self.exclusive, self.single, self.taken, self.each = exclusive, single, 0, False
        self.whole = batches if isinstance(batches, list | tuple) else None
        with user_code(exclusive=exclusive):
            self.length = _length(batches)
            self.iterator = iter(batches)

    def next(self) -> Any:
        """The next batch, or END."""
        if self.exclusive:
            with user_code(exclusive=True):
                batch = next(self.iterator, END)
        else:
            batch = next(self.iterator, END)
        self.taken += batch is not END
        return batch


def _length(batches: Iterable[Any]) -> int | None:
    """A loader of a data set without a length has none either, and raises TypeError."""
    if not isinstance(batches, Sized):
        return None
    try:
        return len(batches)
    except TypeError:
        return None
