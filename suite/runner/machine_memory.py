"""Memory check of a run before its ranks start.

The predicted memory of all processes on one node must not exceed the memory of the machine, nor the limit of this
process's control group. Free memory is not considered, because it changes all the time. Predictions are lower bounds,
so an accepted run may still run out of memory; `launch.memory_limit` then ends only the rank that exceeds it. The
memory of a CUDA device is not checked: a rank that exceeds it ends alone, with the outcome `oom`.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.core.units import si
from suite.data.graphs.synthetic import SyntheticGraph
from suite.runner import estimate
from suite.runner.executors import registry
from suite.runner.launch.launch_command import place_ranks

# measured bytes of a rank before it trains: with torch loaded, and without
TORCH, PLAIN = 150_000_000, 14_000_000
ENTRY = 2 * (4 + 4)  # bytes per edge: index and weight, in the adjacency matrix and in the normalized matrix
CGROUPS = Path("/sys/fs/cgroup")


def check_memory(config: RunConfig) -> None:
    """Raises InvalidRequest if the processes of one node need more memory than it has.

    Jobs of a scheduler run on another machine, which checks them.
    """
    launch, executor = config.launch, config.executor
    if not launch.memory_check or launch.submit:
        return
    graphs, limit = graph_bytes(config), machine_limit()
    ranks = rank_bytes(config) if executor.starts_ranks else []
    per_node = place_ranks(len(ranks), launch)[1] if ranks and launch.launcher == "srun" else len(ranks)
    total = graphs + max((sum(ranks[i : i + per_node]) for i in range(0, len(ranks), per_node or 1)), default=0)
    if total > limit:
        graph = f"graph={config.graph.name}" if config.graph else f"executor={executor.name}"
        what = f"model={config.model.name}" if executor.trains and not executor.reads_graphs else graph
        raise InvalidRequest(
            f"{what}: at least {si(total, 'B')} of memory for {per_node} ranks{' and the graph' if graphs else ''}",
            rule=f"this machine, or the control group of this process, has {si(limit, 'B')}",
            legal="a smaller model or batch, more nodes, or launch.memory_check=false",
        )


def rank_bytes(config: RunConfig) -> list[int]:
    """Bytes of each rank in host memory, in rank order."""
    executor = config.executor
    if (stub := registry.rank_stub(executor)) is not None:
        base = TORCH if executor.loads_torch else PLAIN
        return [base + extra for extra in stub.bytes_per_rank(config)]
    ranks = training_bytes(config)
    return [TORCH + sum(ranks)] if executor.one_process else [TORCH + rank for rank in ranks]


def training_bytes(config: RunConfig) -> list[int]:
    """Peak bytes of each rank that trains, in host memory; zeros without a formula for the model.

    A system without a formula for its layout stores a weight and a gradient per replica, at least.
    """
    size, cuda = config.grid.build().size, config.launch.device == "cuda"
    try:
        if config.system.has_memory_model:
            return [each.layout.bytes(home="host") + each.peak * (not cuda) for each in estimate.budgets(config)]
        width = estimate.WIDTH[config.precision.half or config.model.dtype]
        entries = sum(layer.parameters for layer in config.network().shapes(width))
        density = (1 - config.pruning.sparsity) if config.pruning.ticket else 1.0
        return [0 if cuda else round(density * entries * 2 * width * config.grid.data) // size] * size
    except Exception:  # no formula for this kind of model, or a fault of its shape, which the run reports
        return [0] * size


def graph_bytes(config: RunConfig) -> int:
    """Bytes of a synthetic graph in the parent of a full-graph run. The size of a file is unknown before reading."""
    graph = config.graph.source.build() if config.graph else None
    if not isinstance(graph, SyntheticGraph):
        return 0
    return round(graph.vertices * (graph.degree * ENTRY + graph.features * 4))


def machine_limit() -> int:
    """Bytes of memory of the machine, or the limit of this process's control group if that is less."""
    total = int(psutil.virtual_memory().total)
    return min([total, *cgroup_limits(Path("/proc/self/cgroup"), CGROUPS)])


def cgroup_limits(membership: Path, mounted: Path) -> list[int]:
    """Memory limits in bytes of a process's control groups (version 1 or 2) and of the groups around them.

    Args:
        membership: The process's /proc/PID/cgroup, with lines ID:CONTROLLERS:PATH.
        mounted: Folder at which the groups are mounted.
    """
    limits: list[int] = []
    for line in membership.read_text(encoding="utf-8").splitlines() if membership.is_file() else ():
        group = line.split(":", 2)[-1].lstrip("/")
        for name in (f"memory/{group}/memory.limit_in_bytes", f"{group}/memory.max"):
            file = mounted / name
            for folder in file.parents:
                with suppress(OSError, ValueError):  # no such file, or no limit: `max`
                    limits.append(int((folder / file.name).read_text(encoding="ascii")))
    return limits
