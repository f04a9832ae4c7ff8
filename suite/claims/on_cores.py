"""Long computations in Python on all cores of the machine."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from suite.core.cores import cores

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
FEW = 64  # items for which no process is started


def map_on_cores(function: Callable[[_Item], _Result], items: Sequence[_Item], few: int = FEW) -> list[_Result]:
    """The results of `function` for all items, in order, from one process per core.

    The processes are forks: `function` must use no threads, and so no torch. Up to `few` items are computed here."""
    if len(items) <= few or cores() == 1:
        return list(map(function, items))
    pool = ProcessPoolExecutor(cores(), get_context("fork"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
    try:
        return list(pool.map(function, items, chunksize=4))
    finally:
        pool.shutdown(cancel_futures=True)
