"""Time to determine an order of ops: the checker, the generators, and torch.distributed.pipelining."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from baselines.gpipe import GPipe
from suite.core.op import FlushInterval, Kind, Op, Place
from suite.core.protocols import Schedule
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.check import check
from tests.support.samples import tell

if TYPE_CHECKING:
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle

STAGES, MICROBATCHES = 8, 64
OWN = "pytest-benchmark's own clock, one process"
# torch's schedule and the suite's that has the same order
PAIRS = {"gpipe": ("ScheduleGPipe", GPipe()), "1f1b": ("Schedule1F1B", OneFOneB())}
LETTER = {"FORWARD": "F", "FULL_BACKWARD": "B"}


@pytest.mark.parametrize("schedule", [MessageDriven(), OneFOneB(), GPipe()], ids=lambda s: type(s).__name__)
def test_checking_a_schedule(benchmark: Any, schedule: Schedule) -> None:
    benchmark.group = f"check {STAGES} stages, {MICROBATCHES} microbatches"
    timeline = benchmark(check, schedule, STAGES, FlushInterval(0, MICROBATCHES, None, 0))
    ops = STAGES * (2 * MICROBATCHES + 1)
    assert len(timeline.slots) == ops
    tell(benchmark, peer=False, timing=OWN, ops=ops, settings="legality, deadlock, activations and version gaps too")


def generated(schedule: Schedule) -> list[list[Op]]:
    """Every stage's order, from the generator of a static schedule."""
    interval, orders = FlushInterval(0, MICROBATCHES, None, 0), []
    for stage in range(STAGES):
        program = schedule.program(Place(stage, STAGES), interval)
        order = []
        (op,) = next(program)
        try:
            while True:
                order.append(op)
                (op,) = program.send(op)
        except StopIteration:
            orders.append(order)
    return orders


def theirs(name: str) -> type[PipelineScheduleSingle]:
    """Torch's schedule of that name: imported here, not in every worker that collects tests."""
    from torch.distributed.pipelining import schedules

    schedule_class: type[PipelineScheduleSingle] = getattr(schedules, name)
    return schedule_class


def constructed(schedule: type[PipelineScheduleSingle]) -> dict[int, list[Any]]:
    """Every stage's order, as torch builds it with the schedule: the only part of a stage that it looks at is given."""
    order = schedule(SimpleNamespace(num_stages=STAGES), MICROBATCHES).pipeline_order  # type: ignore[arg-type]
    assert order is not None
    return order


def passes(order: list[Any]) -> str:
    """F and B, in order: torch's 1F1B numbers the forwards of the last stage from 1, so numbers are not compared."""
    if isinstance(order[0], Op):
        return "".join(op.kind for op in order if op.kind is not Kind.UPDATE)
    return "".join(LETTER[action.computation_type.name] for action in order if computes(action))


def computes(action: Any) -> bool:
    """Neither an idle tick nor a reduction."""
    return action is not None and action.computation_type.name in LETTER


@pytest.mark.parametrize("name", PAIRS)
def test_our_order(benchmark: Any, name: str) -> None:
    benchmark.group = f"order of {name}, {STAGES} stages, {MICROBATCHES} microbatches"
    orders = benchmark(generated, PAIRS[name][1])
    same = [passes(order) for order in constructed(theirs(PAIRS[name][0])).values()]
    assert [passes(order) for order in orders] == same, "another order than torch's: nothing to compare"
    tell(benchmark, peer=False, timing=OWN, settings="the generators of all stages, run to their ends")


@pytest.mark.parametrize("name", PAIRS)
def test_torchs_order(benchmark: Any, name: str) -> None:
    benchmark.group = f"order of {name}, {STAGES} stages, {MICROBATCHES} microbatches"
    orders = benchmark(constructed, theirs(PAIRS[name][0]))
    assert len(orders) == STAGES
    assert all(sum(map(computes, order)) == 2 * MICROBATCHES for order in orders.values())
    tell(benchmark, peer=True, timing=OWN, settings=f"{PAIRS[name][0]}(stage, n_microbatches).pipeline_order")
