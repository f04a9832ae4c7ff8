"""Law 4: layout bytes equal allocated bytes, and the predicted peak is within 5 % of the counted peak.

Threads and MPI ranks are compared with the same prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from suite.config.run import RunConfig
from suite.core.protocols import World
from suite.engine.system import EngineSystem
from suite.runner.estimate import budgets

TOLERANCE = 0.05  # relative


class MemoryCounts(TypedDict):
    """Memory of one rank.

    Attributes:
        peak: Bytes at the peak, by kind.
        allocated: Bytes of model states, by kind.
        in_flight: Largest number of passes in flight.
    """

    peak: Mapping[str, int]
    allocated: Mapping[str, int]
    in_flight: int


def count_memory(world: World, config: RunConfig, system_class: type[EngineSystem] = EngineSystem) -> MemoryCounts:
    """Memory that this rank needs for the second batch."""
    data, shape = config.data.source.build(), config.model.shape.build()
    system = system_class(world=world, config=config)
    for number in range(2):
        _, peak = system.memory(data.batch(number, size=config.batch.size, seed=0, shape=shape))
    counts: MemoryCounts = {
        "peak": peak,
        "allocated": system.engine.state.model_states.allocated(),
        "in_flight": system.engine.state.peak_in_flight,
    }
    system.close()
    return counts


def check_memory(config: RunConfig, ranks: Sequence[MemoryCounts], what: str) -> float:
    """Compare the counts of every rank with the prediction.

    A message-driven stage that waits for a core holds fewer passes than it may, and fewer messages wait for it. Its
    peak lies between the predictions for both numbers.

    Returns:
        Largest relative error of the ranks with a full pipeline.
    """
    largest = 0.0
    for rank, (budget, counts) in enumerate(zip(budgets(config), ranks, strict=True)):
        where = f"{what}, rank {rank} of {len(ranks)}"
        layout = budget.layout.by_kind()
        assert counts["allocated"] == layout, f"{where}: allocated {counts['allocated']}, laid out {layout}"
        counted, in_flight = sum(counts["peak"].values()), counts["in_flight"]
        assert in_flight <= budget.in_flight, f"{where}: {in_flight} in flight of {budget.in_flight}"
        message = f"{where}: predicted {budget.by_kind()}, counted {counts['peak']}"
        if in_flight < budget.in_flight or budget.waiting:
            least = replace(budget, in_flight=in_flight, waiting=0).peak
            assert (1 - TOLERANCE) * least <= counted <= (1 + TOLERANCE) * budget.peak, message
            continue
        error = budget.peak / counted - 1
        assert abs(error) <= TOLERANCE, f"{message}: {error:+.1%}"
        largest = max(largest, abs(error))
    return largest
