"""Decides which runs cannot run, before any rank starts: the numbers, the rule and a legal value.

Nothing here loads torch: shapes, schedules and folders are enough to know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from suite.bench import heart, machine_memory, order, resume, streamed
from suite.bench.starter import STARTERS, spread
from suite.comm import check_transport, launcher_of
from suite.config.launch import Launch
from suite.config.locate import locate, module
from suite.config.measure import Measure
from suite.config.parallel import Comm
from suite.config.places import OF_DATA, check_parts
from suite.config.run import RunConfig
from suite.config.sources import check_sources
from suite.core.errors import Refused, UnknownName, Unsupported
from suite.core.grid import Grid
from suite.core.keys import in_config_keys
from suite.core.units import most_sparse
from suite.core.values import number
from suite.memory.checkpointing import chosen
from suite.pruning.rules import LARGEST, REACHED, check_what
from suite.schedule.check import check as check_schedule
from suite.workload.shapes import Transformer
from suite.workload.split import blocks, divide

_DTYPES = ("float64", "float32", "float16", "bfloat16")
_HALVES = ("bfloat16", "float16")
_BINDINGS = ("none", "core", "hwthread", "numa", "package")


@in_config_keys()
def check(config: RunConfig) -> None:
    """Raises Refused (or a kind of it) for the first thing that cannot work."""
    check_parts(config.plain())
    if config.executor.target is None:  # ranks import them
        check_sources(config)
    grid, executor = config.grid.build(), config.executor
    if config.system.graphs and not executor.graphs:
        what = f"system={config.system.name} under executor={(executor.name or executor.target)}"
        raise Unsupported(what, rule="it trains one whole graph", legal="executor=full_graph")
    if executor.prepares is not None:  # ranks share the vertices of one graph: no stages, no microbatches
        locate(executor.prepares).check(config)
        _launcher(config, grid)
        _measure(config.measure)
        _numbers_of_ranks(config)
        machine_memory.check(config)
        return
    order.check(config)
    resume.check(config)
    check_what(config.pruning.what)
    if executor.target is not None:  # no rank starts: what it needs of the rest, the executor knows
        _measure(config.measure)
        executor.build().check(config)
        machine_memory.check(config)
        return
    check_tensor(config)
    check_batch(config, grid)
    wanted = config.system.microbatches
    if wanted is not None and microbatches(config) != wanted:
        raise Refused(
            f"system={config.system.name} with {microbatches(config)} microbatches per replica",
            rule=f"it has {wanted}",
            legal=f"batch.microbatch={config.batch.size // (grid.data * wanted)}",
        )
    _launcher(config, grid)
    _measure(config.measure)
    if config.executor.system is not None:  # ranks that compute nothing: no model, no text
        locate(config.executor.system).check(config)
        machine_memory.check(config)
        return
    shape = config.network()
    _network(config, shape)
    split = divide(shape, grid.inter, config.split)
    _numbers_of_ranks(config)
    if config.model.dtype not in _DTYPES:
        raise UnknownName("model.dtype", str(config.model.dtype), _DTYPES)
    _precision(config)
    _pruning(config, shape)
    chosen(config.checkpoints, blocks(shape, split))
    streamed.check(config, shape)
    check_schedule(config.schedule.build(), grid.inter, streamed.work(config))
    _data(config, shape)
    machine_memory.check(config)


def microbatches(config: RunConfig) -> int:
    """Microbatches per replica and batch."""
    return streamed.microbatches(config)


def check_tensor(config: RunConfig) -> None:
    name, tensor = config.system.name, config.grid.tensor
    if tensor != 1 and not config.system.tensor:
        raise Unsupported(f"grid.tensor={tensor}", rule=f"{name} splits no layer", legal="grid.tensor=1")


def check_batch(config: RunConfig, grid: Grid) -> None:
    size, microbatch = config.batch.size, config.batch.microbatch
    chunk = microbatch * grid.data
    if size % chunk:
        raise Refused(
            f"batch.size={size} on grid.data={grid.data} replicas with batch.microbatch={microbatch}",
            rule="grid.data * batch.microbatch divides batch.size",
            legal=f"batch.size={math.ceil(size / chunk) * chunk}",
        )


def _launcher(config: RunConfig, grid: Grid) -> None:
    launch = config.launch
    if (ranks := config.executor.ranks or grid.size) > launch.max_ranks:
        raise Refused(
            f"{ranks} ranks ({config.grid.typed})",
            rule=f"launch={launch.name} starts at most launch.max_ranks={launch.max_ranks}",
            legal=f"launch.max_ranks={ranks}, or a smaller grid",
        )
    for name, value, known in (
        ("device", launch.device, ("cpu", "cuda")),
        ("starter", launch.starter, STARTERS),
        ("binding", launch.binding, _BINDINGS),
    ):
        if value not in known:
            raise UnknownName(f"launch.{name}", value, known)
    heart.check(launch)
    if launch.starter == "srun":
        spread(int(config.executor.ranks or grid.size), launch)
    _transport(config.comm, launch)


def _transport(comm: Comm, launch: Launch) -> None:
    check_transport(comm.transport, comm.order, device=launch.device, launcher=launcher_of(launch.starter, launch.mpi))
    if launch.binding != "none" and launch.starter == "torchrun":
        raise Unsupported(
            f"launch.binding={launch.binding} under torchrun", rule="mpiexec binds", legal="launch.binding=none"
        )


def _numbers_of_ranks(config: RunConfig) -> None:
    """What only ranks use, and would refuse one by one after starting."""
    rate = config.optimizer.arguments.get("lr", 0.0)
    if not isinstance(rate, Mapping) and not (number(rate) and rate >= 0):
        raise Refused(
            f"optimizer.lr={rate}", rule="not negative, or a rate of suite.engine.rate", legal="optimizer.lr=0.001"
        )


def _precision(config: RunConfig) -> None:
    half = config.precision.half
    if half not in (None, *_HALVES):
        raise UnknownName("precision.half", str(half), _HALVES)
    config.memory.layout.build()(entries=1, moments=("moment",), dtype=config.model.dtype, half=half)
    if config.precision.loss_scale:
        config.precision.loss_scale.build()


def _pruning(config: RunConfig, shape: Any) -> None:
    """What a ticket takes away leaves something of each weight, and the memory layout knows of tickets."""
    pruning, sparsity = config.pruning, config.pruning.sparsity
    if not pruning.ticket:
        return
    system = config.system
    if not system.can_prune:
        what = f"pruning={pruning.name} under system={system.name}"
        raise Unsupported(what, rule="systems on the suite's engine prune", legal="system=axonn_samo")
    layout, half = config.memory.layout.build(), config.precision.half
    try:
        layout(entries=2, moments=("moment",), dtype=config.model.dtype, half=half, kept=1, of=2)
    except (Refused, TypeError) as error:
        what = f"pruning={pruning.name} with memory={config.memory.name}"
        raise Unsupported(what, rule="compressed states are those of memory=samo", legal="memory=samo") from error
    sizes = [size for layer in shape.shapes() for size in layer.prunable]
    if not sizes:
        raise Refused(f"pruning={pruning.name} of model={config.model.name}", rule="it has weights to prune")
    if max(sizes) >= LARGEST:
        what = f"pruning={pruning.name} of a weight of {max(sizes)} entries"
        raise Refused(what, rule=REACHED, legal="a narrower model")
    least = min(sizes)
    if not round((1 - sparsity) * least):
        what = f"pruning.sparsity={sparsity} of a weight of {least} entries"
        raise Refused(what, rule="something stays of each", legal=f"pruning.sparsity={most_sparse(least)}")


def _measure(measure: Measure) -> None:
    if measure.validate_when not in ("end", "turn"):
        raise UnknownName("measure.validate", str(measure.validate_when), ("end", "turn"))


def _data(config: RunConfig, shape: Any) -> None:
    """The folder is there and of the published form; the network reads such data."""
    name, folder = config.data.name, config.data.folder
    home = config.data.source.target.rpartition(".")[0]
    if folder is not None:
        locate(f"{home}.check_folder")(name, folder)
    check_parts(config.plain(), OF_DATA)
    if hasattr(module(home), "check_shape"):  # a module of one's own need not have it
        locate(f"{home}.check_shape")(name, folder, shape)


def _network(config: RunConfig, shape: Any) -> None:
    """What not every network allows."""
    tensor, microbatch = config.grid.tensor, config.batch.microbatch
    kind = type(shape).__name__
    if tensor != 1 and not isinstance(shape, Transformer):
        what = f"grid.tensor={tensor} with a {kind}"
        raise Unsupported(what, rule="what is split are transformer blocks", legal="grid.tensor=1")
    if config.system.transformers and not isinstance(shape, Transformer):
        what = f"system={config.system.name} with a {kind}"
        raise Unsupported(what, rule="it has transformer blocks alone", legal="system=axonn")
    least = getattr(shape, "least_microbatch", 1)
    if microbatch < least:
        raise Refused(
            f"batch.microbatch={microbatch} with a {kind} of model.shape.image={shape.image}",
            rule=f"its last batch norms see a single point of an image, and need {least} of them",
            legal=f"batch.microbatch={least}",
        )
