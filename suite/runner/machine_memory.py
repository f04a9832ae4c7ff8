"""Memory check of a run before its ranks start.

The predicted memory of all processes on one node must not exceed the memory of the machine, nor the limit of this
process's control group. Free memory is not considered, because it changes all the time. Predictions are lower bounds,
so an accepted run may still run out of memory; `launch.memory_limit` then ends only the rank that exceeds it. On CUDA,
the memory of each rank must also fit its device, if `nvidia-smi` reports the size of the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from suite.config.locate import TARGET, locate
from suite.config.plugins import build, plugins_in
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.core.units import si
from suite.data.batches import AHEAD, KEPT
from suite.data.graphs.synthetic_attributes import SyntheticGraph
from suite.memory.optimizer_states import states_of
from suite.runner import estimate
from suite.runner.executors import registry
from suite.runner.launch.launch_command import place_ranks
from suite.runner.provenance import query_gpus
from suite.workload.throughput_unit import counted_in

# measured bytes of a rank before it trains: with torch loaded, and without
TORCH, PLAIN = 150_000_000, 14_000_000
TOKEN, PIXEL = 8, 4  # bytes of a token id, and of a colour of a pixel, in a batch
ENTRY = 2 * (4 + 4)  # bytes per edge: index and weight, in the adjacency matrix and in the normalized matrix
CGROUPS = Path("/sys/fs/cgroup")
REMEDY = "a smaller model or batch, more nodes, or launch.memory_check=false"


class MemoryNeed(NamedTuple):
    """Bytes of one process in host memory, and on its CUDA device if it has one."""

    host: int
    device: int = 0


def check_memory(config: RunConfig) -> None:
    """Raises InvalidRequest if the processes of one node need more memory than it has.

    Jobs of a scheduler run on another machine, which checks them.
    """
    launch, executor = config.launch, config.executor
    if not launch.memory_check or launch.submit:
        return
    graphs, limit = graph_bytes(config), machine_limit()
    ranks = rank_needs(config) if executor.starts_ranks else []
    devices = device_limits() if any(rank.device for rank in ranks) else []
    graph = f"graph={config.graph.name}" if config.graph else f"executor={executor.name}"
    what = f"model={config.model.name}" if executor.trains and not executor.reads_graphs else graph
    per_node = place_ranks(len(ranks), launch)[1] if ranks and launch.launcher == "srun" else len(ranks)
    for first in range(0, len(ranks) or 1, per_node or 1):
        node = ranks[first : first + per_node]
        total = graphs + sum(rank.host for rank in node)
        if total > limit:
            what += f": at least {si(total, 'B')} of memory for {len(node)} ranks{' and the graph' if graphs else ''}"
            rule = f"this machine, or the control group of this process, has {si(limit, 'B')}"
            raise InvalidRequest(what, rule=rule, legal=REMEDY)
        for number, (rank, device) in enumerate(zip(node, devices, strict=False)):
            if rank.device > device:
                what += f": at least {si(rank.device, 'B')} on the device of rank {number} of a node"
                raise InvalidRequest(what, rule=f"CUDA device {number} has {si(device, 'B')}", legal=REMEDY)


def rank_needs(config: RunConfig) -> Sequence[MemoryNeed]:
    """Memory of each rank, in rank order."""
    executor, size = config.executor, config.grid.build().size
    if executor.kind == "full_graph":  # the size of each part is unknown before the graph is partitioned
        return [MemoryNeed(TORCH)] * size
    if (stub := registry.rank_stub(executor)) is not None:
        base = TORCH if executor.loads_torch else PLAIN
        return [MemoryNeed(base + extra) for extra in stub.bytes_per_rank(config)]
    base = TORCH + batches_bytes(config)
    ranks = training_bytes(config)
    if executor.one_process:
        ranks = [MemoryNeed(sum(rank.host for rank in ranks), sum(rank.device for rank in ranks))]
    if config.launch.device == "cuda":
        return [MemoryNeed(base + rank.host, rank.device) for rank in ranks]
    return [MemoryNeed(base + rank.host + rank.device) for rank in ranks]


def training_bytes(config: RunConfig) -> list[MemoryNeed]:
    """Peak bytes of each rank that trains; zeros without a formula for the model.

    For a system with a memory layout of its own, a lower bound: every replica stores weights and gradients, optimizer
    states are stored once, and a pruned system may store the remaining entries only.
    """
    size, half, pruning = config.grid.build().size, config.precision.half, config.pruning
    try:
        if config.system.has_memory_model:
            budgets = estimate.budgets(config)
            return [MemoryNeed(budget.layout.bytes(home="host"), budget.peak) for budget in budgets]
        full, width = estimate.WIDTH[config.model.dtype], estimate.WIDTH[half or config.model.dtype]
        entries = sum(layer.parameters for layer in config.network().shapes(width))
        density = (1 - pruning.sparsity) if pruning.ticket else 1.0
        moments = len(states_of(config.optimizer.target, config.optimizer.arguments, predicts=False)) + bool(half)
        states = density * entries * (2 * width * config.grid.data + full * moments)
        return [MemoryNeed(0, round(states) // size)] * size
    except Exception:  # no formula for this kind of model, or a fault of its shape, which the run reports
        return [MemoryNeed(0)] * size


def batches_bytes(config: RunConfig) -> int:
    """Bytes of the batches that a rank draws ahead: those of a round, or a few if a round has many."""
    measure, shape = config.measure, config.network()
    word, count = counted_in(shape)
    sample = PIXEL * shape.pixels if word == "image" else 2 * TOKEN * count
    batch = config.batch.size * sample
    return int(min(max(measure.warm_up, measure.discard_first + measure.batches) * batch, max(AHEAD, KEPT * batch)))


def graph_bytes(config: RunConfig) -> int:
    """Bytes of the synthetic graphs in the parent of a full-graph run. The size of a file is unknown before reading."""
    sources = [config.graph.source.build()] if config.graph else []
    for plugin in plugins_in(config.executor.plain()):
        target = locate(str(plugin[TARGET]))
        if isinstance(target, type) and issubclass(target, SyntheticGraph):
            sources.append(build(plugin))
    graphs = [source for source in sources if isinstance(source, SyntheticGraph)]
    return max((round(each.vertices * (each.degree * ENTRY + each.features * 4)) for each in graphs), default=0)


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
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        base, name = (mounted / "memory", "memory.limit_in_bytes") if controllers else (mounted, "memory.max")
        group = base / path.lstrip("/")
        for folder in (group, *group.parents) if not controllers or "memory" in controllers.split(",") else ():
            with suppress(OSError, ValueError):  # no such file, or no limit: `max`
                limits.append(int((folder / name).read_text(encoding="ascii")))
    return limits


def device_limits() -> list[int]:
    """Bytes of each CUDA device by number; empty if nvidia-smi does not report them."""
    try:
        return [int(size) * 2**20 for (size,) in query_gpus("memory.total")]
    except ValueError:
        return []
