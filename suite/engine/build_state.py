"""Build the train state of an engine from its arguments."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch

from suite.comm.rendezvous import mpiexec_flags
from suite.comm.world import init_world
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.protocols import World
from suite.engine import arguments, asynchronous
from suite.engine.arguments import EngineArguments, schedule_of
from suite.engine.batch_agreement import BatchAgreement
from suite.engine.batch_slicing import BatchSlicer
from suite.engine.checked_schedule import CheckedSchedule
from suite.engine.collective_guard import CollectiveGuard
from suite.engine.layers import Layer, broadcast_weights, find_ties, make_modules, tied_ends
from suite.engine.optim.loss_scaler import unscaled
from suite.engine.optim.optimizer import state_names
from suite.engine.optim.update import Update
from suite.engine.process_setup import check_half
from suite.engine.pruning_step import prune_if_due
from suite.engine.split_backward import check_splittable
from suite.engine.stage import Stage
from suite.engine.states.state import ModelState
from suite.engine.train_state import Communicators, RunSettings, TrainState
from suite.engine.weight_versions import WeightVersions
from suite.schedule.placement import is_split, places
from suite.weights.policy import Latest
from suite.workload.split import evenly


def build_train_state(args: EngineArguments) -> TrainState:
    """The state before the first batch, on every rank: weights are equal over replicas and over ends of ties.

    Raises InvalidRequest for arguments that cannot train together."""
    parts = arguments.check(args)
    world = args.world or init_world()
    settings = _settings(args, parts.layers, world)
    comm = _communicators(settings, world)
    place, policy = settings.place, args.weights or Latest()
    modules, copies = make_modules(
        parts.layers, settings.layers, settings.seed, device=world.device, half=settings.half
    )
    arguments.check_full_precision(modules.values(), args.half)
    if is_split(schedule_of(args)):
        check_splittable(part for module in modules.values() for part in module.modules())
    asynchronous.check(args, policy, settings.grid, tied=bool(settings.ties))
    agreement = BatchAgreement(world, comm.transport, settings.grid.size, off=not args.compare_batches)
    broadcast_weights(
        modules,
        settings.ties,
        data_parallel_group=comm.data_parallel_group,
        embedding_group=comm.embedding_group,
        transport=comm.transport,
    )
    stages = {}
    for number in place.held_stages:
        is_last = number == place.stages - 1
        stages[number] = Stage(
            [modules[layer] for layer in settings.split[number]],
            first_layer=settings.split[number].start,
            seed=settings.seed,
            loss=args.loss if is_last else None,
            scores=args.scores if is_last else None,
            structure=parts.output if is_last else None,
            checkpoint_interval=args.activation_checkpointing,
        )
    loss_scaler = (copy.deepcopy(args.loss_scaler) or unscaled()) if settings.half else None  # each engine has its own
    trained = [p for stage in stages.values() for p in stage.layers.parameters() if p.requires_grad]
    ties = [tied_ends(modules, tie) for tie in settings.ties]
    trained_ties = [tuple(parameter for parameter in tie if parameter.requires_grad) for tie in ties]
    state = TrainState(
        settings=settings,
        comm=comm,
        agreement=agreement,
        schedule=CheckedSchedule(
            schedule_of(args), place, settings.update_interval, any_order=comm.transport.any_order
        ),
        slicer=BatchSlicer(place, settings.microbatch, world.device, settings.half, parts.input_names),
        stages=stages,
        copies=copies,
        versions=WeightVersions(policy, place.stages),
        loss_scaler=loss_scaler,
        pruning=copy.deepcopy(args.pruning),  # a search has state
        make_model_states=lambda kept: ModelState(
            trained,
            state_names(args.optimizer, predicts=policy.predicts),
            args.memory,
            half=settings.half,
            bucket_numel=args.bucket_numel,
            kept=kept,
        ),
        make_update=partial(
            Update,
            rule=args.optimizer,
            data_parallel_group=comm.data_parallel_group,
            embedding_group=comm.embedding_group,
            ties=trained_ties,
            transport=comm.transport,
            world=world if settings.grid.size > 1 else None,
            tied_duplicates=[tie[-1] for tie in trained_ties if tie and place.last],
            counts_in_norm=place.replica == 0,
            buckets_per_reduction=args.buckets_per_reduction,
            clip_norm=args.clip_norm,
            loss_scaler=loss_scaler,
            synchronous=not settings.streams,
        ),
    )
    if state.pruning is None or not prune_if_due(state, state.pruning):
        state.allocate({})
    return state


def _settings(args: EngineArguments, layers: Sequence[Layer], world: World) -> RunSettings:
    """Settings of this rank. Raises InvalidRequest for a grid of another size than the world."""
    grid = args.grid or Grid()
    if world.size != grid.size:
        raise InvalidRequest(
            f"a grid of {grid.size} ranks ({grid}) in a world of {world.size} ranks",
            rule="the world has one rank per place of the grid",
            legal=mpiexec_flags.command_line(grid.size),
        )
    if args.half:
        check_half(args.half, world.device)
    position = grid.place(world.rank)
    place = places(schedule_of(args), grid.inter, position.replica, position.replicas)[position.rank]
    split = args.split or evenly(len(layers), place.stages)
    return RunSettings(
        grid=grid,
        rank=world.rank,
        place=place,
        split=split,
        ties=find_ties(layers, args.tied, split),
        seed=args.seed,
        microbatch=int(args.microbatch),
        half=getattr(torch, args.half) if args.half else None,
        update_interval=args.update_interval,
        bucket_numel=args.bucket_numel,
        memory_layout=args.memory,
        score_names=tuple(args.score_names),
    )


def _communicators(settings: RunSettings, world: World) -> Communicators:
    """Communicators of this rank. Every rank creates the groups of all ranks and replicas, in the same order."""
    grid, place = settings.grid, settings.place
    data_parallel_groups = [world.group(grid.data_parallel_group(rank)) for rank in grid.pipeline(0)]
    pipelines = [grid.pipeline(grid.rank(data=replica, inter=0)) for replica in range(grid.data)]
    ends = place.rank_of(0), place.rank_of(place.stages - 1)
    embedding_groups = [world.group(tuple(dict.fromkeys(pipeline[end] for end in ends))) for pipeline in pipelines]
    transport = world.transport(settings.homes)
    return Communicators(
        world=world,
        transport=transport,
        data_parallel_group=data_parallel_groups[place.rank],
        embedding_group=embedding_groups[place.replica],
        guard=CollectiveGuard(world, grid.size, place.replica, transport.progress),
    )
