"""Memory check of a run before its ranks start.

The predicted memory of all processes on one node is held against what the machine has: the whole of its memory, or of
the control group of this process where that is less. The memory that is free at the moment is no measure: other
processes give theirs back, and a refusal must not depend on the second it is asked in. Predictions are lower bounds,
so a run that passes may still run out of memory; `launch.memory_limit` ends such a rank alone. On CUDA devices the
fullest rank is held against the memory of its device as well, where `nvidia-smi` reports it.
"""

from __future__ import annotations

import os
import subprocess
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
from suite.workload.throughput_unit import counted_in

# bytes that a rank holds for itself alone before it trains, measured: with torch loaded, and without
TORCH, PLAIN = 150_000_000, 14_000_000
TOKEN, PIXEL = 8, 4  # bytes of a token's number, and of a colour of a pixel, in a batch
ENTRY = 2 * (4 + 4)  # bytes of an edge's index and weight, in a graph's adjacency and in its operator
_WIDTH = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
CGROUPS = Path("/sys/fs/cgroup")
WAYS_OUT = "a smaller model or batch, more nodes, or launch.memory_check=false"


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes, and where the number comes from."""

    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of one process in host memory, and on its CUDA device where it has one."""

    host: int
    device: int = 0


def check(config: RunConfig) -> None:
    """Raises InvalidRequest where the processes of one node need more memory than it has. The jobs that a scheduler is
    asked for run elsewhere, and are checked there."""
    launch, executor = config.launch, config.executor
    if not launch.memory_check or launch.submit:
        return
    graphs = graph_bytes(config)
    limits = needs(config) if executor.starts_ranks else []
    limit = machine_limit()
    size = len(limits)
    per_node = place_ranks(size, launch)[1] if limits and launch.launcher == "srun" else max(1, size)
    nodes = [limits[first : first + per_node] for first in range(0, size, per_node)] or [[]]
    fullest = max(nodes, key=lambda node: sum(need.host for need in node))
    total = graphs + sum(need.host for need in fullest)
    if total > limit.bytes:
        raise InvalidRequest(
            f"{_trains(config)}: at least {si(total, 'B')} of memory for {_processes(len(fullest), graphs)}",
            rule=f"this machine has {si(limit.bytes, 'B')}, {limit.source}",
            legal=WAYS_OUT,
        )
    if any(need.device for need in limits):
        _check_devices(config, nodes)


def _trains(config: RunConfig) -> str:
    executor = config.executor
    if executor.reads_graphs:
        return f"graph={config.graph.name}" if config.graph else "the graph"
    return f"model={config.model.name}" if executor.trains else f"executor={executor.name}"


def _processes(ranks: int, graphs: int) -> str:
    parts = [f"{ranks} {'rank' if ranks == 1 else 'ranks'}"] if ranks else []
    return " and ".join([*parts, *(["the whole graph"] if graphs else [])])


def _check_devices(config: RunConfig, nodes: Sequence[Sequence[Need]]) -> None:
    """Each rank of a node has the device of its number there."""
    devices = device_limits()
    for node in nodes:
        for number, (need, device) in enumerate(zip(node, devices, strict=False)):
            if need.device > device:
                raise InvalidRequest(
                    f"{_trains(config)}: at least {si(need.device, 'B')} on the device of rank {number} of a node",
                    rule=f"CUDA device {number} has {si(device, 'B')}",
                    legal=WAYS_OUT,
                )


# -- what a run needs ------------------------------------------------------------------------------------------------


def needs(config: RunConfig) -> list[Need]:
    """Of every rank that is started, in order."""
    executor, grid = config.executor, config.grid.build()
    if executor.kind == "full_graph":  # their parts of a graph are known once it is partitioned
        return [Need(TORCH)] * grid.size
    if (stand_in := registry.stand_in(executor)) is not None:
        bytes_each = TORCH if executor.loads_torch else PLAIN
        return [Need(bytes_each + size) for size in stand_in.bytes_per_rank(config)]
    cuda = config.launch.device == "cuda"
    ranks = [_trained(on_device, on_host, cuda) for on_device, on_host in trained(config)]
    base = TORCH + batches_bytes(config)
    if executor.one_process:  # one process runs all stages
        return [Need(base + sum(rank.host for rank in ranks), sum(rank.device for rank in ranks))]
    return [Need(base + rank.host, rank.device) for rank in ranks]


