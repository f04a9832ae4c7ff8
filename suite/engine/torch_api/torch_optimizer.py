"""Optimizers of torch.optim as update rules of the engine.

The factory that a user passes makes an optimizer of this rank's weights. Where the weights, gradients and moments of a
stage are all in full precision and on the device, torch's own step runs, with its options (`foreach`, `fused`). A step
on a part of the flat order, or while graphs are in flight, needs a rule of the suite: mixed precision, buckets,
offloaded or compressed states, batches that stream, and predicted weights. There each parameter group is translated to
the rule of its kind, which reads the group's settings at every step, so that learning-rate schedulers of torch keep
working.
"""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from inspect import signature
from typing import Any, NamedTuple, TypeAlias, TypedDict, TypeVar, cast

import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

from suite.core.errors import InvalidRequest, Unsupported
from suite.core.protocols import UpdateRule
from suite.core.values import Json, format_value
from suite.engine.callables import callable_name
from suite.engine.optim.lr_schedule import as_rate
from suite.engine.optim.optimizer import SGD, Adam, AdamW, RMSprop, RuleState
from suite.engine.states.flat_layout import FlatLayout

LEGAL = "optimizer=lambda weights: torch.optim.AdamW(weights, lr=1e-3)"
TRANSLATED = "torch.optim.SGD, Adam, AdamW and RMSprop"
WEIGHTS = ("params", "param_names")  # entries of a parameter group that are no settings
_SPEED_OPTIONS = ("foreach", "fused", "capturable", "differentiable")  # they change no result beyond its rounding
_NO_STEP = (torch.optim.LBFGS, torch.optim.SparseAdam)  # a step evaluates the loss again; gradients are sparse
_RULES = {  # what the functions of Engine's arguments make, and a legal one
    "optimizer": (
        "a function of the trained weights that makes an optimizer of torch.optim of all of them, and of no others, "
        "whose step uses dense gradients and evaluates no loss",
        LEGAL,
    ),
    "lr_scheduler": (
        "a function of the optimizer that makes a scheduler of torch.optim.lr_scheduler, which steps once per update, "
        "and reads no loss",
        "lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)",
    ),
}
SuiteRule: TypeAlias = SGD | Adam | RMSprop
RULES: dict[type[torch.optim.Optimizer], type[SuiteRule]] = {  # by torch's class; a subclass before its base
    torch.optim.SGD: SGD,
    torch.optim.AdamW: AdamW,
    torch.optim.Adam: Adam,
    torch.optim.RMSprop: RMSprop,
}
STATE_NAMES = {  # states of torch's optimizers by the names of the suite's rules
    "velocity": "momentum_buffer",
    "moment_1": "exp_avg",
    "moment_2": "exp_avg_sq",
    "square": "square_avg",
}

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")
OptimizerFactory = Callable[["TrainedWeights"], torch.optim.Optimizer]
SchedulerFactory = Callable[[torch.optim.Optimizer], schedulers.LRScheduler]


class TrainedWeights(list[nn.Parameter]):
    """Trained weights of one rank, in the order of its layers.

    An optimizer takes them as it takes a list of parameters. For parameter groups they have the methods of a module:

        def make(weights):
            decayed = [weight for name, weight in weights.named_parameters() if weight.dim() >= 2]
            others = [weight for weight in weights.parameters() if weight.dim() < 2]
            return torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=1e-3)

    Args:
        named: Weights with their names in the whole model.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        self._named = list(named)
        super().__init__(weight for _, weight in self._named)

    def parameters(self) -> list[nn.Parameter]:
        return list(self)

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Pairs (name in the whole model, weight)."""
        return list(self._named)


class OptimizerSettings(TypedDict):
    """Settings of each parameter group without its weights, and the scheduler's state; None without a scheduler."""

    groups: list[dict[str, Json]]
    scheduler: dict[str, Json] | None


class _Run(NamedTuple):
    """Consecutive entries of the flat order that belong to one parameter group."""

    span: slice
    group: int


