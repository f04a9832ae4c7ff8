"""Arguments of `Engine`: types, defaults, documentation and validation.

The engine validates what a user passes before it makes anything. An error of a wrong kind, or of a value out of range,
names the argument as the user wrote it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial, wraps
from inspect import Parameter, signature
from itertools import chain
from numbers import Integral, Real
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeGuard, TypeVar

import torch
from torch import nn

from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.core.grid import Grid
from suite.core.members import is_protocol, missing_members
from suite.core.protocols import Schedule, UpdateRule, WeightPolicy, World
from suite.core.values import format_value
from suite.engine.callables import binding_error
from suite.engine.layers import Layer
from suite.engine.losses import is_loss
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.engine.optim.lr_schedule import as_rate
from suite.engine.optim.optimizer import SGD, Adam, RMSprop
from suite.engine.pruning.settings import Pruning
from suite.engine.states.flat_layout import LayoutFactory
from suite.engine.ties import Tie
from suite.engine.torch_api.split_model import ModelParts, is_container, split_model, whole_model
from suite.engine.torch_api.torch_optimizer import LEGAL, OptimizerFactory, SchedulerFactory
from suite.memory.layout import Layout, compressed
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.placement import places
from suite.workload.split import Split, evenly

_Engine = TypeVar("_Engine")
_Arguments = ParamSpec("_Arguments")
HALVES = ("bfloat16", "float16")
_NAMES = ("SGD", "Adam", "AdamW", "RMSprop")  # update rules that have the names of torch.optim's classes
_LEGAL_LAYERS = "model=nn.Sequential(...), another module, or [nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4)]"


@dataclass(frozen=True, eq=False)
class EngineConfig:
    """Arguments of `Engine`. Raises InvalidRequest for the first one of a wrong kind or out of range.

    Args:
        model: Module, or list of modules and functions that make them. Modules train in place and keep their modes
            (train or eval) in training. Each rank calls the functions of its stage; initial weights are equal on every
            split. The layers are the entries of a list or nn.Sequential; see `split_points` for another module.
        loss: loss(*outputs, *targets) -> the mean over the samples of a microbatch, one number; or a pair (sum, count),
            where samples do not weigh the same (engine.losses). For a module other than nn.Sequential it is
            loss(output, *targets), and for a dict of targets loss(output, **targets).
        optimizer: Update rule of the suite, or a function of this rank's trained weights that makes an optimizer of
            torch.optim: see engine.optim.torch_optimizer.
        microbatch: Samples per microbatch.
        lr_scheduler: Makes a scheduler of torch.optim.lr_scheduler of that optimizer; it steps once per update.
        grid: Pipeline stages and replicas; by default one rank.
        schedule: Order of the ops, and placement of stages on ranks; by default MessageDriven, or OneFOneB with
            `update_interval`.
        weights: Policy that selects the weight versions of passes (PipeOptim III); by default the newest.
        memory: Form and place of each model state; by default all on the device, and compressed for pruned weights.
        split: Layers of each stage; None divides them evenly.
        split_points: Names of the submodules that begin a layer, or patterns such as "layers.*"; None for the entries
            of the model's largest nn.ModuleList or nn.Sequential (engine.torch_api.split_model).
        input_names: Arguments of the model's forward that a batch holds; None for those without a default, or else
            the first.
        tied: Tied weights in pairs (layer, name, other layer, name), both trained or both frozen. Pairs with a common
            weight make one tie of three or more layers. The engine finds weights that modules of the list share. The
            initial weight of a tie is that of its first layer.
        seed: Seed of dropout masks and, for functions in `model`, of initial weights.
        half: torch.bfloat16 or torch.float16, or its name: dtype of passes, messages and reductions in mixed precision,
            which run on copies of the modules. The modules in `model` hold full-precision weights; a pruned one is
            rounded until `close`.
        loss_scaler: Loss scale of mixed precision; None for a scale of 1.
        bucket_numel: Entries per optimizer step; None for all (AxoNN V-B).
        buckets_per_reduction: Buckets per all-reduce, which overlaps the step before it (AxoNN V-C).
        clip_norm: Largest norm of all gradients; math.inf computes the norm and clips nothing.
        fused: Whether one Triton kernel makes each optimizer step, on a GPU in mixed precision (engine.optim.fused).
        activation_checkpointing: Layers between activation checkpoints (AxoNN V-A).
        pruning: Pruning method, sparsity and scope (SAMO III).
        update_interval: Microbatches per update of a pipeline that does not drain for updates; None for an update per
            batch, after a drain.
        scores: As `loss`, but for means over a microbatch, one for each of `score_names`.
        check_loss: Batches between two checks that the losses of microbatches make up the loss of their rows, one more
            call of the loss; 0 for none.
        compare_batches: Whether ranks compare their calls and batches, by numbers that travel with losses
            (engine.rank_consistency).
        shard: Whether each replica (`engine.place.replica` of `grid.data`) reads its own part of every batch, as a
            DistributedSampler gives it. All parts have the same size.
        device: Device of this rank; by default that of the model's weights. "cuda" is the device of the rank's number.
        world: Ranks of the run, on their devices; by default the launcher's.
    """

    model: nn.Module | Sequence[Layer] | ModelParts  # parts: a model that is split already
    _: KW_ONLY
    loss: Callable[..., torch.Tensor]
    optimizer: UpdateRule | OptimizerFactory
    microbatch: int
    lr_scheduler: SchedulerFactory | None = None
    grid: Grid = Grid()  # noqa: RUF009 - frozen
    schedule: Schedule | None = None
    weights: WeightPolicy | None = None
    memory: LayoutFactory = compressed
    split: Split | None = None
    split_points: Sequence[str] | None = None
    input_names: Sequence[str] | None = None
    tied: Sequence[Tie] = ()
    seed: int = 0
    half: str | torch.dtype | None = None
    loss_scaler: DynamicLossScaler | None = None
    bucket_numel: int | None = None
    buckets_per_reduction: int | None = None
    clip_norm: float | None = None
    fused: bool = False
    activation_checkpointing: int | None = None
    pruning: Pruning | None = None
    update_interval: int | None = None
    scores: Callable[..., torch.Tensor] | None = None
    score_names: Sequence[str] = ()
    check_loss: int = 1
    compare_batches: bool = True
    shard: bool = False
    device: torch.device | str | None = None
    world: World | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name in _RULES:
                self._check_alone(field.name, getattr(self, field.name), optional=field.default is None)
        self._check_optimizer()
        self._check_memory()
        self._check_score_names()
        if self.grid.tensor != 1:
            rule = "the engine has no tensor parallelism"
            raise Unsupported(f"Grid(tensor={self.grid.tensor})", rule=rule, legal="Grid(tensor=1)")
        if self.loss_scaler is not None and self.half is None:
            rule = "only mixed precision scales the loss"
            raise InvalidRequest("loss_scaler= with half=None", rule=rule, legal='half="float16"')
        if self.world is not None and self.device is not None:
            rule = "the ranks of a world have their devices"
            raise InvalidRequest(f'device="{self.device}" with world=', rule=rule, legal="init_world(device=...)")

    @staticmethod
    def _check_alone(name: str, value: object, *, optional: bool) -> None:
        """Raises InvalidRequest for a value that breaks the rule of its own argument."""
        rule, or_none = _RULES[name], optional and value is None
        if not or_none and not rule.holds(value):
            raise InvalidRequest(
                name,
                value,
                what=f"{name}={format_value(value)}",
                rule=rule.words + (", or None" if optional else ""),
                legal=f"{name}={rule.legal}" + (f" or {name}=None" if optional else ""),
            )

    @property
    def half_name(self) -> str | None:
        """Name of the half-precision dtype; None in one precision."""
        return None if self.half is None else _name_of(self.half)

    @property
    def chosen_schedule(self) -> Schedule:
        """The schedule, by default the message-driven one, or 1F1B for a pipeline that streams."""
        return self.schedule or (MessageDriven() if self.update_interval is None else OneFOneB())

    def layout(self, moments: Sequence[str]) -> Layout:
        """The memory layout of one entry with these moments."""
        return self.memory(entries=1, moments=moments, dtype="float32", half=self.half_name)

    def parts(self) -> ModelParts:
        """The layers of the model: entries of a list, nn.Sequential or nn.ModuleList, or parts of another module.

        Raises InvalidRequest for anything else than modules and functions that make them, and for stages and ties that
        do not fit the layers."""
        parts = self._split_model()
        self._check_split(len(parts.layers))
        self._check_tied(len(parts.layers))
        return parts

    def _split_model(self) -> ModelParts:
        model: Any = self.model
        if isinstance(model, ModelParts):
            return model
        has_entries = is_container(model)
        given = {"split_points": self.split_points, "input_names": self.input_names}
        if isinstance(model, nn.Module) and not (has_entries and all(value is None for value in given.values())):
            try:
                return split_model(model, self.split_points, self.input_names)
            except InvalidRequest:
                if not self._may_stay_whole():
                    raise
                return whole_model(model, self.input_names)
        for name, value in given.items():
            if value is not None:
                rule = "only a module has names; a list of layers is split already"
                raise InvalidRequest(f"{name}={format_value(value)} with a list", rule=rule, legal=f"{name}=None")
        layers = list(model._modules.values()) if has_entries else model
        is_list = isinstance(layers, Sequence) and not isinstance(layers, str | bytes) and len(layers) > 0
        if not is_list or not all(map(callable, layers)):
            wrong = next((layer for layer in layers if not callable(layer)), layers) if is_list else layers
            rule = "a module, or a list of modules and functions that make one, at least one"
            raise InvalidRequest("model", wrong, what=f"model={format_value(wrong)}", rule=rule, legal=_LEGAL_LAYERS)
        entries = tuple(model._modules) if has_entries else tuple(map(str, range(len(layers))))
        return ModelParts(list(layers), entries=entries)

    def _may_stay_whole(self) -> bool:
        """Whether a module that cannot be split is one layer: on one stage, where nothing needs its parts."""
        needs_parts = self.split, self.split_points, self.activation_checkpointing, self.pruning, self.weights
        return self.grid.inter == 1 and self.schedule is None and not self.tied and all(p is None for p in needs_parts)

    def _check_split(self, layers: int) -> None:
        """Raises InvalidRequest unless the split gives every stage consecutive layers, in order."""
        if self.split is None:
            return
        stages = places(self.chosen_schedule, self.grid.inter)[0].stages
        split: Any = self.split if isinstance(self.split, Sequence) else [self.split]
        are_ranges = all(isinstance(each, range) and each.step == 1 and len(each) for each in split)
        if not (are_ranges and len(split) == stages and [*chain(*split)] == [*range(layers)]):
            raise InvalidRequest(
                f"split={format_value(self.split)} of {layers} layers on {stages} stages",
                rule="a non-empty range of layers for each stage, in order, which together hold all layers",
                legal=f"split={list(evenly(layers, stages))} or split=None",
            )

    def _check_tied(self, layers: int) -> None:
        """Raises InvalidRequest unless each tie is (layer, name, other layer, name), of two weights."""
        tied: Any = self.tied
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

    def _check_optimizer(self) -> None:
        optimizer: Any = self.optimizer
        factory = optimizer
        while isinstance(factory, partial):
            factory = factory.func
        is_class = isinstance(factory, type)
        kind = factory if is_class else type(factory)
        of_torch = issubclass(kind, torch.optim.Optimizer)
        if is_class != of_torch or not (callable(optimizer) or _is_rule(optimizer)):
            advice = f"optimizer=suite.{kind.__name__ if is_class and kind.__name__ in _NAMES else 'AdamW'}(lr=1e-3)"
            raise InvalidRequest(
                "optimizer",
                optimizer,
                what=f"optimizer={format_value(optimizer)}",
                rule="an update rule of the suite with a learning rate, or a function of the trained weights of a rank "
                "that makes an optimizer of torch.optim",
                legal=LEGAL.replace("AdamW", kind.__name__) if of_torch else f"{advice}, or {LEGAL}",
            )
        if self.lr_scheduler is not None and not (callable(self.lr_scheduler) and makes_optimizer(optimizer)):
            raise InvalidRequest(
                f"lr_scheduler={format_value(self.lr_scheduler)}",
                rule="a function that makes a scheduler of an optimizer of torch.optim; the rate of an update rule of "
                "the suite may be a function of the number of updates",
                legal=f"{LEGAL}, or optimizer=suite.AdamW(lr=suite.WarmupCosine(1e-3, total=1000))",
            )
        if isinstance(optimizer, SGD | Adam | RMSprop) and callable(optimizer.lr):
            as_rate(optimizer.lr(0))

    def _check_memory(self) -> None:
        error = binding_error(self.memory, entries=1, moments=(), dtype="float64", half=None)
        layout: object = error or self.layout(("moment",))
        if not isinstance(layout, Layout):
            raise InvalidRequest(
                f"memory={format_value(self.memory)}: {format_value(layout)}",
                rule="a function of entries, moments, dtype and half that makes a suite.memory.layout.Layout",
                legal=f"memory={_RULES['memory'].legal}",
            )

    def _check_score_names(self) -> None:
        names: Any = self.score_names
        is_list = isinstance(names, Sequence) and not isinstance(names, str)
        valid = is_list and all(isinstance(name, str) for name in names)
        if not valid or bool(names) != (self.scores is not None) or "loss" in names or len({*names}) != len(names):
            raise InvalidRequest(
                f"score_names={format_value(names)}",
                rule="one name for each number of scores=, different names other than 'loss'; no names without scores=",
                legal=f'scores={_RULES["scores"].legal}, score_names=("top_1", "top_5")',
            )


class _Rule(NamedTuple):
    """Rule of one argument: its test, its words, and a legal value."""

    holds: Callable[[Any], bool]
    words: str
    legal: str


def _count(unit: str, legal: str) -> _Rule:
    return _Rule(lambda value: _is_integer(value) and value >= 1, f"a whole number of {unit}, at least 1", legal)


def _object(kind: type, legal: str) -> _Rule:
    """The rule for an object of a class, or with the members of a protocol."""
    if not is_protocol(kind):
        return _Rule(lambda value: isinstance(value, kind), f"a {kind.__name__}", legal)
    words = f"an object with {', '.join(missing_members(None, kind))}, as {kind.__module__}.{kind.__name__} has"
    return _Rule(lambda value: not isinstance(value, type) and not missing_members(value, kind), words, legal)


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_norm(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) <= math.inf


def _name_of(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


_RULES = {
    "loss": _Rule(
        is_loss,
        "a function of outputs and targets, or an object of a module class without weights that train",
        "torch.nn.functional.cross_entropy or loss=nn.CrossEntropyLoss()",
    ),
    "microbatch": _count("samples", "4"),
    "grid": _object(Grid, "Grid(inter=2, data=1)"),
    "schedule": _object(Schedule, "OneFOneB()"),
    "weights": _object(WeightPolicy, 'Predict(s="paper")'),
    "world": _object(World, "suite.comm.world.init_world()"),
    "memory": _Rule(
        callable,
        "a function that makes a memory layout",
        "suite.memory.layout.resident, or memory=partial(offloaded, bucket=...)",
    ),
    "seed": _Rule(_is_integer, "a whole number", "0"),
    "half": _Rule(lambda value: _name_of(value) in HALVES, f"one of {', '.join(map(repr, HALVES))}", '"bfloat16"'),
    "loss_scaler": _object(DynamicLossScaler, "DynamicLossScaler()"),
    "bucket_numel": _count("weights per step", "4_000_000"),
    "buckets_per_reduction": _count("buckets per all-reduce", "4"),
    "clip_norm": _Rule(_is_norm, "a norm above 0", "1.0"),
    "activation_checkpointing": _count("layers between activation checkpoints", "1"),
    "pruning": _object(Pruning, "Pruning(Magnitude(), sparsity=0.9)"),
    "update_interval": _count("microbatches per update", "1"),
    "scores": _Rule(callable, "a function of outputs and targets", "suite.models.shared.top"),
    "check_loss": _Rule(
        lambda value: _is_integer(value) and value >= 0,
        "a whole number of batches between two checks, or 0 for none",
        "1",
    ),
    **{name: _object(bool, "True") for name in ("fused", "compare_batches", "shard")},
}


def takes(
    config: Callable[_Arguments, EngineConfig],
) -> Callable[[Callable[[_Engine, EngineConfig], None]], Callable[Concatenate[_Engine, _Arguments], None]]:
    """A constructor that takes the arguments of `config`, and refuses an unknown one with the nearest name."""

    def decorate(init: Callable[[_Engine, EngineConfig], None]) -> Callable[Concatenate[_Engine, _Arguments], None]:
        @wraps(init)
        def with_arguments(self: _Engine, /, *args: _Arguments.args, **named: _Arguments.kwargs) -> None:
            check_names(named)
            init(self, config(*args, **named))

        with_arguments.__doc__ = config.__doc__
        own, arguments = Parameter("self", Parameter.POSITIONAL_ONLY), signature(config)
        parameters = [own, *arguments.parameters.values()]
        with_arguments.__signature__ = arguments.replace(parameters=parameters)  # type: ignore[attr-defined]
        return with_arguments

    return decorate


def check_names(names: Iterable[str]) -> None:
    """Raises UnknownName for a name that is no argument of `Engine`."""
    known = [field.name for field in fields(EngineConfig)]
    for name in names:
        if name not in known:
            raise UnknownName("argument of Engine", name, known)


def _is_rule(optimizer: object) -> bool:
    return not {"states", "step()"}.intersection(missing_members(optimizer, UpdateRule))


def makes_optimizer(optimizer: UpdateRule | OptimizerFactory) -> TypeGuard[OptimizerFactory]:
    """Whether the argument is a function that makes an optimizer of torch.optim, rather than an update rule."""
    return callable(optimizer) and (isinstance(optimizer, type) or not _is_rule(optimizer))
