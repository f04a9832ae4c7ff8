"""Rules between the keys of a configuration.

`check` calls the rules in an order, because a user sees the first broken rule. A rule that an object keeps (a schedule,
a policy, a layout, a transport) is called here and stands there. The rules load no torch, so a wrong command ends
before ranks start or a job is queued; the engine refuses the same combinations for Python users.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NoReturn

from suite.comm.world import check_transport, launcher_kind
from suite.config.base import Settings
from suite.config.experiment import BATCHES, GRID, RANKS, SYSTEM
from suite.config.launch import Launch
from suite.config.locate import locate, module
from suite.config.places import check_parts
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.core.keys import in_config_keys
from suite.core.protocols import Schedule
from suite.core.units import most_sparse
from suite.engine.guards import asynchronous
from suite.memory.checkpointing import resolve_interval
from suite.memory.layout import Layout
from suite.schedule.check import check as check_schedule
from suite.schedule.placement import homes_of
from suite.workload.language_model import LanguageModel
from suite.workload.split import blocks, divide_ranks
from suite.workload.transformer import Transformer


@in_config_keys()
def check(config: RunConfig, executor_accepts: Callable[[RunConfig], None]) -> None:
    """Raises InvalidRequest for the first rule that a configuration breaks, and IllegalSchedule for its schedule.

    executor_accepts: the rules of the executor's own class, which raises InvalidRequest too
    """
    executor = config.executor
    _check_plugins(config)
    if executor.kind == "full_graph":
        executor_accepts(config)
        _check_launch(config)
        return
    check_order(config)
    _check_checkpoints(config)
    if executor.starts_ranks:
        check_tensor(config)
        check_microbatches(config)
        _check_fixed_microbatches(config)
        _check_launch(config)
    if not executor.trains:
        executor_accepts(config)
        return
    _check_network(config)
    layout = _layout(config, entries=1)
    _check_pruning(config)
    check_streams(config)
    _check_streaming(config, layout)
    check_schedule(config.schedule.build(), config.grid.inter, config.flush_interval())
    _check_data(config)


def _refuse(config: RunConfig, key: str, rule: str, legal: str) -> NoReturn:
    """Raises Unsupported for the value of a key, or the choice of a group."""
    value = attrgetter(key)(config)
    if isinstance(value, Settings):
        value = value.plain().get("choice") or value.plain()["name"]
    raise Unsupported(key, value, rule, legal)


def _check_plugins(config: RunConfig) -> None:
    """Each class has the type that its place requires, takes its arguments, and serves the executor."""
    check_parts(config)
    executor, name = config.executor, _executor_name(config)
    if config.system.graphs and not executor.reads_graphs:
        rule = f"it trains one whole graph, which executor={name} does not read"
        _refuse(config, "system", rule, "executor=full_graph")
    shape = locate(config.model.shape.target)
    if executor.kind != "simulated" and isinstance(shape, type) and issubclass(shape, LanguageModel):
        _refuse(config, "model", f"it has no layers, so executor={name} cannot run it", "executor=simulated")
    for place, panel in enumerate(config.experiment.panels):
        for name, special in (("key", (RANKS, GRID, BATCHES)), ("curve", (SYSTEM, GRID))):
            value = str(panel.get(name) or "")
            if value and value not in special and value.partition(".")[0] not in RunConfig.model_fields:
                raise UnknownName(f"experiment.panels.{place}.{name}", value, [*special, *RunConfig.model_fields])


def _executor_name(config: RunConfig) -> str:
    """Name of the executor in messages."""
    kind = config.executor.kind
    return (config.executor.name or kind) if kind in ("plugin", "microbenchmark") else kind


# -- launch ------------------------------------------------------------------------------------------------------------


def _check_launch(config: RunConfig) -> None:
    """The launch has places for the ranks, and its keys fit each other and the transport."""
    launch, comm, pruning = config.launch, config.comm, config.pruning
    ranks = config.executor.ranks or config.grid.build().size
    interval, timeout = launch.heartbeat_interval, launch.heartbeat_timeout
    if ranks > launch.max_ranks:
        rule = f"at least the {ranks} ranks of {config.grid.typed}"
        _refuse(config, "launch.max_ranks", rule, f"launch.max_ranks={ranks}")
    if timeout is not None and timeout < 2 * interval:
        rule = f"null, or at least twice launch.heartbeat_interval={interval:g} seconds"
        _refuse(config, "launch.heartbeat_timeout", rule, f"launch.heartbeat_timeout={12 * interval:g}")
    if launch.launcher == "srun":
        check_nodes(launch, ranks)
    launcher = launcher_kind(launch.launcher, launch.mpi)
    check_transport(comm.transport, comm.order, device=launch.device, launcher=launcher)
    if launch.launcher == "torchrun" and launch.binding != "none":
        _refuse(config, "launch.binding", "mpiexec and srun bind ranks, and torchrun does not", "launch.binding=none")
    if launch.launcher == "torchrun" and ((launch.nodes or 1) > 1 or (launch.tasks_per_node or ranks) < ranks):
        _refuse(config, "launch.launcher", "torchrun starts ranks on one node", "launch.launcher=srun")
    if launch.device == "cuda" and launch.memory_limit is not None:
        rule = "null with launch.device=cuda, because CUDA reserves the address space of all its devices"
        _refuse(config, "launch.memory_limit", rule, "launch.memory_limit=null")
    ticket = pruning.ticket.arguments if pruning.ticket else {}
    draws = {"launch.draws_on": launch.draws_on, "pruning.ticket.draws_on": ticket.get("draws_on")}
    for key, device in draws.items():
        if device == "cuda" and launch.device != "cuda":
            raise InvalidRequest(key, device, "cuda only with launch.device=cuda", f"{key}=cpu")


def check_nodes(launch: Launch, ranks: int) -> None:
    """Raises InvalidRequest unless launch.nodes with launch.tasks_per_node have places for `ranks` ranks."""
    nodes, per_node = launch.nodes, launch.tasks_per_node
    if nodes and per_node and nodes * per_node < ranks:
        rule = f"with launch.tasks_per_node={per_node} at least {ranks} places, one for each rank"
        raise InvalidRequest("launch.nodes", nodes, rule, f"launch.nodes={-(-ranks // per_node)}")


# -- order of a system -------------------------------------------------------------------------------------------------


def check_order(config: RunConfig) -> None:
    """Raises Unsupported for a schedule that the system does not run, and a grid that it does not serve.

    Systems on the suite's engine run the schedule of their config. A user's system that does so sets
    `system.supports_schedules: true`. Other systems have orders of their own. Their YAML lists the schedules of the
    suite with these orders as `system.orders`, and `schedule` must be one of them, so that every reader of `schedule`
    has the order that runs.
    """
    system = config.system
    if system.brings_order:
        system.order_of(config.schedule)
    size, processes = config.grid.build().size, system.processes
    if processes is not None and size != processes:
        rule = f"its number of processes is {processes}, and {config.grid.typed} has {size} ranks"
        legal = "grid.data=1 grid.inter=1 grid.tensor=1" if processes == 1 else f"a grid of {processes}"
        _refuse(config, "system", rule, legal)


def schedule_of(config: RunConfig) -> Schedule:
    """The schedule that the system's ranks run. Raises Unsupported if it is unknown, and as `check_order`."""
    system = config.system
    if not system.supports_schedules and not system.orders:
        rule = f"the schedule that the ranks of {system.name} run, as they do not run that of the config"
        legal = "+system.orders.NAME._target_=CLASS, or system.supports_schedules=true where its ranks run the schedule"
        raise Unsupported("system.orders", None, rule, legal)
    check_order(config)
    return config.schedule.build()


