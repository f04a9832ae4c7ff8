"""Memory check of a run before its ranks start.

The predicted memory of all processes on one node must not exceed the memory of the machine, nor the limit of this
process's control group. Free memory is not considered, because it changes all the time. Predictions are lower bounds,
so an accepted run may still run out of memory; `launch.memory_limit` then ends only the rank that exceeds it. On CUDA,
the memory of each rank must also fit its device, if `nvidia-smi` reports the size of the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
_WIDTH = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
CGROUPS = Path("/sys/fs/cgroup")
REMEDY = "a smaller model or batch, more nodes, or launch.memory_check=false"


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Memory limit in bytes, and its source."""

    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class MemoryNeed:
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
    graphs = graph_bytes(config)
    needs = rank_needs(config) if executor.starts_ranks else []
    limit = machine_limit()
    size = len(needs)
    per_node = place_ranks(size, launch)[1] if needs and launch.launcher == "srun" else max(1, size)
    nodes = [needs[first : first + per_node] for first in range(0, size, per_node)] or [[]]
    fullest = max(nodes, key=lambda node: sum(need.host for need in node))
    total = graphs + sum(need.host for need in fullest)
    if total > limit.bytes:
        raise InvalidRequest(
            f"{_subject(config)}: at least {si(total, 'B')} of memory for {_processes(len(fullest), graphs)}",
            rule=f"this machine has {si(limit.bytes, 'B')}, {limit.source}",
            legal=REMEDY,
        )
    if any(need.device for need in needs):
        _check_devices(config, nodes)


def _subject(config: RunConfig) -> str:
    executor = config.executor
    if executor.reads_graphs:
        return f"graph={config.graph.name}" if config.graph else "the graph"
    return f"model={config.model.name}" if executor.trains else f"executor={executor.name}"


def _processes(ranks: int, graphs: int) -> str:
    parts = [f"{ranks} {'rank' if ranks == 1 else 'ranks'}"] if ranks else []
    return " and ".join([*parts, *(["the whole graph"] if graphs else [])])


def _check_devices(config: RunConfig, nodes: Sequence[Sequence[MemoryNeed]]) -> None:
    """Check each rank against its device, which has the rank's number on the node."""
    devices = device_limits()
    for node in nodes:
        for number, (need, device) in enumerate(zip(node, devices, strict=False)):
            if need.device > device:
                raise InvalidRequest(
                    f"{_subject(config)}: at least {si(need.device, 'B')} on the device of rank {number} of a node",
                    rule=f"CUDA device {number} has {si(device, 'B')}",
                    legal=REMEDY,
                )


# -- memory that a run needs -----------------------------------------------------------------------------------------


def rank_needs(config: RunConfig) -> list[MemoryNeed]:
    """Memory of each rank, in rank order."""
    executor, grid = config.executor, config.grid.build()
    if executor.kind == "full_graph":  # the size of each part is unknown before the graph is partitioned
        return [MemoryNeed(TORCH)] * grid.size
    if (stand_in := registry.stand_in(executor)) is not None:
        bytes_each = TORCH if executor.loads_torch else PLAIN
        return [MemoryNeed(bytes_each + size) for size in stand_in.bytes_per_rank(config)]
    cuda = config.launch.device == "cuda"
    ranks = [
        MemoryNeed(on_host, on_device) if cuda else MemoryNeed(on_host + on_device)
        for on_device, on_host in training_bytes(config)
    ]
    base = TORCH + batches_bytes(config)
    if executor.one_process:
        return [MemoryNeed(base + sum(rank.host for rank in ranks), sum(rank.device for rank in ranks))]
    return [MemoryNeed(base + rank.host, rank.device) for rank in ranks]


