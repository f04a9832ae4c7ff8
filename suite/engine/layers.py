"""Modules of one rank: the user's own, or copies that share tensors with them.

The list of layers may hold modules, or functions that make them. Each rank calls the functions of its layers only, with
the same random numbers on every split. A weight that several layers share has one leaf per layer (engine.ties).

The user's modules train in place. Two cases need a copy of a module: a weight that an earlier layer of this rank has
too (a second leaf), and mixed precision (passes compute in half precision). A copy shares all other tensors with its
original, and changes are written back, so the user's modules always hold the trained weights.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from suite.comm.p2p.polling import complete
from suite.core.errors import InvalidRequest
from suite.core.protocols import Group, Transport
from suite.core.values import format_value
from suite.engine.callables import binding_error
from suite.engine.guards.user_state import Follower
from suite.engine.random_state import drawing, initial, undisturbed
from suite.engine.states.state import ModelState

Layer = nn.Module | Callable[[], nn.Module]
_Copied = TypeVar("_Copied")


@dataclass
class Copies:
    """Copies of the user's modules on one rank.

    Attributes:
        followers: The copies, each with its original.
        weights: In mixed precision, the leaf of each original parameter; of several leaves here the first.
        lent: Data that `lend` has given to the original parameter, by the id of the leaf.
    """

    followers: list[Follower] = field(default_factory=list)
    weights: dict[nn.Parameter, nn.Parameter] = field(default_factory=dict)
    lent: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def layers(self) -> list[tuple[nn.Module, nn.Module]]:
        """Pairs (original module, copy)."""
        return [(follower.original, follower.copied) for follower in self.followers]

    def follow(self, state: ModelState) -> None:
        """Let the copies follow their originals: modes, attributes, and what the user has written to weights."""
        for follower in self.followers:
            follower.follow(trained=not state.half)
        if self.weights:
            state.round_weights()

    def lend(self, state: ModelState) -> None:
        """Make the user's weights views of the full-precision weights, in mixed precision.

        A pruned weight has no dense full-precision form: the user's weight becomes the half-precision copy. A weight
        that was lent before, and that another engine has taken over since, stays with that engine."""
        lent_before = bool(self.lent)
        for original, leaf in self.weights.items():
            if id(leaf) not in state.flat.spans or (lent_before and not self._lends(original, leaf)):
                continue
            if id(leaf) in state.kept:
                original.data = leaf.data
            else:
                original.data = state.dense(state.rule.weights[0], leaf)
            self.lent[id(leaf)] = original.data

    def return_weights(self, state: ModelState) -> None:
        """Copy full-precision weights to the user's modules on the device, unless another engine has taken them
        over."""
        for original, leaf in self.weights.items():
            if self._lends(original, leaf):
                original.data = state.dense(state.rule.weights[0], leaf).to(state.device)
        self.lent.clear()

    def _lends(self, original: nn.Parameter, leaf: nn.Parameter) -> bool:
        """Whether the user's weight is still the data that this engine has lent to it."""
        lent = self.lent.get(id(leaf))
        return lent is not None and lent.data_ptr() == original.data_ptr()

    @torch.no_grad()
    def write_buffers(self) -> None:
        """Write buffers that passes have changed (running statistics) to the originals."""
        for original, copied in self.layers:
            copied_buffers = dict(copied.named_buffers())
            for name, buffer in original.named_buffers():
                _write(buffer, copied_buffers.get(name, buffer))


def _write(original: torch.Tensor, changed: torch.Tensor) -> None:
    """Write `changed` to `original`, which keeps its full precision wherever it rounds to `changed`."""
    if changed is original or changed.data_ptr() == original.data_ptr() or changed.shape != original.shape:
        return
    if changed.dtype == original.dtype:
        original.copy_(changed)
    else:
        original.copy_(torch.where(original.to(changed.dtype) == changed, original, changed.to(original.dtype)))


def make_modules(
    layers: Sequence[Layer],
    numbers: Sequence[int],
    seed: int,
    *,
    device: torch.device | str = "cpu",
    half: torch.dtype | None = None,
) -> tuple[dict[int, nn.Module], Copies]:
    """The modules of the layers `numbers` on `device`, by number, and the copies among them.

    Raises InvalidRequest for a function that makes no module, and for a weight that functions share, because it would
    be one weight on some splits and two on others."""
    modules: dict[int, nn.Module] = {}
    copies = Copies()
    layer_of: dict[int, int] = {}  # number of the layer that has a parameter, by the id of the parameter
    for number in numbers:
        layer = layers[number]
        if isinstance(layer, nn.Module):
            _check_tensors(layer, number, half)
            layer.to(device)
            shared = {id(parameter) for parameter in layer.parameters()} & layer_of.keys()
            floating = any(t.is_floating_point() for t in (*layer.parameters(), *layer.buffers()))
            needs_copy = shared or (half and floating)
            module = _copy_layer(layer, number, shared, half, copies) if needs_copy else layer
            layer_of |= dict.fromkeys(map(id, layer.parameters()), number)
        else:
            with undisturbed(), drawing(*initial(seed, number)):
                module = _call_maker(layer, number)
                _check_tensors(module, number, half)
                module.to(device)
            for name, parameter in module.named_parameters():
                if id(parameter) in layer_of:
                    raise InvalidRequest(
                        f"weight {name} of layer {number}, which layer {layer_of[id(parameter)]} has too",
                        rule="functions make layers without common weights, as a rank calls only those of its layers",
                        legal="modules in the list, or tied=[(layer, name, other layer, name)]",
                    )
            layer_of |= dict.fromkeys(map(id, module.parameters()), number)
        modules[number] = module
    return modules, copies


