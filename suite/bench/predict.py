"""Decides what is known of a run before it starts: its split, its flops, the memory each rank will need."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from suite.core.build import build
from suite.core.grid import Grid
from suite.core.op import Work
from suite.memory.budget import Budget
from suite.memory.checkpointing import chosen
from suite.workload import flops
from suite.workload.shapes import LayerShape, Transformer
from suite.workload.split import blocks, divide

_WIDTH = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def budgets(config: Mapping[str, Any]) -> list[Budget]:
    """The memory of each rank of a system on the suite's engine, in rank order."""
    grid = Grid(**config["grid"])
    shape: Transformer = build(config["model"]["shape"])
    half = config["precision"]["half"]
    width = _WIDTH[half or config["model"]["dtype"]]
    shapes = shape.shapes(width)
    update, exchanged = config["update"], _exchanged(config)
    overlaps = update["chunk"] and not update["clip"]
    chunk = update["chunk"] * update["bucket"] if overlaps else sys.maxsize
    schedule, layout = build(config["schedule"]), build(config["memory"]["layout"])
    moments = ("moment_1", "moment_2") if "Adam" in config["optimizer"]["_target_"] else ("velocity",)
    microbatch = config["batch"]["microbatch"]
    work = Work(0, config["batch"]["size"] // (microbatch * grid.data), None, 0)
    split = divide(shape, grid.inter, config["split"])
    apart = chosen(config["checkpoints"], blocks(shape, split))
    recompute = config["weights"].get("graph") == "recompute"
    result = []
    for rank in range(grid.size):
        place = grid.place(rank)
        own = [shapes[index] for index in split[place.stage]]
        entries = sum(layer.parameters + layer.tied for layer in own)
        # a stage's output stays with its graph, and its input is the first layer's saved one
        boundary = 0 if place.last else own[-1].output
        saved = microbatch * (sum(layer.saved for layer in own) + boundary)
        entering = 0 if place.first else microbatch * shapes[split[place.stage].start - 1].output
        working = max(microbatch * layer.working + layer.weight_working for layer in own)
        in_flight = schedule.in_flight(place, work)
        # every microbatch open on the stage before is open here, or waits here, or comes back as a gradient
        before = 0 if place.first else schedule.in_flight(grid.place(rank - 1), work)
        if apart and blocks(shape, split)[place.stage]:
            saved, working = _checkpointed(own, apart, microbatch)
        if recompute:
            working, saved = saved + working, entering
        result.append(
            Budget(
                layout=layout(entries=entries, moments=moments, dtype=config["model"]["dtype"], half=half),
                activations=saved,
                in_flight=in_flight,
                working=working,
                waiting=max(0, before - in_flight) * entering,
                reducing=min(chunk, entries) * width if exchanged else 0,
                beside=chunk < entries,
            )
        )
    return result


def _exchanged(config: Mapping[str, Any]) -> bool:
    """Whether two replicas add by an exchange of bytes (comm.mpi), which needs room for the other's part."""
    over_mpi = config["comm"]["transport"] in ("auto", "mpi") and config["launch"]["starter"] == "mpiexec"
    return (
        config["grid"]["data"] == 2
        and over_mpi
        and bool(config["comm"]["pair_exchange"])
        and config["launch"]["device"] == "cpu"
    )


def _checkpointed(own: Sequence[LayerShape], apart: int, microbatch: int) -> tuple[int, int]:
    """Bytes kept of a microbatch on a stage whose blocks are computed again, `apart` at a time, and the largest
    transient beside them: of the other layers' backward passes, or, when those are over, of an interval's."""
    blocks = [layer for layer in own if layer.name == "block"]
    others = [layer for layer in own if layer.name != "block"]
    inputs = len(blocks) // apart * blocks[0].output
    held = sum(layer.saved for layer in others)
    again = apart * blocks[0].saved - blocks[0].output
    ends = max((microbatch * layer.working + layer.weight_working for layer in others), default=0)
    between = microbatch * (again + blocks[0].working - held) + blocks[0].weight_working
    return microbatch * (inputs + held), max(ends, between)


def counts(config: Mapping[str, Any]) -> dict[str, float]:
    """Tokens and flops of one training batch, over all ranks."""
    shape: Transformer = build(config["model"]["shape"])
    size = config["batch"]["size"]
    return {
        "tokens_per_batch": float(size * shape.sequence),
        "flops_per_batch": float(flops.training(shape, size)),
        "flops_per_batch_recompute": float(flops.training(shape, size, recompute=True)),
        **({"useful_flops_per_batch": _useful(config, shape)} if config.get("system", {}).get("sparse") else {}),
    }


def _useful(config: Mapping[str, Any], shape: Any) -> float:
    """Flops of a batch of a GPT whose kernels skip what is pruned: of the blocks' weights the share that stays; the
    head, and the attention's scores and values, whole."""
    skipped = config["pruning"]["sparsity"] * (shape.layers * shape.block().flops - flops.attention(shape))
    return float(round(config["batch"]["size"] * 3 * (flops.forward(shape) - skipped)))
