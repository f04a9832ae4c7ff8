"""State dict of the whole model, in plain PyTorch's names.

It holds full-precision weights and buffers by the names that plain PyTorch gives them, so
`torch.load` and `load_state_dict` of the plain model read it, and the other way round. A pruned weight is dense in it,
with zeros at pruned entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from io import BytesIO
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from suite.comm.p2p.polling import complete
from suite.core.errors import InvalidRequest
from suite.core.protocols import Handle
from suite.engine.states.compress import mask
from suite.engine.train_state import TrainState

Tensors = dict[str, torch.Tensor]
_Tensors = TypeVar("_Tensors")


def layer_tensors(state: TrainState, number: int, layer: nn.Module) -> Tensors:
    """Live full-precision weights and persistent buffers of a layer, by name in the whole model.

    Of a trained weight in mixed precision, and of a pruned one, it may be a copy. The step runner and a
    load have written buffers of copies to the user's modules."""
    originals = {id(copied): original for original, copied in state.copies.layers}
    full = originals.get(id(layer), layer).state_dict(keep_vars=True)
    trained = {id(parameter) for parameter in state.model_states.parameters} if state.settings.half else set()
    tensors: Tensors = {}
    for name, tensor in layer.state_dict(keep_vars=True).items():
        value = full[name].detach()
        if id(tensor) in trained:
            value = state.model_states.dense(state.model_states.rule.weights[0], tensor)
        tensors[state.settings.name_of(number, name)] = value
    return tensors


def rank_tensors(state: TrainState) -> Tensors:
    """Live weights and buffers of this rank's layers, and of the first stage also those that no layer uses."""
    tensors: Tensors = {}
    for number, layer in state.numbered_layers():
        tensors |= layer_tensors(state, number, layer)
    return tensors | (dict(state.settings.parts.unused) if state.settings.place.rank == 0 else {})


def state_dict(state: TrainState) -> Tensors:
    """Weights and buffers of the whole model on rank 0, on the host; empty on other ranks. Every rank calls it."""
    state.check_drained("state_dict()")
    whole: Tensors = collect(state, partial(layer_tensors, state))
    return whole | on_host(dict(state.settings.parts.unused)) if state.settings.rank == 0 else whole


def collect(state: TrainState, of_layer: Callable[[int, nn.Module], dict[str, _Tensors]]) -> dict[str, _Tensors]:
    """Tensors of all layers by name, on the host of rank 0; empty on other ranks.

    Args:
        of_layer: Function of a layer of this rank and its number that returns its tensors.
    """
    settings, group, layers = state.settings, state.comm.guard.group, dict(state.numbered_layers())
    whole: dict[str, _Tensors] = {}
    for stage, numbers in enumerate(settings.split):
        root = settings.grid.pipeline(0)[settings.place.rank_of(stage)]
        for number in numbers if settings.rank in (0, root) else ():
            if root == 0:
                whole |= on_host(of_layer(number, layers[number]))
                continue
            assert group is not None
            if settings.rank == root:
                transfer(state, of_layer(number, layers[number]), lambda tensor: group.pairwise([(0, tensor)], []))
            else:
                whole |= transfer(state, None, lambda tensor: group.pairwise([], [(root, tensor)]))  # noqa: B023
    return whole


def on_host(tensors: _Tensors) -> _Tensors:
    """Copies of nested tensors on the host."""
    copies: _Tensors = tree_map_only(torch.Tensor, lambda tensor: tensor.to("cpu", copy=True), tensors)
    return copies


def transfer(state: TrainState, tensors: Any, begin: Callable[[torch.Tensor], Handle]) -> Any:
    """The nested tensors that one rank passes, on the host of every rank that takes part; others pass None.

    Args:
        begin: Begins the transfer of one tensor.
    """
    device, transport, file = state.comm.world.device, state.comm.transport, BytesIO()
    if tensors is not None:
        torch.save(on_host(tensors), file)
    length = torch.tensor([len(file.getbuffer())], device=device)
    complete(begin(length), transport)
    content = torch.frombuffer(bytearray(file.getvalue() or bytes(int(length))), dtype=torch.uint8).to(device)
    complete(begin(content), transport)
    return torch.load(BytesIO(content.cpu().numpy().tobytes()), weights_only=True)


