"""State dicts of optimizers in the form of torch.optim, for the whole model.

The optimizer of a plain script of the same model loads the state dict of an engine, and the other way round. A plain
optimizer of all trained weights gives the parameter groups and the order of the weights; it is made by the user's own
function, or with the settings of the suite's rule.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from suite.core.errors import InvalidRequest, Unsupported
from suite.engine.torch_api.state_dicts import Tensors, collect
from suite.engine.torch_api.torch_optimizer import (
    STATE_NAMES,
    WEIGHTS,
    SuiteRule,
    TorchOptimizer,
    TrainedWeights,
    torch_form,
)
from suite.engine.train_state import TrainState

OptimizerStateDict: TypeAlias = "dict[str, Any]"  # of torch.optim.Optimizer.state_dict; empty on other ranks
States: TypeAlias = dict[str, Tensors]  # by torch's name of the state, by the name of the weight


def optimizer_state_dict(state: TrainState) -> OptimizerStateDict:
    """The state dict of the optimizer on rank 0, on the host; empty on other ranks. Every rank calls it.

    Pruned entries of moments are zeros."""
    state.check_drained("optimizer_state_dict()")
    plain, rule = _plain_optimizer(state), state.update.rule
    states = collect(state, partial(_of_layer, state, plain))
    if state.settings.rank:
        return {}
    plain.state.update({weight: states[name] for name, weight in state.trained_weights.items() if states.get(name)})
    if isinstance(rule, TorchOptimizer):
        for ours, theirs in zip(rule.optimizer.param_groups, plain.param_groups, strict=True):
            theirs |= {name: value for name, value in ours.items() if name not in WEIGHTS}
    return plain.state_dict()


@torch.no_grad()
def load_optimizer_state_dict(state: TrainState, saved: OptimizerStateDict) -> None:
    """Continue from the state dict of a plain optimizer. Every rank calls it with the whole of it.

    Raises InvalidRequest on all ranks, before anything changes, for another number of weights or groups, for a state of
    another shape, and for weights with different numbers of steps."""
    rule = state.update.rule
    with state.comm.guard.all_or_none("a state dict of the optimizer is loaded"):
        state.check_drained("load_optimizer_state_dict()")
        plain, name_of = _plain_optimizer(state), {id(weight): name for name, weight in state.trained_weights.items()}
        order = [name_of[id(weight)] for group in plain.param_groups for weight in group["params"]]
        try:
            plain.load_state_dict({**saved, "state": {}})  # torch compares the groups
        except ValueError as error:
            raise _refusal(str(error)) from error
        by_name: States = {order[int(place)]: states for place, states in saved["state"].items()}
        steps = {int(states["step"]) for states in by_name.values() if "step" in states}
        if len(steps) > 1:
            raise _refusal(f"weights have {min(steps)} to {max(steps)} steps")
        parts = [
            (parameter, flat, by_name.get(name, {}).get(kind))
            for number, layer in state.numbered_layers()
            for name, kind, parameter, flat in _flat_states(state, number, layer)
        ]
        for parameter, _, value in parts:
            if value is not None and value.shape != parameter.shape:
                raise _refusal(f"a weight of shape {tuple(parameter.shape)} has a state of {tuple(value.shape)}")
    for parameter, flat, value in parts:  # a weight without a saved state begins anew
        dense = torch.zeros_like(parameter) if value is None else value
        state.model_states.write(flat, parameter, dense.detach().to(flat.dtype))
    if isinstance(rule, TorchOptimizer):
        for number, layer in state.numbered_layers():
            for name, parameter in layer.named_parameters():
                if not rule.states and parameter.requires_grad:
                    rule.load_own_states(parameter, by_name.get(_name_of(state, number, name), {}))
        for ours, theirs in zip(rule.optimizer.param_groups, plain.param_groups, strict=True):
            ours |= {name: value for name, value in theirs.items() if name in ours and name not in WEIGHTS}
    # states without a counter are those of SGD, of which only the first update differs
    state.model_states.rule.updates = steps.pop() if steps else int(bool(by_name))


def _refusal(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"a state dict of an optimizer: {what}",
        rule="the groups of this optimizer, states in the shapes of the weights, and one number of steps, as an engine "
        "updates all weights together",
        legal="the state dict of the same optimizer and model",
    )


def _plain_optimizer(state: TrainState) -> torch.optim.Optimizer:
    """The optimizer that a plain script has for all trained weights.

    Raises Unsupported for a rule of the user's own, and for weights of layers that functions make."""
    named, rule = state.trained_weights, state.update.rule
    if named and isinstance(rule, TorchOptimizer):
        return rule.factory(TrainedWeights(named.items()))
    if named and isinstance(rule, SuiteRule):
        kind, settings = torch_form(rule, state.model_states.rule.updates)
        return kind(list(named.values()), **settings)
    raise Unsupported(
        f"a state dict of the optimizer {type(rule).__name__}{'' if named else ' of layers that functions make'}",
        rule="a rule of the suite, or an optimizer of torch.optim, of layers that every rank knows",
        legal="SGD, Adam, AdamW, RMSprop, and modules as model=",
    )


def _name_of(state: TrainState, number: int, name: str) -> str:
    """Name of a layer's weight in a plain optimizer, which lists a tied weight once."""
    settings = state.settings
    return settings.name_among(state.trained_weights, number, name) or settings.name_of(number, name)


def _flat_states(state: TrainState, number: int, layer: nn.Module) -> list[tuple[str, str, nn.Parameter, torch.Tensor]]:
    """Name of the weight, torch's name of the state, weight and flat state of a layer's trained weights."""
    moments, spans = state.model_states.rule.moments, state.model_states.flat.spans
    return [
        (_name_of(state, number, name), STATE_NAMES[moment], parameter, flat)
        for name, parameter in layer.named_parameters()
        for moment, flat in moments.items()
        if id(parameter) in spans and moment in STATE_NAMES
    ]


def _of_layer(state: TrainState, plain: torch.optim.Optimizer, number: int, layer: nn.Module) -> States:
    """States of a layer's trained weights."""
    states, rule = state.model_states, state.update.rule
    updates, by_name = states.rule.updates, States()
    for name, kind, parameter, moment in _flat_states(state, number, layer) if updates else ():
        of_weight = by_name.setdefault(name, {})
        of_weight[kind] = states.dense(moment, parameter)
        if not isinstance(plain, torch.optim.SGD):
            of_weight["step"] = torch.tensor(float(updates))
    if updates and isinstance(rule, TorchOptimizer):
        for name, parameter in layer.named_parameters():
            by_name.setdefault(_name_of(state, number, name), {}).update(rule.own_states(parameter))
    return by_name
