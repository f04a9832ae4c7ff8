"""Law 4: layout bytes equal allocated bytes, and the predicted peak is within 5 % of the counted peak.

Threads and MPI ranks are compared with the same prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from suite.config.run import RunConfig
from suite.core.op import Kind, Op
from suite.core.protocols import World
from suite.engine.system import EngineSystem
from suite.runner.estimate import budgets
from suite.schedule.check import memory_fronts
from suite.schedule.placement import homes_of, is_plain
from suite.schedule.torch_csv import ListedSchedule

TOLERANCE = 0.05  # relative


class MemoryCounts(TypedDict):
    """Memory of one rank.

    Attributes:
        peak: Bytes at the peak, by kind.
        allocated: Bytes of model states, by kind.
        in_flight: Largest number of passes in flight in the last batch.
        order: Passes of the last batch in the order in which they ran, counted from microbatch 0.
    """

    peak: Mapping[str, int]
    allocated: Mapping[str, int]
    in_flight: int
    order: Sequence[str]


def count_memory(world: World, config: RunConfig, system_class: type[EngineSystem] = EngineSystem) -> MemoryCounts:
    """Memory that this rank needs for the second batch."""
    data, shape = config.data.source.build(), config.model.shape.build()
    system = system_class(world=world, config=config)
    for number in range(2):
        _, peak = system.memory(data.batch(number, size=config.batch.size, seed=0, shape=shape))
    passes = [op for op, _ in system.engine.passes if op.kind is not Kind.UPDATE]
    first = min(op.index for op in passes)
    counts: MemoryCounts = {
        "peak": peak,
        "allocated": system.engine.state.model_states.allocated(),
        "in_flight": max(map(sum, memory_fronts(passes))),
        "order": [str(op._replace(index=op.index - first)) for op in passes],
    }
    system.close()
    return counts


def check_memory(config: RunConfig, ranks: Sequence[MemoryCounts], what: str) -> float:
    """Compare the counts of every rank with the prediction.

    A message-driven stage that waits for a core holds fewer passes than it may, and fewer messages wait for it. Its
    peak lies between the predictions for both numbers. With several stages per rank or a split backward pass, the
    prediction for the order that ran is compared.

    Returns:
        Largest relative error of the ranks with a full pipeline.
    """
    largest, schedule = 0.0, config.schedule.build()
    ran = budgets(config) if is_plain(schedule) else budgets(config, _order_that_ran(config, ranks))
    for rank, (budget, promised, counts) in enumerate(zip(ran, budgets(config), ranks, strict=True)):
        where = f"{what}, rank {rank} of {len(ranks)}"
        layout = budget.layout.by_kind()
        assert counts["allocated"] == layout, f"{where}: allocated {counts['allocated']}, laid out {layout}"
        counted, in_flight = sum(counts["peak"].values()), counts["in_flight"]
        assert in_flight <= promised.in_flight, f"{where}: {in_flight} in flight of {promised.in_flight}"
        assert budget.peak <= (1 + TOLERANCE) * promised.peak, (
            f"{where}: {budget.peak} bytes in the order that ran, {promised.peak} are promised"
        )
        message = f"{where}: predicted {budget.by_kind()}, counted {counts['peak']}"
        if in_flight < budget.in_flight or budget.waiting:
            least = replace(budget, in_flight=in_flight, waiting=0).peak
            assert (1 - TOLERANCE) * least <= counted <= (1 + TOLERANCE) * budget.peak, message
            continue
        error = budget.peak / counted - 1
        assert abs(error) <= TOLERANCE, f"{message}: {error:+.1%}"
        largest = max(largest, abs(error))
    return largest


def _order_that_ran(config: RunConfig, ranks: Sequence[MemoryCounts]) -> ListedSchedule:
    """Orders of the first replica."""
    pipeline = config.grid.build().pipeline(0)
    orders = tuple(tuple(Op.parse(text) for text in ranks[rank]["order"]) for rank in pipeline)
    return ListedSchedule(orders, homes_of(config.schedule.build(), len(pipeline)))