def load_state_dict(state: TrainState, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy the weights and buffers of the whole model into this rank's layers. Every rank calls it with its own part at
    least. Moments and counters stay.

    Raises InvalidRequest on all ranks, before anything changes, for a missing or unknown name and for another shape."""
    with state.comm.guard.all_or_none("a state dict is loaded"):
        state.check_drained("load_state_dict()")
        _check_tensors(weights)
        pairs = pairs_of(state, weights)
    copy_pairs(state, pairs)


@torch.no_grad()
def copy_pairs(state: TrainState, pairs: Iterable[tuple[torch.Tensor, ...]]) -> None:
    """Copy the saved tensors of `pairs_of`."""
    states = state.model_states
    trained = {id(parameter): parameter for parameter in states.parameters}
    for target, original, saved in pairs:
        parameter = trained.get(id(target))
        if parameter is None:
            target.copy_(saved)
            original.copy_(saved)
        elif states.half:
            states.write(states.rule.weights[0], parameter, saved.to(states.dtype))
        else:
            parameter.data.copy_(saved)
            if (index := states.kept.get(id(parameter))) is not None:
                mask(parameter.data, index)
    states.round_weights()


def _check_tensors(weights: Any) -> None:
    """Raises InvalidRequest unless `weights` maps names to tensors."""
    if not isinstance(weights, Mapping):
        raise _refusal(f"a state dict that is a {type(weights).__name__}")
    for name, tensor in weights.items():
        if not isinstance(tensor, torch.Tensor):
            raise _refusal(f"{name!r} in a state dict, a {type(tensor).__name__}")


def _refusal(what: str) -> InvalidRequest:
    return InvalidRequest(
        what,
        rule="a state dict has every weight and buffer of the model in its shape and nothing else, and one value under "
        "all names of a tied weight",
        legal="the state dict of the whole model, as Engine.state_dict() or model.state_dict() returns it",
    )


def names_of_rank(state: TrainState) -> set[str]:
    """Names in the whole model of the weights and buffers of this rank's layers."""
    return {
        whole
        for number, layer in state.numbered_layers()
        for name in layer.state_dict()
        for whole in _names_of_weight(state, number, layer, name)
    } | state.settings.parts.unused.keys()


def _names_of_weight(state: TrainState, number: int, layer: nn.Module, name: str) -> list[str]:
    """Names of a weight or buffer in the whole model, its own first. A tied weight has several, of which a file of
    Hugging Face holds one."""
    settings = state.settings
    own = dict(layer.named_parameters(remove_duplicate=False))
    same = [other for other, weight in own.items() if weight is own.get(name)]
    ends = [end for ends in settings.ties if any((number, each) in ends for each in (name, *same)) for end in ends]
    return list(dict.fromkeys(settings.name_of(*end) for end in [(number, name), *((number, o) for o in same), *ends]))


def pairs_of(state: TrainState, weights: Mapping[str, torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """Each tensor of this rank, the user's own that it copies, and the saved one of its name.

    Raises InvalidRequest for a missing or unknown name and for another shape."""
    pairs: list[tuple[torch.Tensor, ...]] = []
    settings = state.settings
    originals = {id(copied): original for original, copied in state.copies.layers}
    for number, layer in state.numbered_layers():
        full = originals.get(id(layer), layer).state_dict()
        for name, tensor in layer.state_dict(keep_vars=True).items():
            whole = settings.name_of(number, name)
            values = [weights[each] for each in _names_of_weight(state, number, layer, name) if each in weights]
            if not values:
                raise _refusal(f"a state dict without {whole!r}")
            if values[0].shape != tensor.shape:
                raise _refusal(f"{whole} of shape {tuple(values[0].shape)} in a state dict, not {tuple(tensor.shape)}")
            if not all(torch.equal(each, values[0]) for each in values[1:]):
                raise _refusal(f"a state dict in which the names of the tied weight {whole!r} hold different values")
            pairs.append((tensor, full[name], values[0]))
    pairs += [(tensor, tensor, weights[name]) for name, tensor in settings.parts.unused.items() if name in weights]
    if (known := settings.parts.names) and (unknown := [name for name in weights if name not in known]):
        raise _refusal(f"a state dict with {unknown[0]!r}")
    return pairs
