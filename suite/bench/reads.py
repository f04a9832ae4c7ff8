"""Keys that each executor and each compared system reads.

Every one of them has an entry here. A name covers the keys below it; only parts that are built with all their keys are
named whole. An executor or a system of one's own has no entry, and takes every key. suite.bench.effects refuses what is
given and not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from suite.config.launch import Launch
from suite.config.run import RunConfig
from suite.config.system import ENGINE
from suite.simulate.whatif import by_layers

Keys = frozenset[str]


def below(key: str, names: Iterable[str]) -> bool:
    """Whether `key` is one of `names` or a key below one."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


# -- keys that no result depends on, and that every run takes --------------------------------------------------------

BOOKKEEPING = {
    "reports": "names the folder of records",
    "rerun": "decides which runs are made although they have a record",
    "on_error": "decides whether runs after a failure are made",
    "tag": "ends the label",
    "scale.name": "names a list of experiments for suite.reproduce",
    "scale.reproduce": "lists experiments for suite.reproduce",
    "experiment.name": "names the experiment on the page",
    "experiment.title": "is text of the page",
    "experiment.question": "is text of the page",
    "experiment.paper": "is text of the page",
    "experiment.where": "is text of the page",
    "experiment.reference": "names the run that the page compares with",
    "experiment.seconds": "is the first guess of the time left",
    "experiment.expect": "is judged by the page",
    "experiment.runs": "lists the runs",
    "experiment.panels": "is drawn by the page",
    "experiment.study": "is drawn by the page",
    "experiment.learned": "is drawn by the page",
    "experiment.vendor_peak": "divides on the page",
    "launch.name": "names the launch",
    "launch.python_path": "names folders of modules and configs",
    "launch.submit": "gives the run to a scheduler",
    "launch.memory_check": "decides whether a run may start that this machine cannot hold",
    "executor.name": "names the executor",
    "executor.label": "is the label",
    "executor.sources": "names the code whose change makes a record stale",
    "system.name": "names the system in the record",
    "system.paper": "is text of the page",
    "system.what": "is text of the page",
    "system.budget": "says that the suite predicts the memory of the system",
    "model.name": "names the model",
    "data.name": "names the data set",
    "graph.name": "names the graph",
    "exchange.name": "names the exchange",
    "partitioner.name": "names the partitioner",
    "precision.name": "names the precision",
    "pruning.name": "names the pruning",
    "memory.name": "names the memory layout",
}
CHOICES = {  # groups of which any choice is taken
    "executor": "decides which keys are read",
    "experiment": "names the experiment",
    "scale": "names a list of experiments",
    "launch": "decides whether a scheduler starts the run",
}
DECLARED = {  # of a system: what it can do, by which configs are refused
    f"system.{name}": "says what the system can do, for refusals"
    for name in (
        *("asynchronous", "graphs", "microbatches", "ordered", "prunes", "resumes", "searches", "sparse", "streams"),
        *("tensor", "transformers", "bubble", "order", "processes", "fills"),
    )
}

# -- groups of keys --------------------------------------------------------------------------------------------------

BATCH = ("batch.size", "batch.microbatch")
GRID = ("grid.data", "grid.inter", "grid.tensor")
LAUNCH = tuple(
    f"launch.{name}"
    for name in (
        *("starter", "threads", "binding", "device", "max_ranks", "exclusive", "memory_limit", "deadline", "grace"),
        *("beat", "silence", "mpiexec", "host"),
    )
)
SRUN = ("launch.mpi", "launch.nodes", "launch.tasks_per_node", "launch.cpus_per_task")
SBATCH = tuple(
    f"launch.{name}"
    for name in (
        *("dry_run", "gpus_per_node", "time", "partition", "account", "qos", "constraint", "array_parallelism"),
        *("setup", "extra", "site", "device", "threads", "starter"),
    )
)
MESSAGES = ("comm.transport", "comm.order", "comm.inline", "comm.pair_exchange")
TURNS = tuple(f"measure.{name}" for name in ("warm_up", "turns", "settle", "batches", "deadline"))
SCORES = ("measure.evaluate", "measure.validate")
MODEL = ("model.network", "model.shape", "model.dropout", "model.dtype")
DATA = ("data.source", "data.folder")
GRAPHS = (
    *("graph.source", "partitioner", "seed", "model.shape", "model.order", "model.epoch", "model.dtype"),
    *(f"exchange.{name}" for name in ("oblivious", "replication", "assignment", "form")),
)
RANKS = (*LAUNCH, *SRUN, *TURNS)
PEER = (  # of another framework in the place of the suite's engine
    *("seed", *BATCH, *GRID, *MODEL, *DATA, "optimizer", "precision.half", "update.clip", "checkpoints", *SCORES),
    *("comm.transport", "system._target_"),
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
        "update.every",
        "optimizer",
        "precision.half",
        "precision.loss_scale",
    ),
    *("memory.layout", "split", "checkpoints", "update.bucket", "update.chunk", "update.clip", *SCORES, *MESSAGES),
    *("pruning.ticket", "pruning.sparsity", "pruning.what", "pruning.searches", "system._target_"),
    *("resume.folder", "resume.every", "resume.keep"),
)

