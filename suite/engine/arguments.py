"""Arguments of `Engine`, and their validation.

The engine validates what a user passes before it makes anything. An error of a wrong kind, or of a value out of range,
names the argument as the user wrote it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial, wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeGuard, TypeVar

import torch
from torch import nn

from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.core.grid import Grid
from suite.core.members import check_protocol, missing_members
from suite.core.protocols import Schedule, UpdateRule, WeightPolicy, World
from suite.core.values import format_value
from suite.engine.layers import Layer
from suite.engine.losses import check_loss
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.engine.optim.lr_schedule import as_rate
from suite.engine.optim.optimizer import SGD, Adam, RMSprop
from suite.engine.optim.torch_optimizer import LEGAL, OptimizerFactory, SchedulerFactory
from suite.engine.pruning import Pruning
from suite.engine.split_model import ModelParts, is_container, split_model, whole_model
from suite.engine.states.flat_layout import LayoutFactory
from suite.engine.ties import Tie
from suite.memory.layout import Layout
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.placement import places
from suite.workload.split import Split

_Engine = TypeVar("_Engine")
_Arguments = ParamSpec("_Arguments")
HALVES = ("bfloat16", "float16")
RULES = ("SGD", "Adam", "AdamW", "RMSprop")  # update rules that have the names of torch.optim's classes
_LEGAL_MEMORY = "memory=suite.memory.layout.resident, or memory=partial(offloaded, bucket=...)"
_LEGAL_LAYERS = "model=nn.Sequential(...), another module, or [nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4)]"


@dataclass(frozen=True, slots=True)
class EngineArguments:
    """Arguments of `Engine`, which documents them. Before `check` they may have any type."""

    model: nn.Module | Sequence[Layer] | ModelParts  # parts: what `check_model` has split
    loss: Callable[..., torch.Tensor]
    optimizer: UpdateRule | OptimizerFactory
    lr_scheduler: SchedulerFactory | None
    microbatch: int
    grid: Grid | None
    schedule: Schedule | None
    weights: WeightPolicy | None
    memory: LayoutFactory
    split: Split | None
    split_points: Sequence[str] | None
    input_names: Sequence[str] | None
    tied: Sequence[Tie]
    seed: int
    half: str | None
    loss_scaler: DynamicLossScaler | None
    bucket_numel: int | None
    buckets_per_reduction: int | None
    clip_norm: float | None
    fused: bool
    activation_checkpointing: int | None
    pruning: Pruning | None
    update_interval: int | None
    scores: Callable[..., torch.Tensor] | None
    score_names: Sequence[str]
    check_loss: int
    compare_batches: bool
    shard: bool
    prefetch: bool
    device: torch.device | str | None
    world: World | None

    @classmethod
    def from_locals(cls, names: Any) -> EngineArguments:
        """The arguments among the local names of `Engine.__init__`."""
        arguments: Any = {field.name: names[field.name] for field in fields(cls)}
        if isinstance(half := arguments["half"], torch.dtype):
            arguments["half"] = str(half).removeprefix("torch.")
        return cls(**arguments)

    def make(self, engine: Callable[..., _Engine]) -> _Engine:
        """An engine of the class `engine` with these arguments."""
        return engine(**{field.name: getattr(self, field.name) for field in fields(self)})


def by_name(init: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """A constructor that refuses an unknown argument with the nearest name."""

    @wraps(init)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        check_names(kwargs)
        init(*args, **kwargs)

    return checked


def check_names(names: Iterable[str]) -> None:
    """Raises UnknownName for a name that is no argument of `Engine`."""
    known = [field.name for field in fields(EngineArguments)]
    for name in names:
        if name not in known:
            raise UnknownName("argument of Engine", name, known)


def check(args: EngineArguments) -> ModelParts:
    """The model's layers. Raises InvalidRequest for the first argument of a wrong kind or out of range."""
    parts = check_model(args.model, args.split_points, args.input_names, whole=_may_stay_whole(args))
    _check_integer("microbatch", args.microbatch, "samples", "microbatch=4")
    for name, value, unit, legal in (
        ("bucket_numel", args.bucket_numel, "weights per step", "4_000_000"),
        ("buckets_per_reduction", args.buckets_per_reduction, "buckets per all-reduce", "4"),
        ("activation_checkpointing", args.activation_checkpointing, "layers between activation checkpoints", "1"),
        ("update_interval", args.update_interval, "microbatches per update", "1"),
    ):
        if value is not None:
            _check_integer(name, value, unit, f"{name}={legal} or {name}=None")
    if not _is_integer(args.check_loss) or args.check_loss < 0:
        rule = "a whole number of batches between two checks, or 0 for none"
        raise InvalidRequest(f"check_loss={format_value(args.check_loss)}", rule=rule, legal="check_loss=1")
    if not _is_integer(args.seed):
        raise InvalidRequest(f"seed={format_value(args.seed)}", rule="a whole number", legal="seed=0")
    _check_clip_norm(args.clip_norm)
    _check_precision(args.half, args.loss_scaler)
    _check_class("grid", args.grid, Grid, "Grid(inter=2, data=1)")
    _check_class("loss_scaler", args.loss_scaler, DynamicLossScaler, "DynamicLossScaler()")
    _check_class("compare_batches", args.compare_batches, bool, "True")
    _check_class("shard", args.shard, bool, "True")
    _check_class("prefetch", args.prefetch, bool, "True")
    _check_class("fused", args.fused, bool, "True")
    _check_class("pruning", args.pruning, Pruning, "Pruning(Magnitude(), sparsity=0.9)")
    if args.grid is not None and args.grid.tensor != 1:
        raise Unsupported(
            f"Grid(tensor={args.grid.tensor})", rule="the engine has no tensor parallelism", legal="Grid(tensor=1)"
        )
    if args.schedule is not None:
        check_protocol("schedule", args.schedule, Schedule, "OneFOneB()")
    if args.weights is not None:
        check_protocol("weights", args.weights, WeightPolicy, 'Predict(s="paper")')
    if args.world is not None:
        check_protocol("world", args.world, World, "suite.comm.world.init_world()")
        if args.device is not None:
            rule = "the ranks of a world have their devices"
            raise InvalidRequest(f'device="{args.device}" with world=', rule=rule, legal="init_world(device=...)")
    _check_optimizer(args.optimizer, args.lr_scheduler)
    check_loss(args.loss)
    _check_memory(args.memory, args.half)
    _check_scores(args.scores, args.score_names)
    _check_split(args.split, len(parts.layers), places(schedule_of(args), (args.grid or Grid()).inter)[0].stages)
    _check_tied(args.tied, len(parts.layers))
    return parts


