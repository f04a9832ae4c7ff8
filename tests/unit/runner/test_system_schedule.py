"""Schedule of a system: the configured schedule, or the fixed order of a third-party system."""

from __future__ import annotations

from typing import Any

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


class FakeStage:
    """A stage of PyTorch's pipelines that records its passes, and computes and sends nothing."""

    def __init__(self, stage: int) -> None:
        self.stage_index, self.passes = stage, list[tuple[Kind, int]]()

    def forward_one_chunk(self, index: int, *_: Any, **__: Any) -> None:
        self.passes.append((Kind.FORWARD, index))

    def backward_one_chunk(self, index: int, **_: Any) -> None:
        self.passes.append((Kind.BACKWARD, index))

    def __getattr__(self, name: str) -> Any:
        return lambda *_: []


@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b"])
def test_pytorch_runs_the_schedule_of_its_system(schedule: str) -> None:
    from torch.distributed import pipelining

    config = resolve(["system=torch_pipelining", f"schedule={schedule}"])
    kind = getattr(pipelining, config.system.order_of(config.schedule))

    class Bare(kind):  # type: ignore[misc]
        def __init__(self, stage: FakeStage, stages: int, microbatches: int) -> None:
            self._stage, self._num_stages, self._n_microbatches, self.scale_grads = stage, stages, microbatches, False

        def _nothing(self, *_: Any) -> None:
            pass

        _initialize_stage = _maybe_compute_loss = _maybe_get_loss = _update_losses = _nothing

        def _check_inputs(self, *_: Any) -> tuple[list[Any], list[Any]]:
            return [()] * self._n_microbatches, [{}] * self._n_microbatches

    for stages in range(1, 5):
        for microbatches in range(stages, 8):
            for number in range(stages):
                stage = FakeStage(number)
                Bare(stage, stages, microbatches)._step_microbatches()
                assert stage.passes == passes(schedule_of(config), number, stages, microbatches)


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
