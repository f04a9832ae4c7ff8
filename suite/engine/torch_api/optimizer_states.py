"""State dicts of optimizers in the form of torch.optim, for the whole model.

The optimizer of a plain script of the same model loads the state dict of an engine, and the other way round. A plain
optimizer of all trained weights gives the parameter groups and the order of the weights; it is made by the user's own
function, or with the settings of the suite's rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from suite.core.errors import InvalidRequest, Unsupported
from suite.core.protocols import UpdateRule
from suite.engine.torch_api.state_dicts import Tensors, collect
from suite.engine.torch_api.torch_optimizer import STATE_NAMES, SuiteRule, TorchOptimizer, TrainedWeights, torch_form
from suite.engine.train_state import TrainState

OptimizerStateDict: TypeAlias = "dict[str, Any]"  # of torch.optim.Optimizer.state_dict; empty on other ranks
_SEPARATOR = " "  # between the name of a weight and of a state


def plain_optimizer(rule: UpdateRule, named: Mapping[str, nn.Parameter], updates: int) -> torch.optim.Optimizer:
    """The optimizer that a plain script has for all trained weights.

    Raises Unsupported for a rule of the user's own."""
    if isinstance(rule, TorchOptimizer):
        return rule.factory(TrainedWeights(named.items()))
    if not isinstance(rule, SuiteRule):
        raise Unsupported(
            f"a state dict of the optimizer {type(rule).__name__}",
            rule="a rule of the suite, or an optimizer of torch.optim",
            legal="SGD, Adam, AdamW, RMSprop",
        )
    kind, settings = torch_form(rule, updates)
    return kind(list(named.values()), **settings)


def optimizer_state_dict(state: TrainState) -> OptimizerStateDict:
    """The state dict of the optimizer on rank 0, on the host; empty on other ranks. Every rank calls it.

    Pruned entries of moments are zeros."""
    state.check_drained("optimizer_state_dict()")
    plain, order = _whole(state)
    states: dict[str, Tensors] = {}
    settings, layers = state.settings, dict(state.numbered_layers())
    for stage, numbers in enumerate(settings.split):
        root = settings.grid.pipeline(0)[settings.place.rank_of(stage)]
        for number in numbers:
            mine = _of_layer(state, plain, number, layers[number]) if settings.rank == root else None
            for key, tensor in collect(state, root, mine).items():
                name, _, kind = key.partition(_SEPARATOR)
                states.setdefault(name, {})[kind] = tensor
    if settings.rank:
        return {}
    groups = plain.state_dict()["param_groups"]
    if isinstance(rule := state.update.rule, TorchOptimizer):
        for ours, theirs in zip(rule.optimizer.param_groups, groups, strict=True):
            theirs |= {name: value for name, value in ours.items() if name != "params"}
    return {
        "state": {place: states[name] for place, name in enumerate(order) if name in states},
        "param_groups": groups,
    }


@torch.no_grad()
def load_optimizer_state_dict(state: TrainState, saved: OptimizerStateDict) -> None:
    """Continue from the state dict of a plain optimizer. Every rank calls it with the whole of it.

    Raises InvalidRequest on all ranks, before anything changes, for another number of weights or groups, for a state of
    another shape, and for weights with different numbers of steps."""
    with state.comm.guard.all_or_none("a state dict of the optimizer is loaded"):
        state.check_drained("load_optimizer_state_dict()")
        plain, order = _whole(state)
        _check_groups(plain, saved)
        by_name = {order[int(place)]: states for place, states in saved["state"].items()}
        updates = _steps(by_name)
        parts = [
            (parameter, flat, by_name.get(name, {}).get(kind))
            for number, layer in state.numbered_layers()
            for name, kind, parameter, flat in _flat_states(state, plain, number, layer)
        ]
        for parameter, _, value in parts:
            if value is not None and value.shape != parameter.shape:
                raise InvalidRequest(
                    f"a state of shape {tuple(value.shape)} of a weight of shape {tuple(parameter.shape)}",
                    rule="a state dict of an optimizer holds states in the shapes of the weights",
                )
    for parameter, flat, value in parts:  # a weight without a saved state begins anew
        dense = torch.zeros_like(parameter) if value is None else value
        state.model_states.write(flat, parameter, dense.detach().to(flat.dtype))
    rule = state.update.rule
    if isinstance(rule, TorchOptimizer):
        for number, layer in state.numbered_layers():
            for name, parameter in layer.named_parameters():
                if not rule.states and parameter.requires_grad:
                    rule.load_own_states(parameter, by_name.get(_name_of(state, number, name), {}))
        for ours, theirs in zip(rule.optimizer.param_groups, saved["param_groups"], strict=True):
            ours |= {name: value for name, value in theirs.items() if name in ours and name != "params"}
    state.model_states.rule.updates = updates