# -- batch and network over ranks --------------------------------------------------------------------------------------


def check_tensor(config: RunConfig) -> None:
    """Only some systems split layers over ranks."""
    if config.grid.tensor != 1 and not config.system.tensor:
        _refuse(config, "grid.tensor", f"{config.system.name} splits no layer", "grid.tensor=1")


def check_microbatches(config: RunConfig) -> None:
    """Each replica has a whole number of microbatches."""
    size, microbatch, data = config.batch.size, config.batch.microbatch, config.grid.data
    if size % (chunk := microbatch * data):
        rule = f"a multiple of grid.data={data} times batch.microbatch={microbatch}"
        _refuse(config, "batch.size", rule, f"batch.size={math.ceil(size / chunk) * chunk}")


def _check_fixed_microbatches(config: RunConfig) -> None:
    """A system with a fixed number of microbatches has a batch of as many."""
    expected, batch = config.system.microbatches, config.batch
    if expected is not None and config.microbatches != expected:
        chunk = config.grid.data * expected
        size, rest = divmod(batch.size, chunk)
        rule = f"{config.system.command} has {expected} microbatches per replica, not {config.microbatches}"
        legal = f"batch.size={chunk * batch.microbatch}" if rest else f"batch.microbatch={size}"
        _refuse(config, "batch.microbatch", rule, legal)


