"""Bytes of one device by kind: weights, gradients, optimizer states, activations, logits.

Mixed-precision training has half-precision weights, gradients, single-precision weights and two moments of Adam.
Single-precision training has no second copy of the weights.
Activations follow from the kernels: each saves what its backward pass reads (Korthikanti et al. 2022, Section 4).
sources.yaml has the source and the range of each constant.
"""

from __future__ import annotations

from math import fsum

from suite.simulate.operations.setup import TrainingSetup
from suite.workload.megatron_activations import saved_per_token

HALF, FULL = 2, 4
MOMENTS = 8  # bytes per parameter of Adam's two moments
CONTEXT = 2.0e9  # bytes of the driver, its libraries and the buffers of collectives
GATHERED = 28.0
"""Bytes per logit of a loss over gathered logits: both precisions, their gradients, intermediates of softmax."""
FRAGMENTED, PIPELINED = 1.1, 1.18
"""Bytes that an allocator reserves relative to what activations need, without and with a pipeline, in which activations
of several microbatches come and go."""
OPERATORS = 0.3  # share of the saved bytes that remains where every second product is computed again
IN_FLIGHT = 2  # blocks whose sharded weights are gathered at the same time: the current and the next one


def parameters(setup: TrainingSetup, rank: int) -> float:
    """Parameters of pipeline rank `rank` on one tensor-parallel device, before sharding over replicas."""
    model, place = setup.model, setup.places[rank]
    entries = 0.0
    for stage in place.held_stages:
        entries += setup.blocks[stage] * model.block_parameters
        if stage == 0 and setup.vocabulary == "last":
            entries += model.embedding_parameters
        if stage == setup.stages - 1 and setup.vocabulary == "last":
            copied = model.tied and place.rank_of(0) != place.rank  # a tied head elsewhere is a copy
            entries += model.head_parameters + (model.hidden * model.vocabulary if copied else 0)
    if setup.vocabulary == "spread":
        entries += (model.embedding_parameters + model.head_parameters) / setup.pipeline
    return entries / setup.tensor


def shard_ranks(setup: TrainingSetup) -> int:
    """Ranks over which sharded states are divided. Context-parallel ranks hold the same weights."""
    return min(setup.shard_group or setup.data * setup.context, setup.data * setup.context)


def saved_bytes(setup: TrainingSetup) -> float:
    """Bytes that a block saves for the backward pass of a microbatch, without recomputation of whole blocks."""
    return setup.tokens * saved_per_token(
        setup.model,
        setup.tensor,
        attention=setup.attention,
        drops=setup.drops,
        keeps_scores=setup.recompute != "selective",
        fused_norm=setup.fused_norm,
        entry=setup.entry_bytes,
        saved=FULL if setup.entry_bytes == FULL else setup.generation.saved_bytes,
        sequence_parallel=setup.sequence_parallel,
        context=setup.context,
    )


def activations(setup: TrainingSetup, rank: int, in_flight: int) -> float:
    """Bytes of the activations of a rank with at most `in_flight` microbatches of one stage each."""
    held = setup.places[rank].held_stages
    blocks = max(setup.blocks[stage] for stage in held)
    whole = saved_bytes(setup)
    per_rank = setup.tensor if setup.sequence_parallel else 1
    inputs = setup.entry_bytes * setup.model.hidden * setup.tokens / per_rank
    if setup.recompute == "full":
        return in_flight * blocks * inputs + whole
    if setup.recompute == "alternate":
        return in_flight * blocks * (whole + inputs) / 2 + whole
    if setup.recompute == "operators":
        return in_flight * blocks * OPERATORS * whole + whole
    return in_flight * blocks * whole


def memory_of_ranks(setup: TrainingSetup) -> list[dict[str, float]]:
    """Bytes of a device of each pipeline rank by kind. They follow from the order of the schedule."""
    held = [setup.schedule.in_flight(place, setup.interval) if setup.schedule else 1 for place in setup.places]
    return [memory(setup, rank, count) for rank, count in enumerate(held)]


def fullest_device(setup: TrainingSetup) -> dict[str, float]:
    """Bytes of the fullest device by kind."""
    return max(memory_of_ranks(setup), key=lambda kinds: fsum(kinds.values()))


def memory(setup: TrainingSetup, rank: int, in_flight: int) -> dict[str, float]:
    """Bytes of one device of pipeline rank `rank` by kind.

    Args:
        in_flight: Most microbatches of one stage whose activations the rank holds at once.
    """
    entries, ranks = parameters(setup, rank), shard_ranks(setup)
    sharded = {kind: ranks if setup.sharding in kinds else 1 for kind, kinds in SHARDED.items()}
    entry = setup.entry_bytes
    weights, gradients = entry * entries, max(entry, setup.generation.gradient_bytes) * entries
    states = (MOMENTS + (FULL if entry == HALF else 0)) * entries / sharded["optimizer"]
    if setup.sharding == "parameters":  # single-precision shards; blocks in use are gathered in half precision
        gathered = IN_FLIGHT * setup.model.block_parameters / setup.tensor
        weights = entry * gathered
        gradients = (FULL * entries) / ranks + entry * gathered
    elif setup.sharding == "gradients":
        gradients /= sharded["gradients"]
    last = setup.stages - 1 in setup.places[rank].held_stages
    share = 1.0 if setup.vocabulary == "last" and last else 0.0
    if setup.vocabulary == "spread":
        share = 1 / setup.pipeline
    logits = share * setup.tokens * setup.model.vocabulary
    if setup.generation.gathered_logits and setup.tensor > 1:
        logits *= GATHERED
    else:
        logits *= setup.generation.loss_bytes / setup.tensor
    if setup.offload:
        states = 0.0
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer states": states,
        "activations": (PIPELINED if setup.pipeline > 1 else FRAGMENTED) * activations(setup, rank, in_flight),
        "logits": logits,
        "context": CONTEXT,
    }


SHARDED = {
    "optimizer": ("optimizer", "gradients", "parameters"),
    "gradients": ("gradients", "parameters"),
}
"""Kinds of states, and the settings of `sharding` under which replicas divide them."""
