"""Keys that each executor and each compared system reads.

Each executor and system of the suite has an entry in a table of this module. The name of a group covers all its keys. A
user's own executor or system has no entry and accepts every key. suite.runner.unread_keys refuses overrides of keys
that a run does not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from suite.config.executor import (
    CheckExecutor,
    EmulatedExecutor,
    MicrobenchmarkExecutor,
    PluginExecutor,
    SimulatedExecutor,
)
from suite.config.launch import Launch
from suite.config.locate import TARGET
from suite.config.run import RunConfig
from suite.config.system import ENGINE
from suite.simulate.executor import by_layers

Keys = frozenset[str]


def below(key: str, names: Iterable[str]) -> bool:
    """Whether `key` is one of `names` or a key below one."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


# -- keys without influence on results, which every run accepts ------------------------------------------------------

BOOKKEEPING = {
    "reports": "names the folder of records",
    "rerun": "decides which runs are made although they have a record",
    "on_error": "decides whether runs after a failure are made",
    "tag": "ends the label",
    "scale.name": "names a list of experiments for suite.cli.reproduce",
    "scale.reproduce": "lists experiments for suite.cli.reproduce",
    "scale.league": "decides whether suite.cli.reproduce scores the simulator",
    "experiment.name": "names the experiment on the page",
    "experiment.title": "is text of the page",
    "experiment.question": "is text of the page",
    "experiment.paper": "is text of the page",
    "experiment.paper_ref": "is text of the page",
    "experiment.reference": "names the run that the page compares with",
    "experiment.expected_seconds": "is the first guess of the time left",
    "experiment.expect": "is judged by the page",
    "experiment.runs": "lists the runs",
    "experiment.panels": "is drawn by the page",
    "experiment.study": "is drawn by the page",
    "experiment.vendor_peak": "divides on the page",
    "experiment.together": "decides whether the ranks of all runs are up at the same time",
    "launch.name": "names the launch",
    "launch.python_path": "names folders of modules and configs",
    "launch.submit": "gives the run to a scheduler",
    "launch.scheduler": "names the scheduler of the cluster",
    "launch.memory_check": "decides whether a run may start that this machine cannot hold",
    "executor.name": "names the executor",
    "executor.label": "is the label",
    "executor.sources": "names the code whose change makes a record stale",
    "system.name": "names the system in the record",
    "system.paper": "is text of the page",
    "system.description": "is text of the page",
    "system.has_memory_model": "says that the suite predicts the memory of the system",
    "model.name": "names the model",
    "data.name": "names the data set",
    "graph.name": "names the graph",
    "exchange.name": "names the exchange",
    "partitioner.name": "names the partitioner",
    "precision.name": "names the precision",
    "pruning.name": "names the pruning",
    "memory.name": "names the memory layout",
}
CHOICES = {  # groups of which every choice is legal
    "executor": "decides which keys are read",
    "executor.kind": "decides which keys are read",
    "experiment": "names the experiment",
    "scale": "names a list of experiments",
    "launch": "decides whether a scheduler starts the run",
}
DECLARED = {  # capabilities of a system, which rules read
    f"system.{name}": "says what the system can do, for refusals"
    for name in (
        *("asynchronous", "graphs", "microbatches", "supports_schedules", "supports_pruning", "searches", "sparse"),
        *("tensor", "transformers", "bubble", "order", "processes", "requires_full_pipeline"),
        *("supports_streaming", "supports_checkpoints"),
    )
}

# -- groups of keys --------------------------------------------------------------------------------------------------

