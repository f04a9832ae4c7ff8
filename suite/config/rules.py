"""Rules between the keys of a configuration.

`check` calls the rules in an order, because a user sees the first broken rule. A rule that an object keeps (a schedule,
a policy, a layout, a transport) is called here and stands there. The rules load no torch, so a wrong command ends
before ranks start or a job is queued; the engine refuses the same combinations for Python users.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from suite.comm.world import check_transport, launcher_kind
from suite.config.launch import Launch
from suite.config.locate import locate
from suite.config.modules import source_module
from suite.config.places import check_parts
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.core.experiment import BATCHES, GRID, RANKS, SYSTEM
from suite.core.keys import in_config_keys
from suite.core.protocols import Schedule
from suite.core.units import most_sparse
from suite.core.values import is_number
from suite.engine.guards import asynchronous
from suite.memory.checkpointing import resolve_interval
from suite.pruning.validation import LARGEST, REACHED
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
        _check_learning_rate(config)
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
    _check_learning_rate(config)
    _check_states(config)
    _check_pruning(config)
    check_streams(config)
    _check_streaming(config)
    check_schedule(config.schedule.build(), config.grid.inter, config.flush_interval())
    _check_data(config)


def _check_plugins(config: RunConfig) -> None:
    """Each class has the type that its place requires, takes its arguments, and serves the executor."""
    check_parts(config)
    executor, system, model = config.executor, config.system, config.model
    name = _executor_name(config)
    if system.graphs and not executor.reads_graphs:
        rule = f"a system that trains one whole graph, which executor={name} does not read"
        raise Unsupported("system", system.name, rule, "executor=full_graph")
    shape = locate(model.shape.target)
    if executor.kind != "simulated" and isinstance(shape, type) and issubclass(shape, LanguageModel):
        rule = f"a LanguageModel has a shape and no layers, so executor={name} cannot run it"
        raise Unsupported("model", model.name, rule, "executor=simulated")
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
        rule, legal = f"at least the {ranks} ranks of {config.grid.typed}", f"launch.max_ranks={ranks}"
        raise InvalidRequest("launch.max_ranks", launch.max_ranks, rule, f"{legal}, or a smaller grid")
    if timeout is not None and timeout < 2 * interval:
        rule = f"null, or at least twice launch.heartbeat_interval={interval:g} seconds"
        raise InvalidRequest("launch.heartbeat_timeout", timeout, rule, f"launch.heartbeat_timeout={12 * interval:g}")
    if launch.launcher == "srun":
        check_nodes(launch, ranks)
    launcher = launcher_kind(launch.launcher, launch.mpi)
    check_transport(comm.transport, comm.order, device=launch.device, launcher=launcher)
    if launch.launcher == "torchrun" and launch.binding != "none":
        rule = "mpiexec and srun bind ranks, and torchrun does not"
        raise Unsupported("launch.binding", launch.binding, rule, "launch.binding=none")
    if launch.launcher == "torchrun" and ((launch.nodes or 1) > 1 or (launch.tasks_per_node or ranks) < ranks):
        rule = "mpiexec or srun for ranks on several nodes, as torchrun starts them on one"
        raise Unsupported("launch.launcher", launch.launcher, rule, "launch.launcher=srun")
    if launch.device == "cuda" and launch.memory_limit is not None:
        rule = "with launch.device=cuda null, because CUDA reserves the address space of all its devices"
        raise Unsupported("launch.memory_limit", launch.memory_limit, rule, "launch.memory_limit=null")
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
        raise Unsupported("system", system.name, rule, legal)


def schedule_of(config: RunConfig) -> Schedule:
    """The schedule that the system's ranks run. Raises Unsupported if it is unknown, and as `check_order`."""
    system = config.system
    if not system.runs_schedule and not system.orders:
        rule = f"the schedule that the ranks of {system.name} run, as they do not run that of the config"
        legal = "+system.orders.NAME._target_=CLASS, or system.supports_schedules=true where its ranks run the schedule"
        raise Unsupported("system.orders", None, rule, legal)
    check_order(config)
    return config.schedule.build()


# -- batch and network over ranks --------------------------------------------------------------------------------------


def check_tensor(config: RunConfig) -> None:
    """Only some systems split layers over ranks."""
    if config.grid.tensor != 1 and not config.system.tensor:
        raise Unsupported("grid.tensor", config.grid.tensor, f"{config.system.name} splits no layer", "grid.tensor=1")


def check_microbatches(config: RunConfig) -> None:
    """Each replica has a whole number of microbatches."""
    size, microbatch, data = config.batch.size, config.batch.microbatch, config.grid.data
    if size % (chunk := microbatch * data):
        rule = f"a multiple of grid.data={data} times batch.microbatch={microbatch}"
        raise InvalidRequest("batch.size", size, rule, f"batch.size={math.ceil(size / chunk) * chunk}")


def _check_fixed_microbatches(config: RunConfig) -> None:
    """A system with a fixed number of microbatches has a batch of as many."""
    expected, batch = config.system.microbatches, config.batch
    if expected is not None and config.microbatches != expected:
        chunk = config.grid.data * expected
        size, rest = divmod(batch.size, chunk)
        rule = f"system={config.system.name} has {expected} microbatches per replica, not {config.microbatches}"
        legal = f"batch.size={chunk * batch.microbatch}" if rest else f"batch.microbatch={size}"
        raise InvalidRequest("batch.microbatch", batch.microbatch, rule, legal)