class TorchOptimizer(UpdateRule):
    """An optimizer of torch.optim, and its learning-rate scheduler.

    Args:
        factory: Makes the optimizer of all trained weights of the rank.
        weights: These weights.
        scheduler: Makes a scheduler, which steps once per update; None for constant rates.
        translate_for: Reason to use the suite's rules, in words; empty to use torch's own step.
        whole: Weights of the whole model by name, of which the factory makes the optimizer, as in a plain script. The
            rank then keeps its own. Empty where the factory gets the rank's own weights.
        leaves: The weights of the rank that compute with each of them: none, one, or one for each end of a tie.

    Attributes:
        optimizer: The optimizer, whose groups hold the settings of the next update.
        translates: Whether the suite's rules step.

    Raises:
        InvalidRequest: The factory makes no optimizer, or its groups do not hold exactly the trained weights.
        Unsupported: `translate_for` needs a rule of the suite, and no rule has the optimizer's formula.
    """

    def __init__(
        self,
        factory: OptimizerFactory,
        weights: TrainedWeights,
        scheduler: SchedulerFactory | None = None,
        *,
        translate_for: str = "",
        whole: Mapping[str, nn.Parameter] | None = None,
        leaves: Mapping[str, Sequence[nn.Parameter]] | None = None,
    ) -> None:
        self.factory, self.weights = factory, weights
        self.optimizer = made_optimizer(factory, TrainedWeights(whole.items()) if whole else weights)
        if whole and leaves is not None:
            keep_own(self.optimizer, {id(weight): leaves.get(name, ()) for name, weight in whole.items()})
        self.settings: list[dict[str, Json]] = [_settings_of(group) for group in self.optimizer.param_groups]
        self.translates = False
        if translate_for:
            self.translate(translate_for)
        self.scheduler = None if scheduler is None else _made_scheduler(scheduler, self.optimizer)
        self._group_of = {id(p): number for number, group in enumerate(self._groups()) for p in group["params"]}
        self._runs: list[_Run] = []
        self._updates: int | None = None  # value of torch's step counters; None before the first step of new states
        self._uneven = False  # a weight had no gradient in some batch, and fewer steps than others

    # -- the interface of update rules -------------------------------------------------------------------------------

    @property
    def states(self) -> tuple[str, ...]:
        """Flat states, which torch's step uses too. Empty for an optimizer that keeps its own."""
        return tuple(self._state_names())

    @property
    def drift_states(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for rule in self.rules() for name in rule.drift_states))

    def step(self, state: RuleState, grad: torch.Tensor) -> None:
        """Step the weights of `state`. Torch's own step is one of all weights, whose `.grad` are views of `grad`."""
        if not self.translates:
            if state.updates != self._updates:  # the states are new, or those of a checkpoint
                self._use_flat_states(state)
            self._uneven = self._uneven or any(weight.grad is None for weight in self.weights)
            self.optimizer.step()
            self._updates = state.updates + 1
            return
        for rule, part, span in self._parts(state, grad.numel()):
            rule.step(part, grad[span])

    def drift(self, state: RuleState) -> torch.Tensor:
        """Expected change of the flat weights of `state` in the next update."""
        numel = sum(weight.numel() for weight in state.weights)
        drifts = [rule.drift(part) for rule, part, _ in self._parts(state, numel)]
        return torch.cat(drifts) if drifts else torch.zeros(0)

    # -- states ------------------------------------------------------------------------------------------------------

    def attach(self, flat: FlatLayout) -> None:
        """Step weights in this flat order from now on."""
        self._runs = []
        for parameter in flat.order:
            span, group = flat.spans[id(parameter)], self._group_of[id(parameter)]
            if self._runs and self._runs[-1].group == group:
                span = slice(self._runs.pop().span.start, span.stop)
            self._runs.append(_Run(span, group))
        self._updates = None

    def updated(self) -> None:
        """Step the scheduler, after an update."""
        if self.scheduler is not None:
            with warnings.catch_warnings():  # torch misses its own step where a rule of the suite has stepped
                warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*", category=UserWarning)
                self.scheduler.step()

    def own_states(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        """States of a weight that torch's optimizer keeps, by torch's names; empty where they are flat states.

        Raises Unsupported for a state that is no tensor."""
        if self._state_names():
            return {}
        states = dict(self.optimizer.state.get(parameter, {}))
        for name, value in states.items():
            if not isinstance(value, torch.Tensor):
                raise Unsupported(
                    f"{type(self.optimizer).__name__} with the state {name}={format_value(value)}",
                    rule="a checkpoint holds states that are tensors",
                    legal=TRANSLATED,
                )
        return states

    def load_own_states(self, parameter: nn.Parameter, states: Mapping[str, torch.Tensor]) -> None:
        """Continue from saved states of `own_states`; without any, from the first step of the weight."""
        self.optimizer.state.pop(parameter, None)
        if states:
            device = dict.fromkeys(states, parameter.device) | {"step": self._step_device(parameter)}
            self.optimizer.state[parameter] = {
                name: saved.to(device[name], copy=True)
                for name, saved in states.items()  # ends of a tie step apart
            }

    def _step_device(self, parameter: nn.Parameter) -> torch.device:
        """Device of the step counter of a weight, as torch places it."""
        group = self._groups()[self._group_of[id(parameter)]]
        return parameter.device if group.get("fused") or group.get("capturable") else torch.device("cpu")

    def state_dict(self) -> OptimizerSettings:
        """Settings of now, as plain data.

        Raises Unsupported for step counters that differ between weights, of which a checkpoint holds one."""
        if self._uneven and self._state_names() and not isinstance(self.optimizer, torch.optim.SGD):
            raise Unsupported(
                f"a checkpoint of {type(self.optimizer).__name__} after weights had no gradient in some batches",
                rule="a checkpoint holds one number of steps for all weights",
                legal="torch.optim.SGD, or a loss that depends on every weight",
            )
        scheduler = None if self.scheduler is None else self.scheduler.state_dict()
        return {"groups": [_settings_of(group) for group in self._groups()], "scheduler": _plain(scheduler)}

    def load_state_dict(self, saved: OptimizerSettings | None) -> None:
        """Continue from the settings of `state_dict`."""
        assert saved is not None, "the fingerprint has compared the optimizers"
        for group, settings in zip(self._groups(), saved["groups"], strict=True):
            group.update({name: _like(group.get(name), value) for name, value in settings.items()})
        if self.scheduler is not None:
            current = self.scheduler.state_dict()
            self.scheduler.load_state_dict(current | _like(current, saved["scheduler"] or {}))

    @property
    def lr(self) -> float:
        """Learning rate of the next update, of the first parameter group."""
        return float(self._groups()[0]["lr"])

    def fingerprint(self) -> dict[str, Json]:
        """Classes and initial settings, which a checkpoint and the resuming run share."""
        groups: list[Json] = [
            {name: value for name, value in settings.items() if name not in _SPEED_OPTIONS}
            for settings in self.settings
        ]
        scheduler = None if self.scheduler is None else _path_of(self.scheduler)
        return {"_target_": _path_of(self.optimizer), "groups": groups, "lr_scheduler": scheduler}

    # -- translation -------------------------------------------------------------------------------------------------

    def translate(self, reason: str) -> None:
        """Let the suite's rules step.

        Raises Unsupported where a group has none, and after a step with states that torch's optimizer keeps."""
        optimizer, groups = self.optimizer, self._groups()
        hooked = bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
        begun = bool(optimizer.state) and not self._state_names()
        if hooked or begun or len(self.rules()) < len(groups):
            names = ("amsgrad", "centered", "maximize", "dampening")
            options = [f"{name}={group[name]}" for group in groups[:1] for name in names if group.get(name)]
            hooks = ["hooks of its step"] if hooked else []
            raise Unsupported(
                " with ".join([type(optimizer).__name__, *options, *hooks, reason]),
                rule="a step on a part of the weights needs a rule of the suite with the optimizer's formula",
                legal=f"{TRANSLATED} without amsgrad, centered, maximize and hooks of the step",
            )
        self.translates = True

    def rules(self) -> list[SuiteRule]:
        """The rule of each parameter group, with its settings of now; empty where there is none."""
        rules = [_rule_of(type(self.optimizer), group) for group in self._groups()]
        return [rule for rule in rules if rule is not None]

    def _parts(self, state: RuleState, numel: int) -> Iterator[tuple[SuiteRule, RuleState, slice]]:
        """Rule, states and span within `state` of each run of entries with one rule."""
        rules = self.rules()
        for run in self._runs:
            start, stop = max(0, run.span.start - state.start), min(numel, run.span.stop - state.start)
            if start < stop:
                span, rule = slice(start, stop), rules[run.group]
                moments = {name: moment[span] for name, moment in state.moments.items()}
                yield rule, RuleState(_cut(state.weights, span), moments, state.updates), span

    # -- torch's own step --------------------------------------------------------------------------------------------

    def _groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def _state_names(self) -> dict[str, str]:
        """Names of torch's states by those of the suite; empty where torch's optimizer keeps its own states.

        Those are states of another kind, and dampened velocities, which torch makes in its first step."""
        rules, groups = self.rules(), self._groups()
        if len(rules) < len(groups) or (not self.translates and any(group.get("dampening") for group in groups)):
            return {}
        names = dict.fromkeys(name for rule in rules for name in rule.states)
        return {name: STATE_NAMES[name] for name in names}

    def _use_flat_states(self, state: RuleState) -> None:
        """Make torch's states views of the flat ones, and set its step counters to the number of updates."""
        views = {of_torch: state.views(state.moments[name]) for name, of_torch in self._state_names().items()}
        for number, parameter in enumerate(self.weights if views else ()):
            of_torch = self.optimizer.state[parameter]
            of_torch.update({name: tensors[number] for name, tensors in views.items()})
            if not isinstance(self.optimizer, torch.optim.SGD):
                device, dtype = self._step_device(parameter), torch.get_default_dtype()
                of_torch["step"] = torch.full((), state.updates, dtype=dtype, device=device)


def learning_rate(rule: UpdateRule, updates: int) -> float:
    """Learning rate of the update after `updates`; nan for a rule of the user's without a rate."""
    if isinstance(rule, TorchOptimizer):
        return rule.lr
    return as_rate(rule.lr)(updates) if isinstance(rule, SuiteRule) else math.nan


def _made(argument: str, factory: Callable[[_Given], _Made], given: _Given) -> _Made:
    """What a factory makes. Raises InvalidRequest where its call fails."""
    try:
        return factory(given)
    except (TypeError, ValueError) as error:
        raise _fault(argument, factory, f"fails: {error}") from error


def _fault(argument: str, factory: Callable[..., Any], fault: str) -> InvalidRequest:
    rule, legal = _RULES[argument]
    return InvalidRequest(
        argument, factory, what=f"{argument}={callable_name(factory)} {fault}", rule=rule, legal=legal
    )


def made_optimizer(factory: OptimizerFactory, weights: TrainedWeights) -> torch.optim.Optimizer:
    """The optimizer that `factory` makes; a rank without weights gets one of a placeholder."""
    given = weights or TrainedWeights([("placeholder", nn.Parameter(torch.zeros(())))])
    optimizer = _made("optimizer", factory, given)
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, _NO_STEP):
        raise _fault("optimizer", factory, f"makes a {type(optimizer).__name__}")
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    for name, weight in weights.named_parameters():
        if weight.requires_grad and id(weight) not in held:
            raise _fault("optimizer", factory, f"leaves out the weight {name}, which trains")
    if held - set(map(id, given)):
        raise _fault("optimizer", factory, "holds weights that this rank does not train")
    return optimizer