BATCH = ("batch.size", "batch.microbatch")
GRID = ("grid.data", "grid.inter", "grid.tensor")
LAUNCH = tuple(
    f"launch.{name}"
    for name in (
        *("launcher", "threads", "binding", "device", "max_ranks", "exclusive", "memory_limit", "deadline", "grace"),
        *("heartbeat_interval", "heartbeat_timeout", "mpiexec", "host"),
    )
)
SRUN = ("launch.mpi", "launch.nodes", "launch.tasks_per_node", "launch.cpus_per_task")
SBATCH = tuple(
    f"launch.{name}"
    for name in (
        *("dry_run", "gpus_per_node", "time", "partition", "account", "qos", "constraint", "array_parallelism"),
        *("setup", "extra", "site", "device", "threads", "launcher"),
    )
)
MESSAGES = ("comm.transport", "comm.order", "comm.eager_bytes", "comm.pair_exchange")
TURNS = tuple(f"measure.{name}" for name in ("warm_up", "rounds", "discard_first", "batches", "deadline"))
SCORES = ("measure.eval_batches", "measure.validate")
MODEL = ("model.network", "model.shape", "model.dropout", "model.dtype")
DATA = ("data.source", "data.folder")
GRAPHS = (
    *("graph.source", "partitioner", "seed", "model.shape", "model.order", "model.epoch", "model.dtype"),
    *(f"exchange.{name}" for name in ("oblivious", "replication", "assignment", "form")),
)
KERNELS = ("kernels.compile", "kernels.accumulate", "kernels.loss_chunk")
RANKS = (*LAUNCH, *SRUN, *TURNS)
PEER = (  # keys of a system with its own engine
    *("seed", *BATCH, *GRID, *MODEL, *DATA, "optimizer", "precision.half", *SCORES),
    *("optimizer.clip_norm", "activation_checkpointing"),
    *("comm.transport", "system._target_", "launch.draws_on"),
)
OF_ENGINE = (
    *(
        "seed",
        *BATCH,
        *GRID,
        *MODEL,
        *DATA,
        "schedule",
        "weights",
        "update_interval",
        "optimizer",
        "precision.half",
        "precision.loss_scale",
    ),
    *("memory.layout", "split", "activation_checkpointing", *SCORES, *MESSAGES),
    *("optimizer.bucket_numel", "optimizer.buckets_per_reduction", "optimizer.clip_norm"),
    *("pruning.ticket", "pruning.sparsity", "pruning.scope", "pruning.searches", "system._target_"),
    *("checkpoint.folder", "checkpoint.every", "checkpoint.keep", *KERNELS, "kernels.fused", "launch.draws_on"),
)

SYSTEMS: Mapping[str, Sequence[str]] = {  # by class, of ranks that train
    ENGINE: OF_ENGINE,
    "baselines.sputnik.system.Sputnik": (*OF_ENGINE, "memory.name"),
    "baselines.pytorch.PyTorch": (*PEER, "precision.loss_scale", *KERNELS, "kernels.fused"),
    "baselines.torch_pipelining.TorchPipelining": (
        *(*PEER, *KERNELS, "precision.loss_scale", "split"),
        *(f"system.{name}" for name in ("schedule", "data_parallel", "fused")),
    ),
    "baselines.deepspeed_3d.DeepSpeed3D": (
        *(*PEER, *KERNELS, "precision.loss_scale", "split"),
        *("system.zero_stage", "system.fused", "system.bucket_entries", "system.contiguous_gradients"),
        *("system.reduce_scatter", "system.partitioned", "system.accumulate", "system.reduce"),
        *("system.disable_python_gc", "system.shm_comm"),
    ),
    "baselines.megatron_lm.MegatronLM": (
        *(*PEER, "precision.loss_scale", "split", "system.reduce", "system.overlap_grad_reduce"),
    ),
    "suite.gnn.train.GraphSystem": (
        *(*GRAPHS, "exchange", "grid.data", "optimizer", "memory.layout", *SCORES, *MESSAGES, "system._target_"),
    ),
}


def _simulated(config: RunConfig, executor: SimulatedExecutor) -> Sequence[str]:
    simulation = config.system.simulation
    layout = simulation.layout if simulation else None
    prunes = layout is not None and "sparsity" in layout.arguments  # the config lists the pruned weights
    settings = simulation.model_fields_set if simulation else ()
    setting_keys = [f"system.simulation.{key}" for key in settings if not (prunes and key == "layout")]
    if prunes and config.pruning.ticket:
        setting_keys.append("system.simulation.layout._target_")
    common = ("executor.plan", "executor.account", "executor.machine", "executor.efficiency", "executor.symmetric")
    keys: tuple[str, ...] = (*common, "system.name", "batch.size", *GRID, "schedule")
    keys += ("model.shape", "update_interval", *setting_keys)
    if by_layers(config, executor.account):
        of_blocks = (
            *("layout", "activation_checkpointing", "scatter_messages", "zero_stage", "tied_embeddings"),
            *("bucket_numel", "buckets_per_reduction"),
        )
        blocks = [f"system.simulation.{key}" for key in of_blocks]
        keys = tuple(key for key in keys if not below(key, blocks))
        keys += ("batch.microbatch", "split", "weights", "memory.layout", "precision.half")
        keys += tuple(f"optimizer.{key}" for key in ("_target_", "momentum", "nesterov", "direction"))
        return keys
    if executor.plan == "given":
        keys += ("batch.microbatch", "split")
    # the simulation depends on whether there is a mask, but not on the method that draws it
    ticket = "pruning.ticket._target_" if config.pruning.ticket else "pruning.ticket"
    return (*keys, *(("pruning.sparsity", ticket) if prunes else ()))


