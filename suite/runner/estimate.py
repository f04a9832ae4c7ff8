"""Estimates of a run before it starts: split, flops, and memory per rank."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from suite.config.network import PruningConfig
from suite.config.run import RunConfig
from suite.core.op import Place
from suite.core.protocols import Schedule
from suite.memory.budget import Budget
from suite.memory.checkpointing import resolve_interval
from suite.memory.optimizer_states import states_of
from suite.memory.stage_budget import stage_budget
from suite.schedule.placement import homes_of, places
from suite.simulate.policy_overheads import counting_interval, policy_overheads
from suite.workload import flops
from suite.workload.split import blocks, divide_ranks
from suite.workload.stage_memory import held_entries, microbatch_memory
from suite.workload.transformer import LayerShape, Transformer

WIDTH = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def budgets(config: RunConfig, schedule: Schedule | None = None) -> list[Budget]:
    """Predicted memory of each rank of a system on the suite's engine, in rank order.

    Args:
        schedule: Order that ran, in place of the configured schedule, whose order may depend on arrivals.
    """
    grid = config.grid.build()
    shape = config.network()
    half = config.precision.half
    width = WIDTH[half or config.model.dtype]
    shapes = shape.shapes(width)
    optimizer, exchanged = config.optimizer, config.grid.data == 2 and config.pair_exchange
    chunk = (
        optimizer.buckets_per_reduction * optimizer.bucket_numel
        if optimizer.buckets_per_reduction and not optimizer.clip_norm
        else sys.maxsize
    )
    schedule, layout = schedule or config.schedule.build(), config.memory.layout.build()
    microbatch, every = config.batch.microbatch, config.update_interval
    interval = counting_interval(config.microbatches, every, grid.inter)
    where = places(schedule, grid.inter, replicas=grid.data)
    policy = config.weights.build()
    rule, predicts = config.optimizer, policy.predicts
    moments = states_of(rule.target, rule.arguments, predicts=predicts)
    versions = policy_overheads(
        policy, schedule, grid.inter, interval
    )  # also whether a stage runs again, by the policy's own reads
    split = divide_ranks(shape, homes_of(schedule, grid.inter), config.split)
    apart = resolve_interval(config.activation_checkpointing, blocks(shape, split))

    def of_rank(place: Place) -> Budget:
        """Memory that every replica of a pipeline rank needs."""
        shapes_of_rank = [shapes[index] for stage in place.held_stages for index in split[stage]]
        entries, mask = held_entries(shapes_of_rank), _kept(config.pruning, shapes_of_rank)
        reduced = entries - mask.get("of", 0) + mask.get("kept", 0)
        return stage_budget(
            layout(entries=entries, moments=moments, dtype=config.model.dtype, half=half, **mask),
            [
                microbatch_memory(shapes, split, stage, microbatch, apart=apart, again=versions[stage].recomputes)
                for stage in place.held_stages
            ],
            schedule,
            place,
            interval,
            extra_versions=max(versions[stage].extra_versions for stage in place.held_stages),
            reducing=min(chunk, reduced) * width if exchanged else 0,
            overlaps_step=chunk < reduced,
            scratch_stays=False,  # the engine allocates what a step needs, and frees it
        )

    ranks = [of_rank(place) for place in where]
    return [ranks[grid.position(rank).inter] for rank in range(grid.size)]


def _kept(pruning: PruningConfig, own: Sequence[LayerShape]) -> dict[str, int]:
    """Number of prunable entries of a stage, and number of those that remain.

    The numbers are exact for a sparsity per weight, and approximate for a threshold over the whole model or over all
    tensors.
    """
    if not pruning.ticket or pruning.searches:  # states are dense until the masks are final
        return {}
    alike = [layer.parameters + layer.tied for layer in own] if pruning.scope == "all" else []
    sizes = alike or [size for layer in own for size in layer.prunable]
    density = 1 - float(pruning.sparsity)
    return {"kept": sum(round(density * size) for size in sizes), "of": sum(sizes)} if sizes else {}


def counts(config: RunConfig) -> dict[str, float]:
    """Tokens or images, and flops, of one training batch over all ranks."""
    shape = config.network()
    size = config.batch.size
    word, count = flops.counted_in(shape)
    return {
        f"{word}s_per_batch": float(size * count),
        "flops_per_batch": float(flops.training(shape, size)),
        "flops_per_batch_recompute": float(flops.training(shape, size, recompute=True)),
        **({"flops_per_batch_6nd": float(flops.six_nd(shape, size))} if isinstance(shape, Transformer) else {}),
        **({"useful_flops_per_batch": _useful(config, shape)} if config.system.sparse else {}),
    }


def _useful(config: RunConfig, shape: Any) -> float:
    """Flops of a GPT batch whose kernels skip pruned weights of the blocks.

    The head and the attention scores and values count in full.
    """
    skipped = config.pruning.sparsity * (shape.layers * shape.block().flops - flops.attention(shape))
    return float(round(config.batch.size * 3 * (flops.forward(shape) - skipped)))
