"""Rules about the order of ops that a system runs.

Systems on the suite's engine run the schedule of their config. A user's system that does so sets
`system.supports_schedules: true`. Other systems have a fixed order. Their YAML names its class as `system.order`, and
`schedule` must be the same class, so that every reader of `schedule` has the order that runs. The order of a user's
system may take parameters, which are the other keys of `schedule`; the orders of the suite's peers take none.
`system.processes` and `system.requires_full_pipeline` limit the grids and batches of the order.
"""

from __future__ import annotations

from suite.config.locate import ROOTS
from suite.config.run import RunConfig
from suite.core.errors import UnknownName, Unsupported

PYTORCH = "baselines.torch_pipelining.TorchPipelining"
PIPELINES = {  # by name of a pipeline of PyTorch's (system.schedule): the suite's schedule of its order, and the system
    "ScheduleGPipe": ("baselines.gpipe.GPipe", "torch_gpipe"),
    "Schedule1F1B": ("suite.schedule.OneFOneB", "torch_1f1b"),
}


def pytorch_pipeline_has_its_order(config: RunConfig) -> None:
    """The pipeline of PyTorch's that system.schedule names runs system.order."""
    system = config.system
    if system.target != PYTORCH:
        return
    pipeline, order = system.more.get("schedule"), system.order
    if pipeline not in PIPELINES:
        raise UnknownName("system.schedule", str(pipeline), PIPELINES)
    expected, name = PIPELINES[pipeline]
    if order != expected:
        raise Unsupported(
            "system.schedule",
            pipeline,
            what=f"system.schedule={pipeline} with system.order={order}",
            rule=f"PyTorch's {pipeline} runs {expected}",
            legal=f"system.order={expected}" if order is None else f"system={name}",
        )


def schedule_is_the_systems_own(config: RunConfig) -> None:
    """A system that brings its own order has no other schedule."""
    system, schedule = config.system, config.schedule.target
    if system.brings_order and schedule != system.order:
        of_pytorch = dict(PIPELINES.values()) if system.target == PYTORCH else {}
        raise Unsupported(
            "schedule",
            schedule,
            what=f"schedule={schedule} under system={system.name}",
            rule=f"{system.name} brings its own order, {system.order}",
            legal=f"system={of_pytorch.get(schedule, 'axonn')}",
        )


def order_of_peer_has_no_parameters(config: RunConfig) -> None:
    """The order of a system that the suite compares with cannot be changed."""
    system, arguments = config.system, config.schedule.arguments
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
    batch, stages = config.batch, config.grid.inter
    count = config.microbatches if microbatches is None else microbatches
    if config.system.requires_full_pipeline and count < stages:
        counted = f"{count} {'microbatch' if count == 1 else 'microbatches'}"
        sizes = f"batch.size={batch.size}, batch.microbatch={batch.microbatch}"
        raise Unsupported(
            "batch.microbatch",
            batch.microbatch,
            what=f"system={config.system.name} with {counted} ({sizes}) on grid.inter={stages} stages",
            rule="it requires at least as many microbatches as stages",
            legal=_filling(config) if microbatches is None else f"draw.microbatches={stages}",
        )


def _filling(config: RunConfig) -> str:
    """A batch with as many microbatches per replica as stages: of smaller microbatches where there are any."""
    batch, grid = config.batch, config.grid.build()
    samples = batch.size // grid.data
    sizes = [size for size in range(samples // grid.inter, 0, -1) if samples % size == 0]
    return f"batch.microbatch={sizes[0]}" if sizes else f"batch.size={batch.microbatch * grid.size}"


def check_order(config: RunConfig, microbatches: int | None = None) -> None:
    """Raises InvalidRequest for a schedule other than the order that the system brings, and for a grid or a batch that
    its order does not serve. microbatches: as in `microbatches_fill_pipeline`."""
    pytorch_pipeline_has_its_order(config)
    schedule_is_the_systems_own(config)
    order_of_peer_has_no_parameters(config)
    grid_has_systems_processes(config)
    microbatches_fill_pipeline(config, microbatches)