def _emulated(config: RunConfig, executor: EmulatedExecutor) -> Sequence[str]:
    smoothed = config.weights.build().smoothed  # refused with most optimizers
    return (
        *(*RANKS, *MESSAGES, *BATCH, *GRID, *_order(config), "system.name", "system._target_", "executor"),
        *(("seed",) if executor.jitter and executor.jitter.spread else ()),
        *(("optimizer._target_", "optimizer.momentum") if smoothed else ()),
    )


def _order(config: RunConfig) -> Sequence[str]:
    """Keys of an order of ops. Weight versions matter only in a pipeline that does not drain."""
    return ("schedule", "update_interval", *(("weights",) if config.update_interval is not None else ()))


def _checked(config: RunConfig) -> Sequence[str]:
    return (*BATCH, "grid.data", "grid.inter", *_order(config), "system.name", "system._target_", "executor")


PLUGINS: Mapping[str, Sequence[str]] = {  # by class, of executors with kind=plugin
    "suite.papers.pipeoptim.unit_time_executor.UnitTimeExecutor": (
        *BATCH,
        "grid.data",
        "grid.inter",
        "schedule",
        "update_interval",
        "system.name",
        "executor",
    ),
    "suite.runner.executors.folder_of_tests.FolderOfTests": ("launch.device", "executor"),
    "suite.gnn.volume_executor.VolumeExecutor": (*GRAPHS, "grid.data", "system.name", "executor"),
    "suite.papers.common.formula_executor.FormulaExecutor": ("executor",),
    "suite.runner.executors.schedule_grid.ScheduleGrid": ("executor",),
    "suite.papers.common.figure_executor.FigureExecutor": ("executor",),
    "suite.papers.sparse_gnn.figure_executor.GraphFigureExecutor": ("executor",),
}
MICROBENCHMARKS: Mapping[str, Sequence[str]] = {  # by class
    "suite.runner.executors.message_sizes.Messages": (
        *RANKS,
        *GRID,
        "comm.eager_bytes",
        "comm.pair_exchange",
        "comm.order",
        "executor",
    ),
    "suite.microbench.card.Card": (*RANKS, "grid.data", "executor"),
    "suite.papers.samo.layer_products.Products": (*RANKS, "seed", "grid.data", "executor"),
}


def _of_kind(config: RunConfig) -> Sequence[str] | None:
    """Like `reads`, without the keys of a scheduler."""
    match config.executor:
        case CheckExecutor():
            return _checked(config)
        case SimulatedExecutor() as executor:
            return _simulated(config, executor)
        case EmulatedExecutor() as executor:
            return _emulated(config, executor)
        case PluginExecutor(target=target):
            return PLUGINS.get(target)
        case MicrobenchmarkExecutor(target=target):
            return MICROBENCHMARKS.get(target)
    if config.system.target not in SYSTEMS:
        return None
    keys = (*RANKS, "executor", *SYSTEMS[config.system.target])
    return tuple(key for key in keys if key not in MESSAGES) if config.executor.one_process else keys


def reads(config: RunConfig) -> Keys | None:
    """Keys that a run reads; None for a user's own executor or system, whose keys are unknown."""
    keys = _of_kind(config)
    if keys is None:
        return None
    if "optimizer" in keys:  # the update rule and its arguments, without other keys of the group
        rule = (f"optimizer.{name}" for name in (TARGET, *config.optimizer.arguments))
        keys = (*(key for key in keys if key != "optimizer"), *rule)
    return frozenset((*keys, *(SBATCH + SRUN if scheduled(config.launch) else ())))


def scheduled(launch: Launch) -> bool:
    """Whether a scheduler starts the run. A job of a scheduler keeps the keys of its submission."""
    return launch.submit or launch.scheduler is not None
