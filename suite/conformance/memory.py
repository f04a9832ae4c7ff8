"""Law 4: layout bytes equal allocated bytes, and the predicted peak is within 5 % of the counted peak.

Threads and MPI ranks are held to the same prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from suite.config.run import RunConfig
from suite.core.protocols import World
from suite.engine.system import EngineSystem
from suite.runner.estimate import budgets

WITHIN = 0.05


class MemoryCounts(TypedDict):
    """A rank's bytes by kind at the peak and as allocated, and the most passes in flight."""

    held: Mapping[str, int]
    allocated: Mapping[str, int]
    in_flight: int


def counted(world: World, config: RunConfig, made: Any = EngineSystem) -> MemoryCounts:
    """Bytes by kind that the second batch held at most, bytes of states, and the most passes in flight."""
    data, shape = config.data.source.build(), config.model.shape.build()
    system = made(world=world, config=config)
    for number in range(2):
        _, memory = system.memory(data.batch(number, size=config.batch.size, seed=0, shape=shape))
    counts: MemoryCounts = {
        "held": memory,
        "allocated": system.engine.state.allocated(),
        "in_flight": system.engine.peak,
    }
    system.close()
    return counts


def check_counted(config: RunConfig, found: Sequence[MemoryCounts], what: str) -> float:
    """Counts of every rank against the prediction; the largest relative error of the ranks with a full pipeline.

    Short of a core, a message-driven stage holds less than it may, and fewer messages wait for it: then both ends are
    bounds."""
    largest = 0.0
    for rank, (budget, got) in enumerate(zip(budgets(config), found, strict=True)):
        where = f"{what}, rank {rank} of {len(found)}"
        layout = budget.layout.by_kind()
        assert got["allocated"] == layout, f"{where}: allocated {got['allocated']}, laid out {layout}"
        counted = sum(got["held"].values())
        assert got["in_flight"] <= budget.in_flight, f"{where}: {got['in_flight']} in flight of {budget.in_flight}"
        message = f"{where}: predicted {budget.by_kind()}, counted {got['held']}"
        if got["in_flight"] < budget.in_flight or budget.waiting:
            least = replace(budget, in_flight=got["in_flight"], waiting=0).peak
            assert (1 - WITHIN) * least <= counted <= (1 + WITHIN) * budget.peak, message
            continue
        off = budget.peak / counted - 1
        assert abs(off) <= WITHIN, f"{message}: {off:+.1%}"
        largest = max(largest, abs(off))
    return largest
