"""Schedule of a system: the configured schedule, or the fixed order of a third-party system."""

from __future__ import annotations

import pytest

from suite.config.compose import resolve
from suite.config.rules import schedule_of
from suite.core.op import FlushInterval, Kind, Op, Place
from suite.core.protocols import Schedule
from tests.support.systems import every_system


def passes(schedule: Schedule, stage: int, stages: int, microbatches: int) -> list[tuple[Kind, int]]:
    """Passes of a stage, for a schedule that accepts a single op at a time."""
    program = schedule.program(Place(stage, stages), FlushInterval(0, microbatches, None, 0))
    ops: list[Op] = []
    (op,) = next(program)
    try:
        while True:
            ops.append(op)
            (op,) = program.send(op)
    except StopIteration:
        return [(op.kind, op.index) for op in ops if op.kind is not Kind.UPDATE]


def test_every_system_runs_its_schedule_or_names_its_order() -> None:
    for name, overrides in every_system().items():
        config = resolve(overrides)
        if config.system.graphs:
            continue
        schedule_of(config)
        assert config.system.supports_schedules or config.system.order_of(config.schedule), name


def test_deepspeed_runs_the_schedule_of_its_system() -> None:
    pipe = pytest.importorskip("deepspeed.runtime.pipe.schedule")
    kinds = {pipe.ForwardPass: Kind.FORWARD, pipe.BackwardPass: Kind.BACKWARD}
    schedule = schedule_of(resolve(["system=deepspeed_3d"]))
    for stages in range(1, 5):
        for microbatches in range(1, 8):
            for number in range(stages):
                steps = pipe.TrainSchedule(microbatches, stages, number).steps()
                deepspeed = [kinds[type(command)] for step in steps for command in step if type(command) in kinds]
                ours = passes(schedule, number, stages, microbatches)
                assert deepspeed == [kind for kind, _ in ours]
                for kind in kinds.values():
                    assert [index for pass_kind, index in ours if pass_kind is kind] == list(range(microbatches))