def schedule_of(args: EngineArguments) -> Schedule:
    """The schedule, by default the message-driven one, or 1F1B for a pipeline that streams."""
    return args.schedule or (MessageDriven() if args.update_interval is None else OneFOneB())


def check_full_precision(modules: Iterable[nn.Module], half: str | None) -> None:
    """Raises InvalidRequest for weights that are not wider than `half`, before anything changes."""
    if half is None:
        return
    for parameter in (parameter for module in modules for parameter in module.parameters()):
        if parameter.is_floating_point() and parameter.element_size() <= getattr(torch, half).itemsize:
            raise InvalidRequest(
                f"half={half!r} with a weight in {str(parameter.dtype).removeprefix('torch.')}",
                rule="model= holds full-precision weights, of which the engine makes half-precision copies",
                legal="a model in float32; close() an earlier engine of this model first",
            )


def check_batches(batches: Any) -> None:
    """Raises InvalidRequest for batches that cannot be iterated."""
    if not isinstance(batches, Iterable) or isinstance(batches, str | bytes | dict | torch.Tensor):
        rule = "a list or another iterable of batches (inputs, targets)"
        raise InvalidRequest(f"batches={format_value(batches)}", rule=rule, legal="batches=[(inputs, targets)]")


def _may_stay_whole(args: EngineArguments) -> bool:
    """Whether a module that cannot be split is one layer: on one stage, where nothing needs its parts."""
    inter = args.grid.inter if isinstance(args.grid, Grid) else 1
    needs_parts = args.split, args.split_points, args.activation_checkpointing, args.pruning, args.weights
    return inter == 1 and args.schedule is None and not args.tied and all(part is None for part in needs_parts)