def _check_network(config: RunConfig) -> None:
    """The system trains such a network, each stage has layers, and microbatches suit its layers."""
    system, batch, schedule, shape = config.system, config.batch, config.schedule, config.network()
    network = type(shape).__name__
    if config.grid.tensor != 1 and not isinstance(shape, Transformer):
        rule = f"only transformer blocks are split, and model={config.model.name} is a {network}"
        raise Unsupported("grid.tensor", config.grid.tensor, rule, "grid.tensor=1")
    if system.transformers and not isinstance(shape, Transformer):
        rule = f"it trains networks of transformer blocks only, and model={config.model.name} is a {network}"
        raise Unsupported("system", system.name, rule, "system=axonn")
    if batch.microbatch < (least := shape.least_microbatch):
        rule = f"at least {least}, because the last batch norms of model.shape.image have one point per image"
        raise InvalidRequest("batch.microbatch", batch.microbatch, rule, f"batch.microbatch={least}")
    split = divide_ranks(shape, homes_of(schedule.build(), config.grid.inter), config.split)
    resolve_interval(config.activation_checkpointing, blocks(shape, split))


# -- training ----------------------------------------------------------------------------------------------------------


def _check_learning_rate(config: RunConfig) -> None:
    rate = config.optimizer.arguments.get("lr", 0.0)
    if not isinstance(rate, Mapping) and not (is_number(rate) and rate >= 0):
        rule = "not negative, or a rate of suite.engine.optim.lr_schedule"
        raise InvalidRequest("optimizer.lr", rate, rule, "optimizer.lr=0.001")


def _check_states(config: RunConfig) -> None:
    """The memory layout holds states of this precision, and the loss scale accepts its arguments."""
    half, scale = config.precision.half, config.precision.loss_scale
    config.memory.layout.build()(entries=1, moments=("moment",), dtype=config.model.dtype, half=half)
    if scale:
        scale.build()


def _check_pruning(config: RunConfig) -> None:
    """The system prunes, the layout compresses the states, and each weight can be indexed and keeps an entry."""
    pruning, system, model, memory = config.pruning, config.system, config.model, config.memory
    if not pruning.ticket:
        return
    if not system.can_prune:
        rule = f"systems on the suite's engine prune, and system={system.name} does not"
        raise Unsupported("pruning", pruning.name, rule, "system=axonn_samo")
    half = config.precision.half
    try:
        memory.layout.build()(entries=2, moments=("moment",), dtype=model.dtype, half=half, kept=1, of=2)
    except (InvalidRequest, TypeError) as error:
        rule = f"compressed states, which memory={memory.name} does not have"
        raise Unsupported("pruning", pruning.name, rule, "memory=samo") from error
    sizes = [size for layer in config.network().shapes() for size in layer.prunable]
    if not sizes:
        raise InvalidRequest("pruning", pruning.name, f"model={model.name} has no weights to prune", "pruning=none")
    if max(sizes) >= LARGEST:
        rule = f"{REACHED}, in each weight; one has {max(sizes)}"
        raise InvalidRequest("pruning", pruning.name, rule, "a narrower model")
    if not round((1 - pruning.sparsity) * min(sizes)):
        rule = f"each weight keeps an entry, and one has {min(sizes)}"
        raise InvalidRequest("pruning.sparsity", pruning.sparsity, rule, f"pruning.sparsity={most_sparse(min(sizes))}")


def _check_checkpoints(config: RunConfig) -> None:
    """Only systems with checkpoints, in ranks of their own, are resumed, and only those on the engine are replayed."""
    executor, system, folder = config.executor, config.system, config.checkpoint.folder
    name = _executor_name(config)
    if folder is not None and (not executor.trains or executor.one_process):
        rule, legal = f"no ranks of a system train under executor={name}", f"executor={name} without checkpoint.folder"
        raise Unsupported("checkpoint.folder", folder, rule, legal)
    if folder is not None and not system.can_resume:
        rule = "only systems on the suite's engine, or with system.supports_checkpoints=true, have checkpoints"
        raise Unsupported("checkpoint.folder", folder, rule, f"executor={name} without checkpoint.folder")
    if executor.one_process and not system.can_stream:
        rule = f"only systems on the suite's engine are replayed, and system={system.name} is not on it"
        raise Unsupported("executor", name, rule, "system=pipeoptim")


def check_streams(config: RunConfig) -> None:
    """Only some systems train without draining between batches."""
    every, system = config.update_interval, config.system
    if every is not None and not system.can_stream:
        rule = f"the suite's engine has streams, and system={system.name} does not"
        raise Unsupported("update_interval", every, rule, "update_interval=null")


def _check_streaming(config: RunConfig) -> None:
    """The weight policy serves the pipeline, and a round fills one that does not drain."""
    optimizer, precision, stages = config.optimizer, config.precision, config.grid.inter
    scale = precision.loss_scale.build() if precision.loss_scale and precision.half else None
    asynchronous.check(
        config.weights.build(),
        config.schedule.build(),
        stages,
        config.update_interval,
        has_momentum=optimizer.target.endswith(".SGD") and bool(optimizer.arguments.get("momentum")),
        layout=config.memory.layout.build()(entries=1, moments=("moment",), half=precision.half),
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
        raise InvalidRequest("measure.batches", measure.batches, rule, legal)


def _check_data(config: RunConfig) -> None:
    """The data are there in their published form, their source can be built, and the network reads their shape."""
    data = config.data
    home = data.source.target.rpartition(".")[0]
    if data.folder is not None:
        locate(f"{home}.check_folder")(data.name, data.folder)
    data.source.check()  # the module of a source may need a package that other data do not need
    source_module(home).check_shape(data.name, data.folder, config.network())