def _whole(state: TrainState) -> tuple[torch.optim.Optimizer, list[str]]:
    """A plain optimizer of all trained weights, and the name of each weight in the order of its state dict."""
    named = state.trained_weights
    if not named:
        raise Unsupported(
            "a state dict of the optimizer of layers that functions make",
            rule="a rank knows the weights of all layers",
            legal="modules as model=",
        )
    plain = plain_optimizer(state.update.rule, named, state.model_states.rule.updates)
    name_of = {id(weight): name for name, weight in named.items()}
    return plain, [name_of[id(weight)] for group in plain.param_groups for weight in group["params"]]


def _name_of(state: TrainState, number: int, name: str) -> str:
    """Name of a layer's weight in a plain optimizer, which lists a tied weight once."""
    settings = state.settings
    return settings.name_among(state.trained_weights, number, name) or settings.name_of(number, name)


def _flat_states(
    state: TrainState, plain: torch.optim.Optimizer, number: int, layer: nn.Module
) -> list[tuple[str, str, nn.Parameter, torch.Tensor]]:
    """Name of the weight, torch's name of the state, weight and flat state of a layer's trained weights."""
    names = STATE_NAMES.get(type(plain), {})
    moments, spans = state.model_states.rule.moments, state.model_states.flat.spans
    return [
        (_name_of(state, number, name), names[moment], parameter, flat)
        for name, parameter in layer.named_parameters()
        for moment, flat in moments.items()
        if id(parameter) in spans and moment in names
    ]


def _of_layer(state: TrainState, plain: torch.optim.Optimizer, number: int, layer: nn.Module) -> Tensors:
    """States of a layer's trained weights, by `name of the weight, name of the state`."""
    states, rule = state.model_states, state.update.rule
    updates = states.rule.updates
    tensors: Tensors = {}
    if not updates:
        return tensors
    flat = _flat_states(state, plain, number, layer)
    for name, kind, parameter, moment in flat:
        tensors[f"{name}{_SEPARATOR}{kind}"] = states.dense(moment, parameter)
    if not isinstance(plain, torch.optim.SGD):
        tensors |= {f"{name}{_SEPARATOR}step": torch.tensor(float(updates)) for name, *_ in flat}
    if isinstance(rule, TorchOptimizer):
        for name, parameter in layer.named_parameters():
            for kind, value in rule.own_states(parameter).items():
                tensors[f"{_name_of(state, number, name)}{_SEPARATOR}{kind}"] = value
    return tensors


def _check_groups(plain: torch.optim.Optimizer, saved: OptimizerStateDict) -> None:
    ours = [len(group["params"]) for group in plain.param_groups]
    theirs = [len(group["params"]) for group in saved["param_groups"]]
    if ours != theirs:
        raise InvalidRequest(
            f"a state dict of an optimizer with {theirs} weights in its groups",
            rule=f"the groups of this optimizer, with {ours} weights",
            legal="the state dict of the same optimizer and model",
        )


def _steps(by_name: Mapping[str, Tensors]) -> int:
    """Updates of the optimizer; 1 for states without a counter, which only SGD has. Raises InvalidRequest for weights
    with different counters."""
    steps = {int(states["step"]) for states in by_name.values() if "step" in states}
    if len(steps) > 1:
        raise InvalidRequest(
            f"a state dict of an optimizer whose weights have {min(steps)} to {max(steps)} steps",
            rule="an engine updates all weights together",
        )
    return steps.pop() if steps else int(bool(by_name))