def _made_scheduler(factory: SchedulerFactory, optimizer: torch.optim.Optimizer) -> schedulers.LRScheduler:
    scheduler = _made("lr_scheduler", factory, optimizer)
    if not isinstance(scheduler, schedulers.LRScheduler) or isinstance(scheduler, schedulers.ReduceLROnPlateau):
        raise _fault("lr_scheduler", factory, f"makes a {type(scheduler).__name__}")
    return scheduler


def keep_own(optimizer: torch.optim.Optimizer, leaves: Mapping[int, Sequence[nn.Parameter]]) -> None:
    """Replace each weight of an optimizer of a whole model by the weights of this rank that compute with it.

    So groups by name, by shape and by position are those of a plain script.

    Args:
        leaves: Weights of the rank by the id of the weight of the whole model."""
    for group in optimizer.param_groups:
        own = [leaves[id(weight)] for weight in group["params"]]
        if "param_names" in group:
            group["param_names"] = [n for n, each in zip(group["param_names"], own, strict=True) for _ in each]
        group["params"] = [leaf for each in own for leaf in each]
    for weight, states in list(optimizer.state.items()):
        del optimizer.state[weight]
        for leaf in leaves[id(weight)]:
            optimizer.state[leaf] = copy.deepcopy(states)


def _rule_of(kind: type[torch.optim.Optimizer], group: Mapping[str, Any]) -> SuiteRule | None:
    """The rule with the formula of a parameter group; None if there is none."""
    if kind not in RULES or any(group.get(name) for name in ("maximize", "amsgrad", "centered")):
        return None
    rule = AdamW if group.get("decoupled_weight_decay") else RULES[kind]
    settings = {field.name: group[field.name] for field in fields(rule) if field.name in group}
    if "betas" in group:
        settings["beta1"], settings["beta2"] = map(float, group["betas"])
    return rule(**settings | {"lr": float(group["lr"])})


