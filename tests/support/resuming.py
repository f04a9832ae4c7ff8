"""Final state of a run, for a bit-for-bit comparison with a resumed run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from suite.comm.p2p import threads
from suite.conformance.resuming import RankState, rank_state
from suite.core.grid import Grid
from suite.core.protocols import World
from tests.support.cases import Case, engine_of

__all__ = ["COUNTS", "RankState", "batch_of", "engine_of", "rank_state", "trained", "uninterrupted_and_resumed"]

COUNTS = (3, 1, 2, 1)  # microbatches per replica of each batch, on two replicas


def batch_of(case: Case, number: int) -> Any:
    """Batch of that number, of equal size on every grid of at most two replicas."""
    return case.batch(number, COUNTS[number % len(COUNTS)], 2)


def trained(
    case: Case,
    world: World,
    grid: Grid,
    batches: Iterable[int],
    *,
    load: Path | None = None,
    save: Path | None = None,
    **more: Any,
) -> RankState:
    """State of a new engine after it loads a checkpoint, trains on the batches of these numbers, and saves one."""
    engine = engine_of(case, world, grid, **more)
    if load is not None:
        engine.load(load)
    losses = [engine.train_batch(batch_of(case, number)) for number in batches]
    if save is not None:
        engine.save(save)
    state = rank_state(engine, losses)
    engine.close()
    return state


def uninterrupted_and_resumed(
    case: Case,
    grid: Grid,
    folder: Path,
    options: Callable[[], dict[str, Any]],
    *,
    after: int = 2,
    batches: int = 4,
    before: Grid | None = None,
) -> Iterator[tuple[RankState, RankState]]:
    """States of each rank of `grid` (threads) after `batches` batches: of one run, and of one that was saved `after` a
    batch, on the grid `before`, and goes on in new engines. `options` makes the settings of each engine anew."""

    def train(on: Grid, numbers: range, **files: Path) -> list[RankState]:
        return threads.run(on.size, lambda world: trained(case, world, on, numbers, **files, **options()))

    whole = train(grid, range(batches))
    train(before or grid, range(after), save=folder)
    return zip(whole, train(grid, range(after, batches), load=folder), strict=True)