SYSTEMS: Mapping[str, Sequence[str]] = {  # by class, of ranks that train
    ENGINE: OF_ENGINE,
    "baselines.sputnik.system.Sputnik": (*OF_ENGINE, "memory.name"),
    "baselines.pytorch.PyTorch": (*PEER, "precision.loss_scale"),
    "baselines.torch_pipelining.TorchPipelining": (
        *(*PEER, "precision.loss_scale", "split"),
        *(f"system.{name}" for name in ("schedule", "data_parallel", "fused")),
    ),
    "baselines.deepspeed_3d.DeepSpeed3D": (
        *(*PEER, "precision.loss_scale", "split"),
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


def _simulated(config: RunConfig) -> Sequence[str]:
    executor, simulation = config.executor, config.system.simulation
    layout = simulation.layout if simulation else None
    prunes = layout is not None and "sparsity" in layout.arguments  # the config says what is pruned
    given = simulation.model_fields_set if simulation else ()
    own = [f"system.simulation.{key}" for key in given if not (prunes and key == "layout")]
    if prunes and config.pruning.ticket:
        own.append("system.simulation.layout._target_")
    common = ("executor.plan", "executor.account", "executor.machine", "executor.stack", "executor.symmetric")
    found: tuple[str, ...] = (*common, "executor._target_", "system.name", "batch.size", *GRID, "schedule")
    found += ("model.shape", "update.every", *own)
    if by_layers(config, executor.more["account"]):
        of_blocks = ("layout", "checkpoints", "sliced", "zero", "ties", "bucket", "coarsening")
        blocks = [f"system.simulation.{key}" for key in of_blocks]
        found = tuple(key for key in found if not below(key, blocks))
        found += ("batch.microbatch", "split", "weights", "memory.layout", "precision.half")
        found += tuple(f"optimizer.{key}" for key in ("_target_", "momentum", "nesterov", "direction"))
        return found
    if executor.more["plan"] == "given":
        found += ("batch.microbatch", "split")
    # whether there is a ticket, and not which one
    ticket = "pruning.ticket._target_" if config.pruning.ticket else "pruning.ticket"
    return (*found, *(("pruning.sparsity", ticket) if prunes else ()))


def _emulated(config: RunConfig) -> Sequence[str]:
    executor = config.executor
    jitter = executor.more.get("jitter") or {}
    smoothed = config.weights.build().smoothed  # it is refused beside most optimizers
    return (
        *(*RANKS, *MESSAGES, *BATCH, *GRID, *_order(config), "system.name", "system._target_", "executor"),
        *(("seed",) if isinstance(jitter, Mapping) and jitter.get("spread") else ()),
        *(("optimizer._target_", "optimizer.momentum") if smoothed else ()),
    )


def _order(config: RunConfig) -> Sequence[str]:
    """The keys of an order of ops without tensors: weights have versions where a pipeline does not drain."""
    return ("schedule", "update.every", *(("weights",) if config.update.every is not None else ()))


def _checked(config: RunConfig) -> Sequence[str]:
    return (*BATCH, "grid.data", "grid.inter", *_order(config), "system.name", "system._target_", "executor")


Reads = Sequence[str] | Callable[[RunConfig], Sequence[str]]
EXECUTORS: Mapping[str, Reads] = {  # by class, of what runs in the place of a system's ranks
    "suite.bench.checked.Checked": _checked,
    "suite.clusters.unit.Unit": (
        *BATCH,
        "grid.data",
        "grid.inter",
        "schedule",
        "update.every",
        "system.name",
        "executor",
    ),
    "suite.simulate.whatif.Simulated": _simulated,
    "suite.gnn.counted.Counted": (*GRAPHS, "grid.data", "system.name", "executor"),
    "suite.analytic.Formulas": ("executor",),
    "suite.clusters.Published": ("executor",),
    "suite.clusters.graph_figures.GraphFigures": ("executor",),
    "suite.bench.emulate.Emulated": _emulated,
    "suite.bench.messages.Messages": (*RANKS, *GRID, "comm.inline", "comm.pair_exchange", "comm.order", "executor"),
    "baselines.sputnik.products.Products": (*RANKS, "seed", "grid.data", "executor"),
}
TRAINING: Mapping[str, Sequence[str]] = {  # of executors whose ranks are a system's, beside what the system reads
    "": (*RANKS, "executor"),
    "suite.gnn.prepare.Prepared": (*RANKS, "executor"),
    "suite.engine.replayed.Replayed": (*RANKS, "executor"),
}


def reads(config: RunConfig) -> Keys | None:
    """The keys that a run of this resolved config reads; None where its executor or its system is nobody's here."""
    executor = config.executor
    name = executor.target or executor.system
    if name is not None:
        if name not in EXECUTORS:
            return None
        listed = EXECUTORS[name]
        found = listed(config) if callable(listed) else listed
    else:
        by, system = executor.prepares or executor.replays or "", config.system.target
        if by not in TRAINING or system not in SYSTEMS:
            return None
        found = (*TRAINING[by], *SYSTEMS[system])
        if by == "suite.engine.replayed.Replayed":
            found = tuple(key for key in found if key not in MESSAGES)
    return frozenset((*found, *(SBATCH + SRUN if scheduled(config.launch) else ())))


def scheduled(launch: Launch) -> bool:
    """Whether a scheduler takes the run, or has: a job is started with the keys by which it was asked for."""
    return launch.submit or "array_parallelism" in launch.model_fields_set
