"""Build the train state of an engine from its arguments."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import cast

import torch
from torch import nn

from suite.accelerator import Clock, on_host
from suite.comm.rendezvous import mpiexec_flags
from suite.comm.world import init_world
from suite.core.errors import InvalidRequest, MissingDependency, Unsupported
from suite.core.members import missing_members
from suite.core.protocols import UpdateRule, WeightPolicy, World
from suite.engine.engine_config import EngineConfig, makes_optimizer
from suite.engine.guards import asynchronous
from suite.engine.guards.rank_consistency import RankConsistencyCheck
from suite.engine.guards.user_state import UserState
from suite.engine.layers import broadcast_weights, make_modules
from suite.engine.losses import LossCheck, as_counted
from suite.engine.optim.loss_scaler import unscaled
from suite.engine.optim.optimizer import SGD, Adam, RMSprop, state_names
from suite.engine.optim.update import Update
from suite.engine.process_setup import device_of
from suite.engine.pruning.step import prune_if_due
from suite.engine.split_backward import check_splittable
from suite.engine.stage import Stage
from suite.engine.states.state import FusedStep, ModelState
from suite.engine.stream import BatchSlicer
from suite.engine.ties import Ends, TieGroup, broadcast_ties, find_ties, make_ties
from suite.engine.torch_api.separable import check_separable
from suite.engine.torch_api.split_model import ModelParts
from suite.engine.torch_api.torch_optimizer import TorchOptimizer, TrainedWeights
from suite.engine.train_state import Communicators, RunSettings, TrainState
from suite.engine.versions import WeightVersions
from suite.schedule.placement import is_split, place_of
from suite.weights.policy import Latest
from suite.workload.split import evenly


def build_train_state(config: EngineConfig) -> TrainState:
    """The state before the first batch, on every rank: weights are equal over replicas and over the ends of ties.

    Raises InvalidRequest for arguments that cannot train together."""
    parts = config.parts()
    device = device_of(parts.layers, config.world.device if config.world else config.device)
    world = config.world or init_world(device=device)
    settings = _settings(config, parts, world)
    comm = _communicators(settings, world)
    place, policy = settings.place, config.weights or Latest()
    modules, copies = make_modules(parts.layers, settings.layers, config.seed, device=world.device, half=settings.half)
    if is_split(config.chosen_schedule):
        check_splittable(part for module in modules.values() for part in module.modules())
    whole = _weights(parts, settings.ties)
    trained_weights = {name: weight for name, weight in whole.items() if weight.requires_grad}
    rule = _update_rule(config, policy, settings, modules, whole)
    _check_pipeline(config, policy, rule, settings)
    _check_groups(rule, comm)
    ties = _ties(settings, comm, modules)
    broadcast_weights(modules.values(), comm.data_parallel_group, comm.transport)
    broadcast_ties(ties, comm.transport)
    loss = config.loss if settings.streams else as_counted(config.loss)
    stages = {}
    for number in place.held_stages:
        is_last = number == place.stages - 1
        stages[number] = Stage(
            [modules[layer] for layer in settings.split[number]],
            first_layer=settings.split[number].start,
            seed=config.seed,
            loss=loss if is_last else None,
            scores=config.scores if is_last else None,
            structure=parts.output if is_last else None,
            divides=settings.streams,
            reads_batch=number == 0,
            checkpoint_interval=config.activation_checkpointing,
        )
    clock, fused = Clock(world.device), _fused_step(config, rule, policy, world)
    own_scaler = copy.deepcopy(config.loss_scaler)  # it changes
    loss_scaler = (own_scaler or unscaled()) if settings.half else None
    trained = [p for stage in stages.values() for p in stage.layers.parameters() if p.requires_grad]
    own = [(settings.name_of(n, name), p) for n, module in modules.items() for name, p in module.named_parameters()]
    names = {id(weight): name for name, weight in own}
    originals = [(names[id(copied)], original) for original, copied in copies.weights.items()]
    elsewhere, buffers_elsewhere = _elsewhere(parts, settings)
    known = {*names, *(id(weight) for _, weight in originals)}
    foreign = [named for key, named in elsewhere.items() if key not in known]
    shared = [
        (settings.name_of(number, name), buffer)
        for number, module in modules.items()
        for name, buffer in module.named_buffers()
        if id(buffer) in buffers_elsewhere
    ]
    if place.stages - 1 in stages and (foreign or originals):
        stages[place.stages - 1].foreign = {id(weight): name for name, weight in (*foreign, *originals)}
    trained_ties = [tie for tie in ties if tie.trained]
    state = TrainState(
        settings=settings,
        comm=comm,
        clock=clock,
        schedule=config.chosen_schedule,
        slicer=BatchSlicer(
            place, int(config.microbatch), world.device, settings.half, config.shard, input_names=parts.input_names
        ),
        stages=stages,
        ties=ties,
        copies=copies,
        trained_weights=trained_weights,
        user=UserState([*own, *originals], modules.values(), parts.traced, shared),
        versions=WeightVersions(policy, place.stages),
        loss_scaler=loss_scaler,
        loss_check=LossCheck(loss, parts.output, place.replicas) if place.stages - 1 in place.held_stages else None,
        pruning=copy.deepcopy(config.pruning),  # a search has state
        make_model_states=lambda kept: ModelState(
            trained,
            state_names(rule, predicts=policy.predicts),
            config.memory,
            half=settings.half,
            bucket_numel=config.bucket_numel,
            kept=kept,
            clock=clock,
            fused=fused,
        ),
        make_update=partial(
            Update,
            rule=rule,
            data_parallel_group=comm.data_parallel_group,
            ties=trained_ties,
            most_ends=_most_ends(settings, comm, trained_ties),
            transport=comm.transport,
            reduce_number=comm.guard.reduce,
            counts_in_norm=place.replica == 0,
            buckets_per_reduction=config.buckets_per_reduction,
            clip_norm=config.clip_norm,
            loss_scaler=loss_scaler,
            synchronous=not settings.streams,
            names=names if trained_weights and not settings.streams else {},
        ),
    )
    if state.pruning is None or not prune_if_due(state, state.pruning):
        state.allocate({})
    return state


def _update_rule(
    config: EngineConfig,
    policy: WeightPolicy,
    settings: RunSettings,
    modules: Mapping[int, nn.Module],
    whole: Mapping[str, nn.Parameter],
) -> UpdateRule:
    """The update rule, or the optimizer that the user's function makes.

    Args:
        whole: Weights of the whole model by name, of which the function makes the optimizer; empty where a rank has its
            own weights only.
    """
    if not makes_optimizer(config.optimizer):
        return cast(UpdateRule, config.optimizer)
    named: dict[int, tuple[str, nn.Parameter]] = {}
    leaves: dict[str, list[nn.Parameter]] = {}
    for number in settings.layers:
        for name, parameter in modules[number].named_parameters():
            if parameter.requires_grad and id(parameter) not in named:
                named[id(parameter)] = settings.name_of(number, name), parameter
                leaves.setdefault(settings.name_among(whole, number, name), []).append(parameter)
    reasons = {
        f"half={config.half_name!r}": config.half is not None,
        "bucket_numel=": config.bucket_numel is not None,
        "states in host memory": any(state.home == "host" for state in config.layout(("moment",))),
        "pruning=": config.pruning is not None,
        "update_interval=": config.update_interval is not None,  # graphs in flight would see torch write to weights
        "predicted weights": policy.predicts,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), "")
    knows_all = "" not in leaves  # no trained weight lacks a name in the whole model
    optimizer = TorchOptimizer(
        config.optimizer,
        TrainedWeights(named.values()),
        config.lr_scheduler,
        translate_for=reason,
        whole=whole if knows_all else None,
        leaves=leaves,
    )
    if knows_all and leaves.keys() < whole.keys():
        check_separable(config.optimizer, optimizer.optimizer, whole, [name for name in whole if name in leaves])
    return optimizer


def _fused_step(config: EngineConfig, rule: UpdateRule, policy: WeightPolicy, world: World) -> FusedStep | None:
    """The step of one kernel, with `fused`. Raises MissingDependency, and Unsupported without a kernel for it."""
    if not config.fused:
        return None
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # Triton then runs its kernels on the host
    has_kernel = isinstance(rule, SGD | Adam | RMSprop) and (interpreted or not on_host(world.device))
    if config.half is None or policy.predicts or not has_kernel:
        rule_text = "one Triton kernel makes a step of SGD, Adam, AdamW or RMSprop in mixed precision on a GPU"
        raise Unsupported("fused", True, rule=f"{rule_text}, without predicted weights", legal="fused=False")
    if find_spec("triton") is None:
        raise MissingDependency("fused=True", "the step is a Triton kernel; pip install triton")
    from suite.engine.optim.fused import step

    return step


def _check_pipeline(config: EngineConfig, policy: WeightPolicy, rule: UpdateRule, settings: RunSettings) -> None:
    """Raises InvalidRequest where this policy, optimizer and memory layout cannot train together."""
    if config.pruning is not None and settings.place.stages > settings.place.ranks:
        raise Unsupported(
            "pruning",
            config.pruning,
            rule="a mask divides equal weights in the order of stages, which is the order of ranks with one stage each",
            legal="pruning=None, or a schedule with one stage per rank",
        )
    if policy.predicts and (missing := missing_members(rule, UpdateRule)):
        raise Unsupported(
            f"{type(policy).__name__} with {type(rule).__name__}, which cannot predict weights",
            rule=f"an update rule with {' and '.join(missing)}, as suite.core.protocols.UpdateRule has",
            legal="SGD, Adam",
        )
    rules: Sequence[UpdateRule] = rule.rules() if isinstance(rule, TorchOptimizer) and policy.predicts else [rule]
    scaler = config.loss_scaler
    asynchronous.check(
        policy,
        config.chosen_schedule,
        config.grid.inter,
        config.update_interval,
        has_momentum=all(isinstance(each, SGD) and each.momentum for each in rules),
        layout=config.layout(state_names(rule, predicts=policy.predicts)),
        tied=bool(settings.ties),
        clip_norm=config.clip_norm,
        scales_follow_overflows=scaler is not None and scaler.least != scaler.most,
    )


def _check_groups(rule: UpdateRule, comm: Communicators) -> None:
    """Raises InvalidRequest, on all ranks, for parameter groups that differ between ranks: a checkpoint moves to other
    grids."""
    if isinstance(rule, TorchOptimizer) and not comm.guard.all_equal(json.dumps(rule.settings).encode()):
        raise InvalidRequest(
            "optimizer",
            rule.optimizer,
            what=f"optimizer= with {len(rule.settings)} parameter groups on this rank, and others on another rank",
            rule="every rank makes the same groups with the same settings",
            legal="a group without weights on this rank, which the optimizer takes as params=[]",
        )


def _settings(config: EngineConfig, parts: ModelParts, world: World) -> RunSettings:
    """Settings of this rank. Raises InvalidRequest for a grid of another size than the world."""
    grid = config.grid
    if world.size != grid.size:
        raise InvalidRequest(
            f"a grid of {grid.size} ranks ({grid}) in a world of {world.size} ranks",
            rule="the world has one rank per place of the grid",
            legal=mpiexec_flags.command_line(grid.size),
        )
    place = place_of(config.chosen_schedule, grid, world.rank)
    return RunSettings(
        config=config,
        parts=parts,
        rank=world.rank,
        place=place,
        split=config.split or evenly(len(parts.layers), place.stages),
        ties=find_ties(parts.layers, config.tied),
        half=getattr(torch, config.half_name) if config.half_name else None,
    )


def _shards(config: EngineConfig) -> list[tuple[int, ...]]:
    """Ranks that read the same batches: all ranks, or with `shard` those of each replica."""
    grid = config.grid
    if not config.shard:
        return [tuple(range(grid.size))]
    return [grid.pipeline(grid.rank(data=replica, inter=0)) for replica in range(grid.data)]


def _weights(parts: ModelParts, ties: Sequence[Ends]) -> dict[str, nn.Parameter]:
    """Weights of the whole model by name, a tied one once; empty where a function makes a layer."""
    if parts.weights:
        return dict(parts.weights)
    duplicates = {end for ends in ties for end in ends[1:]}
    weights: dict[int, tuple[str, nn.Parameter]] = {}
    for number, module in enumerate(parts.modules):
        for name, weight in module.named_parameters():
            if (number, name) not in duplicates:
                weights.setdefault(id(weight), (parts.name_of(number, name), weight))
    return dict(weights.values())


def _elsewhere(parts: ModelParts, settings: RunSettings) -> tuple[dict[int, tuple[str, nn.Parameter]], frozenset[int]]:
    """The weights of all layers and of the user's, with their names, by id; ids of the buffers of other stages."""
    weights: dict[int, tuple[str, nn.Parameter]] = {}
    buffers: set[int] = set()
    for number, layer in [*enumerate(parts.layers), *enumerate(parts.originals)]:
        if isinstance(layer, nn.Module):
            for name, weight in layer.named_parameters():
                weights[id(weight)] = settings.name_of(number, name), weight
            if number not in settings.layers:
                buffers.update(map(id, layer.buffers()))
    return weights, frozenset(buffers)


