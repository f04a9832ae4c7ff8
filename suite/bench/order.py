"""Which schedule the ranks of a system run.

Systems on the suite's engine run the schedule of their config; a system of one's own that does says
`system.ordered: true`. Other systems bring their own order. Their YAML names it as `system.order`, a class path, and
`schedule` is the same class: every reader of `schedule` then has the order that runs, and another class is refused.
The order of a user's system may have parameters, the other keys of `schedule`; those of the suite's peers have none.
`system.processes` and `system.fills` say which grids and batches the order serves.
"""

from __future__ import annotations

from suite.bench import streamed
from suite.bench.reads import SYSTEMS
from suite.config.parallel import Batch
from suite.config.run import RunConfig
from suite.config.system import System
from suite.core.errors import UnknownName, Unsupported
from suite.core.grid import Grid
from suite.core.protocols import Schedule

PYTORCH = "baselines.torch_pipelining.TorchPipelining"
PIPELINES = {  # by name of a pipeline of PyTorch's (system.schedule): the suite's schedule of its order, and the system
    "ScheduleGPipe": ("baselines.gpipe.GPipe", "torch_gpipe"),
    "Schedule1F1B": ("suite.schedule.OneFOneB", "torch_1f1b"),
}


def ordered(config: RunConfig) -> bool:
    """Whether the system's ranks run the schedule of the config."""
    system = config.system
    return system.runs_schedule


def brought(config: RunConfig) -> bool:
    """Whether the system brings its own order, and names it."""
    return not ordered(config) and config.system.order is not None


def check(config: RunConfig, microbatches: int | None = None) -> None:
    """Raises Unsupported for a schedule other than the order that the system brings, and for a grid or a batch that its
    order does not serve. microbatches: per replica, in a drawing; without it the config's batch has them."""
    system, grid = config.system, config.grid.build()
    name = system.name
    if system.target == PYTORCH:
        _check_pipeline(system)
    if brought(config):
        _check_schedule(config)
    if (processes := system.processes) is not None and grid.size != processes:
        legal = "grid.data=1 grid.inter=1 grid.tensor=1" if processes == 1 else f"a grid of {processes}"
        raise Unsupported(
            f"system={name} on {grid.size} ranks ({config.grid.typed})", rule=f"it has {processes} process", legal=legal
        )
    count = streamed.microbatches(config) if microbatches is None else microbatches
    if system.fills and count < grid.inter:
        raise Unsupported(
            f"system={name} with {_counted(config.batch, count)} on grid.inter={grid.inter} stages",
            rule="it requires at least as many microbatches as stages",
            legal=_filling(config.batch, grid) if microbatches is None else f"draw.microbatches={grid.inter}",
        )


def _counted(batch: Batch, count: int) -> str:
    name = "microbatch" if count == 1 else "microbatches"
    return f"{count} {name} (batch.size={batch.size}, batch.microbatch={batch.microbatch})"


def _check_pipeline(system: System) -> None:
    """The pipeline of PyTorch's that system.schedule names runs system.order."""
    chosen, order = str(system.more["schedule"]), system.order
    if chosen not in PIPELINES:
        raise UnknownName("system.schedule", chosen, PIPELINES)
    runs, name = PIPELINES[chosen]
    if order != runs:
        raise Unsupported(
            f"system.schedule={chosen} with system.order={order}",
            rule=f"PyTorch's {chosen} runs {runs}",
            legal=f"system.order={runs}" if order is None else f"system={name}",
        )


def _check_schedule(config: RunConfig) -> None:
    """The schedule of a system that brings its own order is that order."""
    system, schedule = config.system, config.schedule.arguments
    name, order, chosen = system.name, system.order, config.schedule.target
    if chosen != order:
        of_pytorch = dict(PIPELINES.values()) if system.target == PYTORCH else {}
        raise Unsupported(
            f"schedule={chosen} under system={name}",
            rule=f"{name} brings its own order, {order}",
            legal=f"system={of_pytorch.get(chosen, 'axonn')}",
        )
    if schedule and system.target in SYSTEMS:
        given = " ".join(f"schedule.{key}={value}" for key, value in schedule.items())
        raise Unsupported(
            f"{given} under system={name}", rule=f"the order of {name} has no parameters", legal="system=axonn"
        )


def _filling(batch: Batch, grid: Grid) -> str:
    """A batch with as many microbatches per replica as stages: of smaller microbatches where there are any."""
    samples = batch.size // grid.data
    sizes = [size for size in range(samples // grid.inter, 0, -1) if samples % size == 0]
    return f"batch.microbatch={sizes[0]}" if sizes else f"batch.size={batch.microbatch * grid.size}"


def schedule_of(config: RunConfig, microbatches: int | None = None) -> Schedule:
    """The schedule that the system's ranks run. Raises Unsupported for a system whose order nobody has named, and for
    what `check` refuses."""
    if not ordered(config) and config.system.order is None:
        raise Unsupported(
            f"the order of system={config.system.name}",
            rule="its ranks do not run the schedule of the config, and system.order names no other",
            legal="system.order=CLASS.PATH, or system.ordered=true where its ranks run the schedule",
        )
    check(config, microbatches)
    return config.schedule.build()