def _check_network(config: RunConfig) -> None:
    """The system trains such a network, each stage has layers, and microbatches suit its layers."""
    batch, schedule, shape = config.batch, config.schedule, config.network()
    if not isinstance(shape, Transformer):
        rule = f"only transformer blocks are split, and model={config.model.name} is a {type(shape).__name__}"
        if config.grid.tensor != 1:
            _refuse(config, "grid.tensor", rule, "grid.tensor=1")
        if config.system.transformers:
            _refuse(config, "system", rule, "system=axonn")
    if batch.microbatch < (least := shape.least_microbatch):
        rule = f"at least {least}, because the last batch norms of model.shape.image have one point per image"
        _refuse(config, "batch.microbatch", rule, f"batch.microbatch={least}")
    split = divide_ranks(shape, homes_of(schedule.build(), config.grid.inter), config.split)
    resolve_interval(config.activation_checkpointing, blocks(shape, split))


# -- training ----------------------------------------------------------------------------------------------------------


def _layout(config: RunConfig, **arguments: Any) -> Layout:
    """The memory layout for the types of this run. Raises InvalidRequest if it does not hold such states."""
    layout = config.memory.layout.build()
    return layout(moments=("moment",), dtype=config.model.dtype, half=config.precision.half, **arguments)


def _check_pruning(config: RunConfig) -> None:
    """The system prunes, the layout compresses the states, and each weight keeps an entry."""
    pruning, system, model, memory = config.pruning, config.system, config.model, config.memory
    if not pruning.ticket:
        return
    if not system.supports_pruning:
        rule = f"systems on the suite's engine prune, and {system.command} does not"
        _refuse(config, "pruning", rule, "system=axonn_samo")
    try:
        _layout(config, entries=2, kept=1, of=2)
    except (InvalidRequest, TypeError):
        _refuse(config, "pruning", f"compressed states, which memory={memory.name} does not have", "memory=samo")
    sizes = [size for layer in config.network().shapes() for size in layer.prunable]
    if not sizes:
        _refuse(config, "pruning", f"model={model.name} has no weights to prune", "pruning=none")
    if not round((1 - pruning.sparsity) * min(sizes)):
        rule = f"each weight keeps an entry, and one has {min(sizes)}"
        _refuse(config, "pruning.sparsity", rule, f"pruning.sparsity={most_sparse(min(sizes))}")


def _check_checkpoints(config: RunConfig) -> None:
    """Only systems with checkpoints, in ranks of their own, are resumed, and only those on the engine are replayed."""
    executor, system, name = config.executor, config.system, _executor_name(config)
    if config.checkpoint.folder is not None and (not executor.trains or executor.one_process):
        rule, legal = f"no ranks of a system train under executor={name}", f"executor={name} without checkpoint.folder"
        _refuse(config, "checkpoint.folder", rule, legal)
    if config.checkpoint.folder is not None and not system.supports_checkpoints:
        rule = "only systems on the suite's engine, or with system.supports_checkpoints=true, have checkpoints"
        _refuse(config, "checkpoint.folder", rule, f"executor={name} without checkpoint.folder")
    if executor.one_process and not system.supports_streaming:
        rule = f"only systems on the suite's engine are replayed, and {system.command} is not on it"
        raise Unsupported("executor", name, rule, "system=pipeoptim")


def check_streams(config: RunConfig) -> None:
    """Only some systems train without draining between batches."""
    if config.update_interval is not None and not config.system.supports_streaming:
        rule = f"the suite's engine has streams, and {config.system.command} does not"
        _refuse(config, "update_interval", rule, "update_interval=null")


def _check_streaming(config: RunConfig, layout: Layout) -> None:
    """The weight policy serves the pipeline, and a round fills one that does not drain."""
    optimizer, precision, stages = config.optimizer, config.precision, config.grid.inter
    scale = precision.loss_scale.build() if precision.loss_scale and precision.half else None
    asynchronous.check(
        config.weights.build(),
        config.schedule.build(),
        stages,
        config.update_interval,
        has_momentum=optimizer.target.endswith(".SGD") and bool(optimizer.arguments.get("momentum")),
        layout=layout,
        tied=config.network().tied,
        clip_norm=optimizer.clip_norm,
        scales_follow_overflows=scale is not None and scale.least != scale.most,
    )
    measure, count = config.measure, config.microbatches
    if config.update_interval is None:
        return
    if (total := count * (measure.discard_first + measure.batches)) < stages:
        rule = f"an asynchronous pipeline fills before it updates: {stages} stages, and {total} microbatches in a round"
        legal = f"measure.batches={math.ceil(stages / count) - measure.discard_first}"
        _refuse(config, "measure.batches", rule, legal)


def _check_data(config: RunConfig) -> None:
    """The data are there in their published form, their source can be built, and the network reads their shape."""
    data = config.data
    home = data.source.target.rpartition(".")[0]
    if data.folder is not None:
        locate(f"{home}.check_folder")(data.name, data.folder)
    data.source.check()  # the module of a source may need a package that other data do not need
    if check_shape := vars(module(home)).get("check_shape"):
        check_shape(data.name, data.folder, config.network())
