"""Prune a network between batches: replace its model states by compressed states of the kept weights (SAMO III).

All stages together draw one mask from full-precision weights: before the first batch, or between later batches, as the
method decides. Weights and moments keep their values (You et al. find no gain in rewinding). All ends of a tied weight
have the indices of its first end.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.comm.p2p.polling import complete
from suite.core.errors import InvalidRequest
from suite.core.values import format_value
from suite.engine.pruning.settings import Pruning
from suite.engine.states.flat_layout import FlatLayout, plan_states
from suite.engine.ties import TieGroup, as_pairs
from suite.engine.torch_api.torch_optimizer import TorchOptimizer
from suite.engine.train_state import TrainState
from suite.pruning.mask import Indices, Key, View, check_index, describe_weight, prunable

KeptById = dict[int, torch.Tensor]  # kept indices of each pruned weight, by the id of the weight


def prune_if_due(state: TrainState, pruning: Pruning, *, since: int | None = None) -> bool:
    """Let the method draw a mask if it draws one now, and prune. Every rank calls this between batches.

    Args:
        since: Number of updates at the previous call. The method draws if it draws after any update since then. None
            considers the current update only.

    Returns:
        Whether the network was pruned.
    """
    now = state.updates
    updates = (now,) if since is None else range(since + 1, now + 1)
    if state.pruned_after is not None or not any(map(pruning.method.draws_after, updates)):
        return False
    indices = draw_mask(state, pruning)
    if indices is not None:
        prune(state, indices)
    return indices is not None


def draw_mask(state: TrainState, pruning: Pruning) -> Indices | None:
    """This stage's part of the mask; None if the method has not found a mask yet."""
    layers, settings, guard = dict(state.numbered_layers()), state.settings, state.comm.guard
    duplicates = {end for tie in state.ties for end in tie.duplicates}
    keys = [
        (number, name)
        for number, layer in layers.items()
        for name in prunable(layer, pruning.scope)
        if (number, name) not in duplicates
    ]

    def full_precision_weight(key: Key) -> torch.Tensor:
        parameter = layers[key[0]].get_parameter(key[1])
        if not state.allocated or not parameter.requires_grad:
            return parameter.data
        return state.model_states.export(parameter)["weight"]

    view = View(
        layers=list(layers.items()),
        weight=full_precision_weight,
        keys=keys,
        sparsity=pruning.sparsity,
        seed=settings.config.seed,
        total=guard.sum_over_stages,
        stage=settings.place.rank,
        stages=settings.grid.inter,
    )
    with guard.all_or_none("a mask is drawn"):
        indices = pruning.method.draw(view)
    return None if indices is None else {**indices, **_indices_of_duplicates(state, indices)}


def _indices_of_duplicates(state: TrainState, indices: Mapping[Key, torch.Tensor]) -> Indices:
    """Indices of this rank's further ends of ties, equal to those of the first end."""
    duplicates: Indices = {}
    for tie in state.ties:
        if not tie.weights:
            continue
        index = indices.get(next(iter(tie.weights))) if tie.holds_first else None
        index = index if tie.local else _broadcast_index(state, tie, index)
        if index is not None:
            duplicates |= dict.fromkeys(tie.duplicates, index)
    return duplicates


def _broadcast_index(state: TrainState, tie: TieGroup, index: torch.Tensor | None) -> torch.Tensor | None:
    """The index on the rank of the tie's first end, on all ranks of the tie; None for a weight that stays dense."""
    device, transport = state.comm.world.device, state.comm.transport
    count = torch.tensor([0 if index is None else index.numel()], device=device)
    complete(tie.group.broadcast(count, tie.ranks[0]), transport)
    if not int(count):
        return None
    index = (torch.empty(int(count), dtype=torch.int32) if index is None else index).to(device)
    complete(tie.group.broadcast(index, tie.ranks[0]), transport)
    return index


def prune(state: TrainState, indices: Mapping[Key, torch.Tensor]) -> None:
    """Keep only the entries `indices` of this stage's weights; all other entries are zero from now on.

    Every rank calls it between batches with its stage's part of one mask. Kept weights and moments keep their values.
    Memory holds the old and the new states while the new ones are allocated.

    Raises InvalidRequest on all ranks, before anything has changed, in each of these cases: a batch is in progress; the
    network is already pruned; the memory layout stores every entry; the mask is empty or belongs to another model; the
    masks differ between replicas or between the ends of a tied weight."""
    guard = state.comm.guard
    with guard.all_or_none("the network is pruned"):
        state.check_drained("prune()")
        kept = validate_mask(state, indices)
    if not guard.sum_over_stages(len(kept)):
        raise InvalidRequest(
            "an empty mask", rule="a mask has the indices of at least one weight", legal="indices by (layer, name)"
        )
    _check_ranks_agree(state, indices)
    reallocate(state, kept)
    state.pruned_after = state.updates


