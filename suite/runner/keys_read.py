"""Config groups and keys that a run reads; overrides of other keys are refused, because they would change nothing.

Executors (`reads`) and systems (SystemConfig.reads) declare them. A user's own class without a declaration may read
every key. tests/unit/runner/test_effects.py varies each key under each executor and compares the results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from suite.config.compose import key_of
from suite.config.executor import SimulatedExecutor
from suite.config.optimizer import OWN_KEYS
from suite.config.protocols import declared
from suite.config.refusals import every_key
from suite.config.run import RunConfig
from suite.config.system import SystemConfig
from suite.core.errors import Unsupported
from suite.core.values import Json, leaves
from suite.runner.executors import registry
from suite.schedule.placement import is_split

# keys without influence on results, which every run accepts
BOOKKEEPING = (
    *("reports", "rerun", "on_error", "tag", "scale", "experiment"),
    *("launch.python_path", "launch.submit", "launch.scheduler", "launch.memory_check"),
    *(
        "executor.label",
        "executor.sources",
        "system.paper",
        "system.description",
        "system.choice",
        "system.has_memory_model",
    ),
    *(key for key in every_key(RunConfig) if key.endswith(".name")),
)
CHOICES = ("executor", "launch")  # groups of which every choice is legal
DECLARED = tuple(f"system.{name}" for name in SystemConfig.model_fields if name not in ("target", "simulation"))
SRUN = ("launch.mpi", "launch.nodes", "launch.tasks_per_node", "launch.cpus_per_task")
SBATCH = (
    *("launch.gpus_per_node", "launch.time", "launch.partition", "launch.account", "launch.qos"),
    *("launch.constraint", "launch.array_parallelism", "launch.setup", "launch.extra"),
)
BUCKETS = ("optimizer.bucket_numel", "optimizer.buckets_per_reduction")
# keys, the condition under which a run reads them, and an override that meets it
CONDITIONS: Sequence[tuple[Sequence[str], Callable[[RunConfig], object], str]] = (
    (("pruning.sparsity", "pruning.scope"), lambda run: run.pruning.ticket, "pruning=magnitude"),
    (("precision.loss_scale",), lambda run: run.precision.half, "precision=fp16"),
    (("checkpoint.every", "checkpoint.keep"), lambda run: run.checkpoint.folder, "checkpoint.folder=FOLDER"),
    (("measure.validate",), lambda run: run.measure.eval_batches, "measure.eval_batches=2"),
    (("weights",), lambda run: run.update_interval or run.executor.trains, "update_interval=1"),
    (("executor.ticks.weight",), lambda run: is_split(run.schedule.build()), "system=pipeline schedule=zb_h1"),
    (("executor.prediction", "executor.copy"), lambda run: run.update_interval, "update_interval=1"),
    (BUCKETS, lambda run: run.system.supports_schedules, "system=axonn"),
    (("optimizer.clip_norm",), lambda run: not run.system.graphs, "system=axonn"),
    (("split",), lambda run: run.grid.inter > 1, "grid.inter=2"),
    (("comm",), lambda run: (run.executor.ranks or run.grid.build().size) > 1, "grid.data=2"),
    (SRUN, lambda run: run.launch.launcher == "srun" or run.launch.submit, "launch.launcher=srun"),
    (("launch.mpiexec",), lambda run: run.launch.launcher == "mpiexec", "launch.launcher=mpiexec"),
    (SBATCH, lambda run: run.launch.submit or run.launch.scheduler, "launch=slurm"),
)
ELSEWHERE = (  # keys that only another executor or command reads, and an override that chooses one
    (("machine", "efficiency", "system.simulation"), "executor=simulated"),
    (("graph", "partitioner", "exchange"), "system=sparsity_aware executor=full_graph"),
)
ACCOUNTS = ({"executor.plan": "given"}, {"executor.account": "layers"}, {"executor.account": "blocks"})


def below(key: str, names: Iterable[str]) -> bool:
    """Whether `key` is one of `names` or a key below one."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def overlaps(key: str, names: Iterable[str]) -> bool:
    """Whether `key` is one of `names`, a key below one, or a group that contains one."""
    return any(f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in names)


def reads(config: RunConfig, unresolved: Mapping[str, Json] | None = None) -> frozenset[str] | None:
    """Groups and keys that a run reads; None if its executor or system does not declare them.

    Args:
        config: Configuration of the run.
        unresolved: Its keys with interpolations as written. A key is read where a key that is read interpolates it.
    """
    executor = config.executor
    runner = registry.rank_stub(executor) if executor.starts_ranks else registry.without_ranks(executor)
    keys = config.system.reads if runner is None else declared(runner, config)
    if keys is None:
        return None
    ranks = executor.starts_ranks or config.launch.submit or config.launch.scheduler
    read = {"executor", *keys, *(("launch",) if ranks else ()), *(("measure",) if executor.starts_ranks else ())}
    written = [(key, value) for key, value in leaves(unresolved or {}) if isinstance(value, str) and "${" in value]
    for _ in written:  # an interpolated key may itself interpolate keys
        for key, value in written:
            if below(key, read) and not below(key, BOOKKEEPING):
                read.update(re.findall(r"[A-Za-z_]\w*(?:\.\w+)*", value))
    return frozenset(read)


def unread(override: str, config: RunConfig, unresolved: Mapping[str, Json]) -> Unsupported | None:
    """The refusal of an override that changes nothing in a run; None if the run reads its key."""
    group, _, package = key_of(override).partition("@")
    key = package or group.replace("/", ".")
    if (legal := instead(key, config, unresolved)) is None:
        return None
    executor = config.executor
    subject = config.system.command if executor.trains else f"executor={executor.name or executor.kind}"
    rule = f"an override changes its run, and this run with {subject} does not read the key"
    return Unsupported(override, rule=rule, legal=legal)


def instead(key: str, config: RunConfig, unresolved: Mapping[str, Json]) -> str | None:
    """An override under which a run reads `key`; None where the run reads it, or it is bookkeeping."""
    read = reads(config, unresolved)
    if read is None or key in CHOICES or below(key, [*BOOKKEEPING, *DECLARED]):
        return None
    if key == "optimizer":  # its choices set the update rule
        read = read.difference(f"optimizer.{name}" for name in OWN_KEYS)
    if overlaps(key, read):
        return next((legal for keys, holds, legal in CONDITIONS if below(key, keys) and not holds(config)), None)
    for keys, legal in ELSEWHERE:
        if below(key, keys):
            return legal
    for account in ACCOUNTS if isinstance(config.executor, SimulatedExecutor) else ():
        if overlaps(key, reads(config.changed(account), unresolved) or ()):
            return "".join(f"{name}={value}" for name, value in account.items())
    return (
        "executor=real" if config.executor.kind != "real" and not config.system.graphs else "system=axonn executor=real"
    )