def _trained(on_device: int, on_host: int, cuda: bool) -> Need:
    return Need(on_host, on_device) if cuda else Need(on_host + on_device)


def trained(config: RunConfig) -> list[tuple[int, int]]:
    """Bytes of each rank at its peak, on its device and in host memory; zeros where no formula knows the model."""
    size = config.grid.build().size
    try:
        if config.system.has_memory_model:
            budgets = estimate.budgets(config)
            return [(budget.peak, budget.layout.bytes(home="host")) for budget in budgets]
        return [(states_at_least(config) // size, 0)] * size
    except Exception:  # another kind of model, or a fault of its shape, which the run reports
        return [(0, 0)] * size


def states_at_least(config: RunConfig) -> int:
    """Bytes of all ranks together whose memory layout is not the suite's: every replica holds weights and gradients,
    and optimizer states are held once. A pruned system may hold what it keeps alone."""
    precision, pruning = config.precision.half, config.pruning
    full = _WIDTH[config.model.dtype]
    width = _WIDTH[precision] if precision else full
    entries = sum(layer.parameters for layer in config.network().shapes(width))
    share_kept = (1 - pruning.sparsity) if pruning.ticket else 1.0
    moments = len(states_of(config.optimizer.target, config.optimizer.arguments, predicts=False)) + bool(precision)
    replicas = int(config.grid.data)
    return round(float(share_kept * entries) * (2 * width * replicas + full * moments))


def batches_bytes(config: RunConfig) -> int:
    """Bytes of the batches that a rank draws before it trains on them: of a turn, or of a few where a turn has many."""
    measure, shape = config.measure, config.network()
    word, count = counted_in(shape)
    sample = 2 * TOKEN * count
    if word == "image":
        sample = PIXEL * shape.pixels
    batches = max(measure.warm_up, measure.discard_first + measure.batches)
    one = config.batch.size * sample
    return int(min(batches * one, max(AHEAD, KEPT * one)))


def graph_bytes(config: RunConfig) -> int:
    """Bytes of the graphs that the parent of a full-graph run draws, which it holds whole. The size of data in a
    file is known only after reading.
    """
    sources = [config.graph.source.build()] if config.graph else []
    sources += [build(each) for _, each in plugins_in("executor", config.executor.plain()) if _draws(str(each[TARGET]))]
    return max((drawn_bytes(one) for one in sources if isinstance(one, SyntheticGraph)), default=0)


def _draws(path: str) -> bool:
    """Whether a class path names a graph that is drawn."""
    target = locate(path)
    return isinstance(target, type) and issubclass(target, SyntheticGraph)


def drawn_bytes(source: SyntheticGraph) -> int:
    return round(source.vertices * (source.degree * ENTRY + source.features * 4))


# -- what there is ---------------------------------------------------------------------------------------------------


def machine_limit() -> Limit:
    """The machine's memory, or the limit of this process's control group where that is less."""
    total = Limit(int(psutil.virtual_memory().total), "all of its memory")
    group = cgroup_limit(Path("/proc/self/cgroup"), CGROUPS)
    return total if group is None or group >= total.bytes else Limit(group, "the limit of this process's control group")


def cgroup_limit(membership: Path, mounted: Path) -> int | None:
    """Bytes that a process may use by the control groups that it is in, of version 1 or 2; None without a limit.

    Args:
        membership: A /proc/PID/cgroup, of lines ID:CONTROLLERS:PATH.
        mounted: Where the groups lie.
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
        for depth in range(len(parts) + 1):  # a group's limit holds for all groups inside it
            limits += _limit(base.joinpath(*parts[:depth]) / name)
    return min(limits, default=None)


def _limit(file: Path) -> list[int]:
    """The bytes in a limit's file; None where the file is missing or holds `max`."""
    try:
        return [int(file.read_text(encoding="ascii"))]
    except (OSError, ValueError):
        return []


def device_limits() -> list[int]:
    """Bytes of each CUDA device in the order of its number; none where nvidia-smi does not report them. torch, which
    would know them too, is loaded by ranks alone."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    chosen = [f"--id={visible}"] if visible else []
    line = ["nvidia-smi", *chosen, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(line, capture_output=True, text=True, check=True, timeout=20).stdout
        return [int(number) * 2**20 for number in output.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
