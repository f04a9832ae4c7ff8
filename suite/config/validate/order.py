"""Rules about the order of ops that a system runs.

Systems on the suite's engine run the schedule of their config. A user's system that does so sets
`system.supports_schedules: true`. Other systems have a fixed order. Their YAML names its class as `system.order`, and
`schedule` must be the same class, so that every reader of `schedule` has the order that runs. The order of a user's
system may take parameters, which are the other keys of `schedule`; the orders of the suite's peers take none, except
the number of stages per rank of PyTorch's interleaved schedules. `system.processes` and `system.requires_full_pipeline`
limit the grids and batches of the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from suite.config.locate import ROOTS
from suite.config.plugins import Plugin
from suite.config.run import RunConfig
from suite.core.errors import UnknownName, Unsupported
from suite.core.protocols import Schedule
from suite.core.values import Json
from suite.schedule.placement import homes_of

PYTORCH = "baselines.torch_pipelining.TorchPipelining"


class Pipeline(NamedTuple):
    """A pipeline schedule of PyTorch's.

    Attributes:
        order: The suite's schedule with its order.
        system: The system that runs it.
        fixed: Arguments of `order` that PyTorch's schedule has; it takes the others.
        rounds: Whether the microbatches are divided into rounds of at least one per rank, all of the same length.
    """

    order: str
    system: str
    fixed: Mapping[str, Json] = MappingProxyType({})
    rounds: bool = False

    def other_value(self, schedule: Plugin[Schedule]) -> str | None:
        """The first argument of `schedule` with another value than PyTorch's; None if there is none."""
        given = {**self.fixed, **_DEFAULTS.get(self.order, {}), **schedule.arguments}
        return next((key for key, value in self.fixed.items() if given.get(key) != value), None)

    def runs(self, schedule: Plugin[Schedule]) -> bool:
        """Whether PyTorch's pipeline has the order of `schedule`."""
        return schedule.target == self.order and self.other_value(schedule) is None


_STAIRCASE = "suite.schedule.Staircase"
_DEFAULTS: Mapping[str, Mapping[str, Json]] = {_STAIRCASE: {"split": False}}  # by order, where PyTorch's may differ
PIPELINES = {  # by name of PyTorch's schedule (system.schedule)
    "ScheduleGPipe": Pipeline("baselines.gpipe.GPipe", "torch_gpipe"),
    "Schedule1F1B": Pipeline("suite.schedule.OneFOneB", "torch_1f1b"),
    "ScheduleInterleaved1F1B": Pipeline(_STAIRCASE, "torch_interleaved", {"lead": 2, "split": False}, rounds=True),
    "ScheduleLoopedBFS": Pipeline("suite.schedule.LoopedBFS", "torch_looped_bfs", {"split": False}),
    "ScheduleInterleavedZeroBubble": Pipeline(
        _STAIRCASE, "torch_interleaved_zero_bubble", {"lead": 1, "split": True}, rounds=True
    ),
    "ScheduleZBVZeroBubble": Pipeline("suite.schedule.ZBV", "torch_zbv", {"split": True}),
    "ScheduleDualPipeV": Pipeline("suite.schedule.DualPipeV", "torch_dual_pipe_v", {"split": True}),
}
PLACED_ARGUMENTS = ("chunks", "lead", "split")  # of the orders above


def _pipeline(config: RunConfig) -> Pipeline | None:
    """The pipeline of PyTorch's that the system runs; None for another system."""
    if config.system.target != PYTORCH:
        return None
    name = config.system.more.get("schedule")
    if name not in PIPELINES:
        raise UnknownName("system.schedule", str(name), PIPELINES)
    return PIPELINES[name]


def pytorch_pipeline_has_its_order(config: RunConfig) -> None:
    """The pipeline of PyTorch's that system.schedule names runs system.order."""
    system, pipeline = config.system, _pipeline(config)
    if pipeline is not None and system.order != pipeline.order:
        name, order = system.more.get("schedule"), system.order
        raise Unsupported(
            "system.schedule",
            name,
            what=f"system.schedule={name} with system.order={order}",
            rule=f"PyTorch's {name} runs {pipeline.order}",
            legal=f"system.order={pipeline.order}" if order is None else f"system={pipeline.system}",
        )


def schedule_is_the_systems_own(config: RunConfig) -> None:
    """A system that brings its own order has no other schedule."""
    system, schedule = config.system, config.schedule
    if system.brings_order and schedule.target != system.order:
        raise Unsupported(
            "schedule",
            schedule.target,
            what=f"schedule={schedule.target} under system={system.name}",
            rule=f"{system.name} brings its own order, {system.order}",
            legal=f"system={_pytorch_system(config) or 'axonn'}",
        )


def _pytorch_system(config: RunConfig) -> str | None:
    """The system that runs the schedule of a config in PyTorch's pipelines; None if there is none."""
    if config.system.target != PYTORCH:
        return None
    return next((pipeline.system for pipeline in PIPELINES.values() if pipeline.runs(config.schedule)), None)