def _communicators(settings: RunSettings, world: World) -> Communicators:
    """Communicators of this rank. Every rank creates the groups of all ranks and replicas, in the same order."""
    grid, place = settings.grid, settings.place
    data_parallel_groups = [world.group(grid.data_parallel_group(rank)) for rank in grid.pipeline(0)]
    tie_groups = [
        [world.group(sorted({*settings.ranks_of(ends, replica)})) for ends in settings.ties]
        for replica in range(grid.data)
    ]
    transport = world.transport(settings.homes)
    return Communicators(
        world=world,
        transport=transport,
        data_parallel_group=data_parallel_groups[place.rank],
        tie_groups=tie_groups[place.replica],
        guard=RankConsistencyCheck(
            world, transport, place.replica, _shards(settings.config), off=not settings.config.compare_batches
        ),
    )


def _ties(settings: RunSettings, comm: Communicators, modules: Mapping[int, nn.Module]) -> tuple[TieGroup, ...]:
    """The ties of the model. Raises InvalidRequest on all ranks where one finds no weight of a name."""
    if not settings.ties:
        return ()
    ranks = [settings.ranks_of(ends, settings.place.replica) for ends in settings.ties]
    with comm.guard.all_or_none("weights are tied"):
        return make_ties(settings.ties, ranks, comm.tie_groups, modules, settings.rank)


def _most_ends(settings: RunSettings, comm: Communicators, trained_ties: Sequence[TieGroup]) -> int:
    """The largest number of ends of a trained tie in the model; 1 without ties. Other ranks may hold that tie."""
    return comm.guard.max(max((len(tie.ends) for tie in trained_ties), default=1)) if settings.ties else 1