def torch_form(rule: SuiteRule, updates: int) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Torch's class with the formula of a rule, and its arguments after `updates`."""
    kind = next(kind for kind, ours in RULES.items() if isinstance(rule, ours))
    settings = {field.name: getattr(rule, field.name) for field in fields(rule)} | {"lr": as_rate(rule.lr)(updates)}
    if isinstance(rule, Adam):
        settings["betas"] = rule.beta1, rule.beta2
    return kind, {name: value for name, value in settings.items() if name in signature(kind).parameters}


def _cut(weights: Sequence[torch.Tensor], span: slice) -> list[torch.Tensor]:
    """The entries `span` of consecutive weights, as flat views."""
    parts, start = [], 0
    for weight in weights:
        first, last = max(span.start - start, 0), min(span.stop - start, weight.numel())
        if first < last:
            parts.append(weight.view(-1)[first:last])
        start += weight.numel()
    return parts


def _path_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _settings_of(group: Mapping[str, Any]) -> dict[str, Json]:
    """Settings of a parameter group as plain data, without its weights."""
    return cast("dict[str, Json]", _plain({name: value for name, value in group.items() if name not in WEIGHTS}))


def _plain(settings: Any) -> Any:
    """Settings as a checkpoint holds them: tensors of one number as numbers, tuples as lists, keys as text.

    None stands for functions and other values that are no data, as the resuming run has its own."""

    def number(value: object) -> Any:
        return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else None

    return json.loads(json.dumps(settings, default=number))


def _like(current: Any, value: Any) -> Any:
    """A setting of a checkpoint in the type of the current one, such as a Counter of milestones by number."""
    if value is None:
        return current
    if isinstance(current, torch.Tensor):
        return torch.full_like(current, value)
    if isinstance(current, Mapping) and isinstance(value, Mapping):
        keys = {str(key): key for key in current}
        known = {keys.get(name, name): _like(current.get(keys.get(name, name)), each) for name, each in value.items()}
        return type(current)(known)  # type: ignore[call-arg]
    if isinstance(current, list | tuple) and isinstance(value, list) and len(current) == len(value):
        return type(current)(map(_like, current, value))
    return tuple(value) if isinstance(current, tuple) else value