def validate_mask(state: TrainState, indices: Mapping[Key, torch.Tensor]) -> KeptById:
    """Kept indices by the ids of this stage's weights. Raises InvalidRequest as `prune` does, on this rank only."""
    if state.pruned_after is not None:
        raise InvalidRequest(
            "prune() of a pruned network", rule="an engine is pruned at most once", legal="a new engine"
        )
    kept = _kept_by_id(state, indices)
    if state.allocated:
        if kept and isinstance(rule := state.update.rule, TorchOptimizer):
            rule.translate("compressed states of pruned weights")
        old, config = state.model_states, state.settings.config
        flat = FlatLayout(old.parameters, kept)
        bucket_numel = flat.bucket_numel(config.bucket_numel)
        plan_states(config.memory, flat, tuple(old.rule.moments), old.dtype, old.half, bucket_numel, old.device)
    return kept


def _kept_by_id(state: TrainState, indices: Mapping[Key, torch.Tensor]) -> KeptById:
    """Kept indices by the ids of this stage's weights. Raises InvalidRequest for a mask of another model."""
    layers, numbers = dict(state.numbered_layers()), range(len(state.settings.parts.layers))
    keys = list(indices) if isinstance(indices, Mapping) else [indices]
    if wrong := [k for k in keys if not (isinstance(k, tuple) and len(k) == 2 and k[0] in numbers)]:
        rule = f"a mask maps (layer number below {len(numbers)}, name of its weight) to indices"
        raise InvalidRequest(f"a mask with key {format_value(wrong[0])}", rule=rule)
    kept = {}
    for key, index in indices.items():
        if key[0] not in layers:
            continue  # the weight belongs to another stage
        parameter = dict(layers[key[0]].named_parameters()).get(key[1])
        if parameter is None or not parameter.requires_grad:
            raise InvalidRequest(
                f"a mask with {describe_weight(key)}, which this model does not train",
                rule="a mask names trained weights",
            )
        check_index(key, index, parameter.numel())
        kept[id(parameter)] = index
    return kept


def _check_ranks_agree(state: TrainState, indices: Mapping[Key, torch.Tensor]) -> None:
    """Raises InvalidRequest on all ranks if replicas, or the ends of a tied weight, keep different entries."""
    settings, guard = state.settings, state.comm.guard
    stage_mask, stages = b"", settings.grid.inter if settings.grid.size > 1 else 0  # one rank agrees with itself
    if stages:
        stage_keys = sorted(key for key in indices if key[0] in settings.layers)
        stage_mask = b"".join(f"{key}".encode() + _to_bytes(indices[key]) for key in stage_keys)
    for stage in range(stages):
        if not guard.all_equal(stage_mask if stage == settings.place.rank else None):
            raise InvalidRequest(
                f"masks of stage {stage} that differ between replicas", rule="all replicas have the same mask"
            )
    for tie in state.ties:
        masks = [indices.get(end) for end in tie.weights]
        differ_here = guard.max(not all(_equal(mask, masks[0]) for mask in masks))  # every rank calls both reductions
        first = _to_bytes(masks[0]) if masks and stages else None
        if not guard.all_equal(first) or differ_here:
            raise InvalidRequest(
                f"a mask that prunes the ends of tied={as_pairs(tie.ends)} differently",
                rule="all ends of a tied weight have the same mask",
            )


def _equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def _to_bytes(index: torch.Tensor | None) -> bytes:
    return b"" if index is None else index.cpu().numpy().tobytes()


def mask_of(state: TrainState) -> tuple[Indices, dict[Key, int]]:
    """This stage's part of the mask, and the number of entries of each of its weights; empty before pruning."""
    kept = state.model_states.kept
    pruned = {
        (n, name): p for n, layer in state.numbered_layers() for name, p in layer.named_parameters() if id(p) in kept
    }
    return {key: kept[id(p)] for key, p in pruned.items()}, {key: p.numel() for key, p in pruned.items()}


@torch.no_grad()
def reallocate(state: TrainState, kept: Mapping[int, torch.Tensor]) -> None:
    """Allocate model states for the kept entries and copy the old states into them. `kept` has been validated."""
    if not state.allocated:
        state.allocate(kept)
        return
    old = state.model_states
    exported = {id(parameter): old.export(parameter) for parameter in old.parameters}
    for parameter in old.parameters:
        parameter.data, parameter.grad = exported[id(parameter)]["weight"].to(old.device), None
    skipped, updates = state.update.skipped, old.rule.updates
    state.allocate(kept)
    new = state.model_states
    for parameter in new.parameters:
        for name, moment in new.rule.moments.items():
            new.write(moment, parameter, exported[id(parameter)][name])
    new.rule.updates, state.update.skipped = updates, skipped