def training_bytes(config: RunConfig) -> list[tuple[int, int]]:
    """Peak bytes of each rank on its device and in host memory; zeros without a formula for the model."""
    size = config.grid.build().size
    try:
        if config.system.has_memory_model:
            budgets = estimate.budgets(config)
            return [(budget.peak, budget.layout.bytes(home="host")) for budget in budgets]
        return [(min_state_bytes(config) // size, 0)] * size
    except Exception:  # no formula for this kind of model, or a fault of its shape, which the run reports
        return [(0, 0)] * size


def min_state_bytes(config: RunConfig) -> int:
    """Lower bound on the bytes of model states over all ranks, for a system with a memory layout of its own.

    Every replica stores weights and gradients; optimizer states are stored once. A pruned system may store the
    remaining entries only.
    """
    precision, pruning = config.precision.half, config.pruning
    full = _WIDTH[config.model.dtype]
    width = _WIDTH[precision] if precision else full
    entries = sum(layer.parameters for layer in config.network().shapes(width))
    density = (1 - pruning.sparsity) if pruning.ticket else 1.0
    moments = len(states_of(config.optimizer.target, config.optimizer.arguments, predicts=False)) + bool(precision)
    replicas = int(config.grid.data)
    return round(float(density * entries) * (2 * width * replicas + full * moments))


def batches_bytes(config: RunConfig) -> int:
    """Bytes of the batches that a rank draws ahead: those of a round, or a few if a round has many."""
    measure, shape = config.measure, config.network()
    word, count = counted_in(shape)
    sample = 2 * TOKEN * count
    if word == "image":
        sample = PIXEL * shape.pixels
    batches = max(measure.warm_up, measure.discard_first + measure.batches)
    batch = config.batch.size * sample
    return int(min(batches * batch, max(AHEAD, KEPT * batch)))


def graph_bytes(config: RunConfig) -> int:
    """Bytes of the synthetic graphs in the parent of a full-graph run. The size of a file is unknown before reading."""
    sources = [config.graph.source.build()] if config.graph else []
    plugins = plugins_in("executor", config.executor.plain())
    sources += [build(plugin) for _, plugin in plugins if _is_synthetic(str(plugin[TARGET]))]
    return max((synthetic_bytes(source) for source in sources if isinstance(source, SyntheticGraph)), default=0)


def _is_synthetic(path: str) -> bool:
    """Whether a class path names a synthetic graph."""
    target = locate(path)
    return isinstance(target, type) and issubclass(target, SyntheticGraph)


def synthetic_bytes(source: SyntheticGraph) -> int:
    return round(source.vertices * (source.degree * ENTRY + source.features * 4))


# -- memory of the machine -------------------------------------------------------------------------------------------


def machine_limit() -> MemoryLimit:
    """Memory of the machine, or the limit of this process's control group if that is less."""
    total = MemoryLimit(int(psutil.virtual_memory().total), "all of its memory")
    group = cgroup_limit(Path("/proc/self/cgroup"), CGROUPS)
    return (
        total
        if group is None or group >= total.bytes
        else MemoryLimit(group, "the limit of this process's control group")
    )


def cgroup_limit(membership: Path, mounted: Path) -> int | None:
    """Memory limit of a process's control groups (version 1 or 2) in bytes; None without a limit.

    Args:
        membership: The process's /proc/PID/cgroup, with lines ID:CONTROLLERS:PATH.
        mounted: Folder at which the groups are mounted.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    limits: list[int] = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = (mounted / "memory", "memory.limit_in_bytes") if controllers else (mounted, "memory.max")
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for depth in range(len(parts) + 1):  # a limit applies to all nested groups
            limits += _limit(base.joinpath(*parts[:depth]) / name)
    return min(limits, default=None)


def _limit(file: Path) -> list[int]:
    """The limit in a file; empty if the file is missing or holds `max`."""
    try:
        return [int(file.read_text(encoding="ascii"))]
    except (OSError, ValueError):
        return []


def device_limits() -> list[int]:
    """Bytes of each CUDA device by number; empty if nvidia-smi does not report them."""
    try:
        return [int(size) * 2**20 for (size,) in query_gpus("memory.total")]
    except ValueError:
        return []