def _check_tensors(module: nn.Module, number: int, half: torch.dtype | None) -> None:
    """Raises InvalidRequest for a weight or a buffer without shape or values, and for one that has no more than half
    precision where the engine makes a copy in half precision."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        weight = f"weight {name} of layer {number}"
        if is_lazy(tensor):
            what, rule = f"{weight}, which has no shape yet", "weights have shapes before an engine is made"
            legal = "a module that has been called with a sample, or nn.Linear in place of nn.LazyLinear"
        elif tensor.is_meta:
            what, rule = f'{weight}, on the device "meta"', "weights have values before an engine is made"
            legal = "a module that was made on the CPU or a GPU, or model.to_empty(device=...) and initial weights"
        elif half and _is_weight(tensor) and tensor.element_size() <= half.itemsize:
            what = f'half="{_name(half)}" with a {weight} in {_name(tensor.dtype)}'
            rule = "model= holds full-precision weights, of which the engine makes half-precision copies"
            legal = "a model in float32; close() an earlier engine of this model first"
        else:
            continue
        raise InvalidRequest(what, rule=rule, legal=legal)


def _is_weight(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.is_floating_point()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _call_maker(function: Callable[[], nn.Module], number: int) -> nn.Module:
    """The module that `function` makes."""
    is_builtin = inspect.isbuiltin(function)  # such as torch.relu, which computes
    error = TypeError("a builtin function") if is_builtin else binding_error(function)
    made: Any = error or function()
    if not isinstance(made, nn.Module):
        outcome = f"which makes a {type(made).__name__}" if error is None else f"called without arguments: {error}"
        raise InvalidRequest(
            f"layer {number}, {format_value(function)}, {outcome}",
            rule="a function in model= takes no arguments and makes a module",
            legal="a module (nn.Tanh()), or a function that makes one (lambda: nn.Linear(8, 8))",
        )
    return made


def copy_shared(layer: nn.Module, number: int, shared: set[int]) -> nn.Module:
    """A copy of `layer` with a new leaf for each weight whose id is in `shared`. It shares all other tensors."""
    return _copy_layer(layer, number, shared, None, Copies())


def _copy_layer(layer: nn.Module, number: int, shared: set[int], half: torch.dtype | None, copies: Copies) -> nn.Module:
    """A copy of `layer` with new leaves for the weights `shared`, or in mixed precision for all weights.

    A new leaf of mixed precision is an alias until the model states copy its data. The copy shares all other tensors
    with the layer, except for floating buffers in mixed precision."""
    memo: dict[int, torch.Tensor] = {}
    for parameter in layer.parameters():
        memo[id(parameter)] = parameter
        if half is not None:
            memo[id(parameter)] = leaf = _leaf(parameter, parameter.data)
            copies.weights.setdefault(parameter, leaf)
        elif id(parameter) in shared:
            memo[id(parameter)] = _leaf(parameter, parameter.data.clone())
    for buffer in layer.buffers():
        if half is None or not buffer.is_floating_point():
            memo[id(buffer)] = buffer
    layer_copy = copied(layer, f"layer {number}, {type(layer).__name__}", memo)
    copies.followers.append(Follower(layer, layer_copy))
    return layer_copy


def copied(module: _Copied, name: str, memo: dict[int, torch.Tensor] | None = None) -> _Copied:
    """A deep copy. Raises InvalidRequest for a module that has none, such as one of torch.nn.utils.weight_norm."""
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise InvalidRequest(
            f"{name}, which copy.deepcopy cannot copy: {error}",
            rule="passes in half precision, replicas in one process and each end of a tie compute with copies",
            legal="torch.nn.utils.parametrizations in place of torch.nn.utils.weight_norm, ranks under mpiexec, or "
            "functions that make the layers",
        ) from error


def _leaf(parameter: nn.Parameter, data: torch.Tensor) -> nn.Parameter:
    """A new leaf with the hooks of `parameter`."""
    leaf = nn.Parameter(data, requires_grad=parameter.requires_grad)
    for hook in (parameter._backward_hooks or {}).values():
        leaf.register_hook(hook)
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        leaf.register_post_accumulate_grad_hook(hook)
    return leaf


def broadcast_weights(modules: Iterable[nn.Module], group: Group, transport: Transport) -> None:
    """Broadcast weights and buffers of the first replica to all replicas, which are the ranks of `group`."""
    for module in modules:
        _broadcast((*module.parameters(), *module.buffers()), group, transport)


def share_buffers(modules: Iterable[nn.Module], group: Group, transport: Transport) -> None:
    """Broadcast the buffers that passes may have changed from the first replica, as torch's DDP does.

    Statistics are real numbers, and counters are single ones; masks and positions stay."""
    buffers = [buffer for module in modules for buffer in module.buffers()]
    changing = [each for each in buffers if each.is_floating_point() or each.is_complex() or each.numel() == 1]
    _broadcast(changing, group, transport)


def _broadcast(tensors: Iterable[torch.Tensor], group: Group, transport: Transport) -> None:
    for tensor in tensors if len(group.ranks) > 1 else ():
        complete(group.broadcast(tensor.data, group.ranks[0]), transport)


def cast(layers: nn.Module, half: torch.dtype) -> None:
    """Cast all floating parameters and buffers to `half`, also frozen ones: a pass has one dtype."""
    for tensor in (*layers.parameters(), *layers.buffers()):
        if tensor.is_floating_point() and tensor.dtype != half:
            tensor.data = tensor.data.to(half)
