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
from suite.workload.shapes import LayerShape, Network, Transformer
from suite.workload.split import blocks, divide

_WIDTH = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def budgets(config: Mapping[str, Any]) -> list[Budget]:
    """The memory of each rank of a system on the suite's engine, in rank order."""
    grid = Grid(**config["grid"])
    shape: Network = build(config["model"]["shape"])
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
    counted = blocks(shape, split)
    apart = chosen(config["checkpoints"], counted)
    recompute = config["weights"].get("graph") == "recompute"
    result = []
    for rank in range(grid.size):
        place = grid.place(rank)
        own = [shapes[index] for index in split[place.stage]]
        entries, ticket = sum(layer.parameters + layer.tied for layer in own), _kept(config["pruning"], own)
        reduced = entries - ticket.get("of", 0) + ticket.get("kept", 0)
        # a stage's output stays with its graph, and its input is the first layer's saved one
        boundary = 0 if place.last else own[-1].output
        saved = microbatch * (sum(layer.saved for layer in own) + boundary)
        entering = 0 if place.first else microbatch * shapes[split[place.stage].start - 1].output
        working = _working(own, microbatch)
        in_flight = schedule.in_flight(place, work)
        # every microbatch open on the stage before is open here, or waits here, or comes back as a gradient
        before = 0 if place.first else schedule.in_flight(grid.place(rank - 1), work)
        if apart and counted[place.stage]:
            entered = [shapes[index - 1].output if index else 0 for index in split[place.stage]]
            saved, working = _checkpointed(own, entered, apart, microbatch)
        if recompute:
            working, saved = saved + working, entering
        result.append(
            Budget(
                layout=layout(entries=entries, moments=moments, dtype=config["model"]["dtype"], half=half, **ticket),
                activations=saved,
                in_flight=in_flight,
                working=working,
                waiting=max(0, before - in_flight) * entering,
                reducing=min(chunk, reduced) * width if exchanged else 0,
                beside=chunk < reduced,
            )
        )
    return result


def _kept(pruning: Mapping[str, Any], own: Sequence[LayerShape]) -> dict[str, int]:
    """Of a stage's weights that are pruned the entries, and how many stay: exact where every weight is pruned alike,
    near where a threshold is one of the whole model, or where every tensor is pruned."""
    if not pruning["ticket"] or pruning.get("searches"):  # until masks have settled states are whole
        return {}
    alike = [layer.parameters + layer.tied for layer in own] if pruning["what"] == "all" else []
    sizes = alike or [size for layer in own for size in layer.prunable]
    density = 1 - float(pruning["sparsity"])
    return {"kept": sum(round(density * size) for size in sizes), "of": sum(sizes)} if sizes else {}


def _exchanged(config: Mapping[str, Any]) -> bool:
    """Whether two replicas add by an exchange of bytes (comm.mpi), which needs room for the other's part."""
    over_mpi = config["comm"]["transport"] in ("auto", "mpi") and config["launch"]["starter"] == "mpiexec"
    return (
        config["grid"]["data"] == 2
        and over_mpi
        and bool(config["comm"]["pair_exchange"])
        and config["launch"]["device"] == "cpu"
    )


def _working(own: Sequence[LayerShape], microbatch: int) -> int:
    """The largest transient of a stage's passes beside all that it keeps: a layer's own, less what the layers behind it
    have kept, which is gone when its backward pass runs."""
    largest = gone = 0
    for layer in reversed(own):
        largest = max(largest, microbatch * (layer.working - gone) + layer.weight_working)
        gone += layer.saved
    return largest


def _checkpointed(own: Sequence[LayerShape], entered: Sequence[int], apart: int, microbatch: int) -> tuple[int, int]:
    """Bytes kept of a microbatch on a stage whose blocks are computed again, `apart` at a time, and the largest
    transient beside them: of the other layers' backward passes, or, when those are over, of an interval's. `entered`
    are the bytes of each layer's input."""
    blocks = [(layer, size) for layer, size in zip(own, entered, strict=True) if layer.checkpointed]
    others = [layer for layer in own if not layer.checkpointed]
    held = sum(layer.saved for layer in others)
    intervals = [blocks[at : at + apart] for at in range(0, len(blocks), apart)]
    inputs = [interval[0][1] for interval in intervals]
    largest = max((microbatch * layer.working + layer.weight_working for layer in others), default=0)
    gone = held
    for interval, kept in zip(reversed(intervals), reversed(inputs), strict=True):
        layers = [layer for layer, _ in interval]
        again = sum(layer.saved for layer in layers) - kept
        largest = max(largest, microbatch * (again - gone) + _working(layers, microbatch))
        gone += kept
    return microbatch * (sum(inputs) + held), largest


def counts(config: Mapping[str, Any]) -> dict[str, float]:
    """Tokens or images, and flops, of one training batch, over all ranks."""
    shape: Network = build(config["model"]["shape"])
    size = config["batch"]["size"]
    per_sample = {"tokens": shape.sequence} if isinstance(shape, Transformer) else {"images": 1}
    return {
        **{f"{name}_per_batch": float(size * count) for name, count in per_sample.items()},
        "flops_per_batch": float(flops.training(shape, size)),
        "flops_per_batch_recompute": float(flops.training(shape, size, recompute=True)),
        **({"useful_flops_per_batch": _useful(config, shape)} if config.get("system", {}).get("sparse") else {}),
    }


def _useful(config: Mapping[str, Any], shape: Any) -> float:
    """Flops of a batch of a GPT whose kernels skip what is pruned: of the blocks' weights the share that stays; the
    head, and the attention's scores and values, whole."""
    skipped = config["pruning"]["sparsity"] * (shape.layers * shape.block().flops - flops.attention(shape))
    return float(round(config["batch"]["size"] * 3 * (flops.forward(shape) - skipped)))
