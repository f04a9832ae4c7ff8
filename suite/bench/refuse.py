"""Decides which runs cannot run, before any rank starts: the numbers, the rule and a legal value.

Nothing here loads torch: shapes, schedules and folders are enough to know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from suite.bench import heart, machine_memory, order, resume, streamed
from suite.bench.parts import OF_DATA, check_parts
from suite.bench.starter import STARTERS, spread
from suite.comm import check_transport, launcher_of
from suite.config.checks import check_run
from suite.core.build import TARGET, build, locate, module
from suite.core.errors import Refused, UnknownName, Unsupported
from suite.core.fits import number
from suite.core.grid import Grid
from suite.core.keys import in_config_keys
from suite.core.units import most_sparse
from suite.memory.checkpointing import chosen
from suite.pruning.rules import LARGEST, REACHED, check_sparsity, check_what
from suite.schedule.check import check as check_schedule
from suite.workload.shapes import layered
from suite.workload.split import blocks, divide

_DTYPES = ("float64", "float32", "float16", "bfloat16")
_HALVES = ("bfloat16", "float16")
_BINDINGS = ("none", "core", "hwthread", "numa", "package")


@in_config_keys()
def check(config: Mapping[str, Any]) -> None:
    """Raises Refused (or a kind of it) for the first thing that cannot work."""
    check_run(config)
    check_parts(config)
    grid, executor = Grid(**config["grid"]), config["executor"]
    if config["system"].get("graphs") and not executor.get("graphs"):
        what = f"system={config['system']['name']} under executor={executor.get('name', executor.get(TARGET))}"
        raise Unsupported(what, rule="it trains one whole graph", legal="executor=full_graph")
    if "prepares" in executor:  # ranks share the vertices of one graph: no stages, no microbatches
        locate(executor["prepares"]).check(config)
        _launcher(config, grid)
        _measure(config["measure"])
        _numbers_of_ranks(config)
        machine_memory.check(config)
        return
    order.check(config)
    resume.check(config)
    check_sparsity(config["pruning"]["sparsity"])
    check_what(config["pruning"]["what"])
    if TARGET in executor:  # no rank starts: what it needs of the rest, the executor knows
        _measure(config["measure"])
        build(executor).check(config)
        machine_memory.check(config)
        return
    check_tensor(config)
    check_batch(config, grid)
    wanted = config["system"].get("microbatches")
    if wanted is not None and microbatches(config) != wanted:
        raise Refused(
            f"system={config['system']['name']} with {microbatches(config)} microbatches per replica",
            rule=f"it has {wanted}",
            legal=f"batch.microbatch={config['batch']['size'] // (grid.data * wanted)}",
        )
    _launcher(config, grid)
    _measure(config["measure"])
    if "system" in config["executor"]:  # ranks that compute nothing: no model, no text
        locate(config["executor"]["system"]).check(config)
        machine_memory.check(config)
        return
    shape = layered(config)
    _network(config, shape)
    split = divide(shape, grid.inter, config["split"])
    _numbers_of_ranks(config)
    if config["model"]["dtype"] not in _DTYPES:
        raise UnknownName("model.dtype", str(config["model"]["dtype"]), _DTYPES)
    _precision(config)
    _pruning(config, shape)
    chosen(config["checkpoints"], blocks(shape, split))
    streamed.check(config, shape)
    check_schedule(build(config["schedule"]), grid.inter, streamed.work(config))
    _data(config, shape)
    machine_memory.check(config)


def microbatches(config: Mapping[str, Any]) -> int:
    """Microbatches per replica and batch."""
    return streamed.microbatches(config)


def check_tensor(config: Mapping[str, Any]) -> None:
    name, tensor = config["system"]["name"], config["grid"]["tensor"]
    if tensor != 1 and not config["system"].get("tensor"):
        raise Unsupported(f"grid.tensor={tensor}", rule=f"{name} splits no layer", legal="grid.tensor=1")


def check_batch(config: Mapping[str, Any], grid: Grid) -> None:
    size, microbatch = config["batch"]["size"], config["batch"]["microbatch"]
    chunk = microbatch * grid.data
    if size % chunk:
        raise Refused(
            f"batch.size={size} on grid.data={grid.data} replicas with batch.microbatch={microbatch}",
            rule="grid.data * batch.microbatch divides batch.size",
            legal=f"batch.size={math.ceil(size / chunk) * chunk}",
        )


def _launcher(config: Mapping[str, Any], grid: Grid) -> None:
    launch = config["launch"]
    if config["executor"].get("ranks", grid.size) > launch["max_ranks"]:
        raise Refused(
            f"{grid.size} ranks ({grid})",
            rule=f"launch={launch['name']} starts at most launch.max_ranks={launch['max_ranks']}",
            legal=f"a grid of at most {launch['max_ranks']} ranks",
        )
    for name, known in (("device", ("cpu", "cuda")), ("starter", STARTERS), ("binding", _BINDINGS)):
        if launch[name] not in known:
            raise UnknownName(f"launch.{name}", str(launch[name]), known)
    heart.check(launch)
    if launch["starter"] == "srun":
        spread(int(config["executor"].get("ranks", grid.size)), launch)
    _transport(config["comm"], launch)


def _transport(comm: Mapping[str, Any], launch: Mapping[str, Any]) -> None:
    check_transport(comm["transport"], comm["order"], device=launch["device"], launcher=launcher_of(launch))
    if launch["binding"] != "none" and launch["starter"] == "torchrun":
        raise Unsupported(
            f"launch.binding={launch['binding']} under torchrun", rule="mpiexec binds", legal="launch.binding=none"
        )


def _numbers_of_ranks(config: Mapping[str, Any]) -> None:
    """What only ranks use, and would refuse one by one after starting."""
    rate = config["optimizer"].get("lr", 0.0)
    if not isinstance(rate, Mapping) and not (number(rate) and rate >= 0):
        raise Refused(f"optimizer.lr={rate}", rule="not negative, or a rate of suite.engine.rate", legal="0.001")


def _precision(config: Mapping[str, Any]) -> None:
    half = config["precision"]["half"]
    if half not in (None, *_HALVES):
        raise UnknownName("precision.half", str(half), _HALVES)
    build(config["memory"]["layout"])(entries=1, moments=("moment",), dtype=config["model"]["dtype"], half=half)
    if config["precision"]["loss_scale"]:
        build(config["precision"]["loss_scale"])


def _pruning(config: Mapping[str, Any], shape: Any) -> None:
    """What a ticket takes away leaves something of each weight, and the memory layout knows of tickets."""
    pruning, sparsity = config["pruning"], config["pruning"]["sparsity"]
    if not pruning["ticket"]:
        return
    system = config["system"]
    if not (system.get("prunes") or system["_target_"] == resume.ENGINE):
        what = f"pruning={pruning['name']} under system={system['name']}"
        raise Unsupported(what, rule="systems on the suite's engine prune", legal="system=axonn_samo")
    layout, half = build(config["memory"]["layout"]), config["precision"]["half"]
    try:
        layout(entries=2, moments=("moment",), dtype=config["model"]["dtype"], half=half, kept=1, of=2)
    except (Refused, TypeError) as error:
        what = f"pruning={pruning['name']} with memory={config['memory']['name']}"
        raise Unsupported(what, rule="compressed states are those of memory=samo", legal="memory=samo") from error
    sizes = [size for layer in shape.shapes() for size in layer.prunable]
    if not sizes:
        raise Refused(f"pruning={pruning['name']} of model={config['model']['name']}", rule="it has weights to prune")
    if max(sizes) >= LARGEST:
        what = f"pruning={pruning['name']} of a weight of {max(sizes)} entries"
        raise Refused(what, rule=REACHED, legal="a narrower model")
    least = min(sizes)
    if not round((1 - sparsity) * least):
        what = f"pruning.sparsity={sparsity} of a weight of {least} entries"
        raise Refused(what, rule="something stays of each", legal=f"pruning.sparsity={most_sparse(least)}")


def _measure(measure: Mapping[str, Any]) -> None:
    if measure["validate"] not in ("end", "turn"):
        raise UnknownName("measure.validate", str(measure["validate"]), ("end", "turn"))


def _data(config: Mapping[str, Any], shape: Any) -> None:
    """The folder is there and of the published form; the network reads such data."""
    name, folder = config["data"]["name"], config["data"]["folder"]
    home = config["data"]["source"]["_target_"].rpartition(".")[0]
    if folder is not None:
        locate(f"{home}.check_folder")(name, folder)
    check_parts(config, OF_DATA)
    if hasattr(module(home), "check_shape"):  # a module of one's own need not have it
        locate(f"{home}.check_shape")(name, folder, shape)


def _network(config: Mapping[str, Any], shape: Any) -> None:
    """What not every network allows."""
    tensor, microbatch = config["grid"]["tensor"], config["batch"]["microbatch"]
    kind = type(shape).__name__
    if tensor != 1 and not hasattr(shape, "heads"):
        what = f"grid.tensor={tensor} with a {kind}"
        raise Unsupported(what, rule="what is split are transformer blocks", legal="grid.tensor=1")
    if config["system"].get("transformers") and not hasattr(shape, "heads"):
        what = f"system={config['system']['name']} with a {kind}"
        raise Unsupported(what, rule="it has transformer blocks alone", legal="system=axonn")
    least = getattr(shape, "least_microbatch", 1)
    if microbatch < least:
        raise Refused(
            f"batch.microbatch={microbatch} with a {kind} of model.shape.image={shape.image}",
            rule=f"its last batch norms see a single point of an image, and need {least} of them",
            legal=f"batch.microbatch={least}",
        )