def check_model(model: Any, split_points: Any, input_names: Any, *, whole: bool = False) -> ModelParts:
    """The layers of a model: entries of a list, nn.Sequential or nn.ModuleList, or parts of another module.

    Args:
        whole: Whether a module that cannot be split is one layer, whose own forward runs.

    Raises InvalidRequest for anything else than modules and functions that make them."""
    if isinstance(model, ModelParts):
        return model
    has_entries = is_container(model)
    if isinstance(model, nn.Module) and not (has_entries and split_points is None and input_names is None):
        try:
            return split_model(model, split_points, input_names)
        except InvalidRequest:
            if not whole:
                raise
            return whole_model(model, input_names)
    for name, value in (("split_points", split_points), ("input_names", input_names)):
        if value is not None:
            rule = "only a module has names; a list of layers is split already"
            raise InvalidRequest(f"{name}={format_value(value)} with a list", rule=rule, legal=f"{name}=None")
    layers = list(model._modules.values()) if has_entries else model
    if not isinstance(layers, Sequence) or isinstance(layers, str | bytes) or not layers:
        rule = "a module, or a list of at least one module or function that makes one"
        raise InvalidRequest(f"model={format_value(layers)}", rule=rule, legal=_LEGAL_LAYERS)
    for number, layer in enumerate(layers):
        if not callable(layer):
            rule = "each entry is a module, or a function that makes one"
            raise InvalidRequest(f"model={format_value(layer)} at position {number}", rule=rule, legal=_LEGAL_LAYERS)
    entries = tuple(model._modules) if has_entries else tuple(map(str, range(len(layers))))
    return ModelParts(list(layers), entries=entries)


