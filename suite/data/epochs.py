"""Order of the samples of a finite data set: each once per epoch, determined by seed and batch number."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from suite.core.errors import refuse


@lru_cache(maxsize=4)
def order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Permutation of `count` positions. It uses the generator's raw stream, which numpy keeps across releases."""
    raw = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(epoch,))).random_raw(count)
    return np.argsort(raw, kind="stable")


def places(count: int, number: int, *, size: int, seed: int) -> list[int]:
    """Positions of the samples of batch `number` in a data set of `count` samples.

    An epoch contains each sample once, in an order drawn from (seed, epoch). A batch continues where the one before it
    ended.
    """
    odd = min(seed, number, size - 1) < 0
    refuse([(odd, f"seed={seed}, batch {number} of {size}", "not negative, and at least 1")])
    at = range(number * size, (number + 1) * size)
    return [int(order(count, seed, place // count)[place % count]) for place in at]