def order_of_peer_has_no_parameters(config: RunConfig) -> None:
    """The order of a system that the suite compares with cannot be changed. PyTorch takes the number of chunks."""
    system, pipeline = config.system, _pipeline(config)
    arguments = dict(config.schedule.arguments)
    if pipeline is not None:
        key = pipeline.other_value(config.schedule)
        if key is not None:
            other, name = _pytorch_system(config), system.more.get("schedule")
            raise Unsupported(
                f"schedule.{key}",
                arguments.get(key),
                what=f"schedule.{key}={arguments.get(key)} under system={system.name}",
                rule=f"PyTorch's {name} has the order of schedule.{key}={pipeline.fixed[key]}",
                legal=f"system={other}" if other else f"schedule.{key}={pipeline.fixed[key]}",
            )
        arguments = {key: value for key, value in arguments.items() if key not in PLACED_ARGUMENTS}
    if system.brings_order and arguments and system.target.partition(".")[0] in ROOTS:
        overrides = {f"schedule.{key}": value for key, value in arguments.items()}
        key, value = next(iter(overrides.items()))
        raise Unsupported(
            key,
            value,
            what=f"{' '.join(f'{key}={value}' for key, value in overrides.items())} under system={system.name}",
            rule=f"the order of {system.name} has no parameters",
            legal="system=axonn",
        )


def grid_has_systems_processes(config: RunConfig) -> None:
    """A system with a fixed number of processes has a grid of as many ranks."""
    processes, grid = config.system.processes, config.grid
    size = grid.build().size
    if processes is not None and size != processes:
        raise Unsupported(
            "system",
            config.system.name,
            what=f"system={config.system.name} on {size} ranks ({grid.typed})",
            rule=f"it has {processes} process",
            legal="grid.data=1 grid.inter=1 grid.tensor=1" if processes == 1 else f"a grid of {processes}",
        )


def microbatches_fill_pipeline(config: RunConfig, microbatches: int | None = None) -> None:
    """Where its order needs it, a system has at least as many microbatches as stages.

    microbatches: per replica, of a drawing; None: the microbatches of the config's batch"""
    if not config.system.requires_full_pipeline:
        return
    ranks, count = config.grid.inter, config.microbatches if microbatches is None else microbatches
    stages = len(homes_of(config.schedule.build(), ranks))
    if count < stages:
        where = f"grid.inter={stages} stages" if stages == ranks else f"{stages} stages of grid.inter={ranks} ranks"
        raise _other_microbatches(
            config, microbatches, where, "it requires at least as many microbatches as stages", stages
        )


def microbatches_fill_rounds(config: RunConfig, microbatches: int | None = None) -> None:
    """PyTorch's interleaved schedules divide the microbatches into rounds of the same length.

    microbatches: as in `microbatches_fill_pipeline`"""
    pipeline = _pipeline(config)
    if pipeline is None or not pipeline.rounds:
        return
    ranks, count = config.grid.inter, config.microbatches if microbatches is None else microbatches
    rounds = max(1, count // ranks)
    if count % rounds:
        rule = f"PyTorch divides them into {rounds} equal rounds of at least one microbatch per rank"
        raise _other_microbatches(config, microbatches, f"grid.inter={ranks} ranks", rule, count - count % rounds)


def _other_microbatches(
    config: RunConfig, microbatches: int | None, where: str, rule: str, legal_count: int
) -> Unsupported:
    """The refusal of a number of microbatches.

    Args:
        microbatches: As in `microbatches_fill_pipeline`.
        where: Stages or ranks, for the message.
        legal_count: Another number of microbatches.
    """
    batch, count = config.batch, config.microbatches if microbatches is None else microbatches
    counted = f"{count} {'microbatch' if count == 1 else 'microbatches'}"
    sizes = f"batch.size={batch.size}, batch.microbatch={batch.microbatch}"
    return Unsupported(
        "batch.microbatch",
        batch.microbatch,
        what=f"system={config.system.name} with {counted} ({sizes}) on {where}",
        rule=rule,
        legal=_batch_of(config, legal_count) if microbatches is None else f"draw.microbatches={legal_count}",
    )


def _batch_of(config: RunConfig, count: int) -> str:
    """A batch of `count` microbatches per replica or more: of smaller microbatches where there are any."""
    batch, grid = config.batch, config.grid.build()
    samples = batch.size // grid.data
    if config.microbatches < count:
        sizes = [size for size in range(samples // count, 0, -1) if samples % size == 0]
        if sizes:
            return f"batch.microbatch={sizes[0]}"
    return f"batch.size={batch.microbatch * grid.data * count}"


def check_order(config: RunConfig, microbatches: int | None = None) -> None:
    """Raises InvalidRequest for a schedule other than the order that the system brings, and for a grid or a batch that
    its order does not serve. microbatches: as in `microbatches_fill_pipeline`."""
    pytorch_pipeline_has_its_order(config)
    schedule_is_the_systems_own(config)
    order_of_peer_has_no_parameters(config)
    grid_has_systems_processes(config)
    microbatches_fill_pipeline(config, microbatches)
    microbatches_fill_rounds(config, microbatches)