def _check_split(split: Any, layers: int, stages: int) -> None:
    """Raises InvalidRequest unless the split gives every stage consecutive layers, in order."""
    if split is None:
        return
    entries = list(split) if isinstance(split, Sequence) else [None]
    ranges = [entry for entry in entries if isinstance(entry, range) and entry.step == 1 and entry.start < entry.stop]
    bounds = [0, *(entry.stop for entry in ranges)]
    consecutive = bounds[:-1] == [entry.start for entry in ranges] and bounds[-1] == layers
    if not (len(ranges) == len(entries) == stages and consecutive):
        even = [range(layers * stage // stages, layers * (stage + 1) // stages) for stage in range(stages)]
        raise InvalidRequest(
            f"split={format_value(split)} of {layers} layers on {stages} stages",
            rule="a non-empty range of layers for each stage, in order, which together hold all layers",
            legal=f"split={even} or split=None",
        )


def _check_tied(tied: Any, layers: int) -> None:
    """Raises InvalidRequest unless each tie is (layer, name, other layer, name), of two weights."""
    for tie in tied if isinstance(tied, Sequence) and not isinstance(tied, str) else [tied]:
        if not (
            isinstance(tie, Sequence)
            and len(tie) == 4
            and all(isinstance(tie[position], str) for position in (1, 3))
            and all(_is_integer(tie[position]) and 0 <= tie[position] < layers for position in (0, 2))
            and tuple(tie[:2]) != tuple(tie[2:])
        ):
            raise InvalidRequest(
                f"tied={format_value(tied)}",
                rule=f"a list of (layer, name, other layer, name) of two weights, in layers from 0 to {layers - 1}",
                legal=f'tied=[(0, "weight", {layers - 1}, "weight")]',
            )


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_integer(name: str, value: Any, unit: str, legal: str) -> None:
    if not _is_integer(value) or value < 1:
        raise InvalidRequest(f"{name}={format_value(value)}", rule=f"a whole number of {unit}, at least 1", legal=legal)


def _check_class(name: str, value: Any, expected: type, legal: str) -> None:
    if value is not None and not isinstance(value, expected):
        raise InvalidRequest(
            f"{name}={format_value(value)}", rule=f"a {expected.__name__}, or None", legal=f"{name}={legal}"
        )


def _check_clip_norm(clip_norm: Any) -> None:
    is_real = isinstance(clip_norm, Real) and not isinstance(clip_norm, bool)
    if clip_norm is not None and not (is_real and 0 < clip_norm <= math.inf):
        rule = "a norm above 0, or None"
        raise InvalidRequest(f"clip_norm={format_value(clip_norm)}", rule=rule, legal="clip_norm=1.0 or clip_norm=None")


def _check_precision(half: Any, loss_scaler: Any) -> None:
    if half is not None and half not in HALVES:
        rule = f"one of {', '.join(map(repr, HALVES))}, or None"
        raise InvalidRequest(f"half={format_value(half)}", rule=rule, legal='half="bfloat16" or half=None')
    if loss_scaler is not None and half is None:
        rule = "only mixed precision scales the loss"
        raise InvalidRequest("loss_scaler= with half=None", rule=rule, legal='half="float16"')


def makes_optimizer(optimizer: UpdateRule | OptimizerFactory) -> TypeGuard[OptimizerFactory]:
    """Whether the argument is a function that makes an optimizer of torch.optim, rather than an update rule."""
    if isinstance(optimizer, type):
        return issubclass(optimizer, torch.optim.Optimizer)
    return callable(optimizer) and bool({"states", "step()"}.intersection(missing_members(optimizer, UpdateRule)))


def _check_optimizer(optimizer: Any, lr_scheduler: Any) -> None:
    rule = "an update rule of the suite, or a function of the trained weights that makes an optimizer of torch.optim"
    factory = optimizer
    while isinstance(factory, partial):
        factory = factory.func
    if isinstance(factory, torch.optim.Optimizer):
        name = type(factory).__name__
        raise InvalidRequest(
            f"optimizer={name}, an optimizer of weights",
            rule="each rank makes the optimizer of its own weights",
            legal=f"optimizer=lambda weights: torch.optim.{name}(weights, lr=1e-3)",
        )
    if isinstance(factory, type) and not issubclass(factory, torch.optim.Optimizer):
        legal = f"optimizer=suite.{factory.__name__ if factory.__name__ in RULES else 'AdamW'}(lr=1e-3)"
        raise InvalidRequest(
            f"optimizer={factory.__name__}, a class", rule="an update rule with a learning rate", legal=legal
        )
    if not callable(optimizer) and {"states", "step()"}.intersection(missing_members(optimizer, UpdateRule)):
        raise InvalidRequest(
            f"optimizer={format_value(optimizer)}", rule=rule, legal=f"optimizer=suite.AdamW(lr=1e-3), or {LEGAL}"
        )
    if lr_scheduler is not None and not (callable(lr_scheduler) and makes_optimizer(optimizer)):
        raise InvalidRequest(
            f"lr_scheduler={format_value(lr_scheduler)}",
            rule="a function that makes a scheduler of an optimizer of torch.optim; the rate of an update rule of the "
            "suite may be a function of the number of updates",
            legal=f"{LEGAL}, or optimizer=suite.AdamW(lr=suite.WarmupCosine(1e-3, total=1000))",
        )
    if isinstance(optimizer, SGD | Adam | RMSprop) and callable(optimizer.lr):
        as_rate(optimizer.lr(0))


def _check_memory(memory: Any, half: str | None) -> None:
    if not callable(memory):
        rule = "a function that makes a memory layout"
        raise InvalidRequest(f"memory={format_value(memory)}", rule=rule, legal=_LEGAL_MEMORY)
    try:
        inspect.signature(memory).bind(entries=1, moments=(), dtype="float64", half=None)
    except TypeError as error:
        rule = "a function of entries, moments, dtype and half that makes a memory layout"
        raise InvalidRequest(f"memory={format_value(memory)}: {error}", rule=rule, legal=_LEGAL_MEMORY) from error
    except ValueError:  # a builtin function has no signature
        pass
    layout = memory(entries=1, moments=("moment",), dtype="float32", half=half)
    if not isinstance(layout, Layout):
        rule = "a function that makes a suite.memory.layout.Layout"
        raise InvalidRequest(
            f"memory={format_value(memory)} makes {format_value(layout)}", rule=rule, legal=_LEGAL_MEMORY
        )


def _check_scores(scores: Any, names: Any) -> None:
    legal = 'scores=suite.models.accuracy.top, score_names=("top_1", "top_5")'
    if scores is not None and not callable(scores):
        raise InvalidRequest(
            f"scores={format_value(scores)}", rule="a function of outputs and targets, or None", legal=legal
        )
    is_list = isinstance(names, Sequence) and not isinstance(names, str)
    valid = is_list and all(isinstance(name, str) for name in names)
    if not valid or bool(names) != (scores is not None) or "loss" in names or len({*names}) != len(names):
        raise InvalidRequest(
            f"score_names={format_value(names)}",
            rule="one name for each number of scores=, different names other than 'loss'; no names without scores=",
            legal=legal,
        )
