"""Whole model and whole outputs on every rank: state dicts in plain PyTorch's names, and predictions.

The state dict of the model holds full-precision weights and buffers by the names that plain PyTorch gives them, so
`torch.load` and `load_state_dict` of the plain model read it, and the other way round. A pruned weight is dense in it,
with zeros at pruned entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any

import torch
from torch import nn

from suite.comm.p2p.polling import complete
from suite.core.errors import InvalidRequest
from suite.core.op import Op
from suite.core.protocols import Handle, Value
from suite.engine.evaluate import run_forwards
from suite.engine.states.compress import mask
from suite.engine.train_state import TrainState

Tensors = dict[str, torch.Tensor]


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
    settings, layers, whole = state.settings, dict(state.numbered_layers()), Tensors()
    for stage, numbers in enumerate(settings.split):
        root = settings.grid.pipeline(0)[settings.place.rank_of(stage)]
        for number in numbers:
            mine = layer_tensors(state, number, layers[number]) if settings.rank == root else None
            whole |= collect(state, root, mine)
    return whole | _on_host(state.settings.parts.unused) if settings.rank == 0 else whole


def collect(state: TrainState, root: int, tensors: Mapping[str, torch.Tensor] | None) -> Tensors:
    """The tensors that rank `root` passes, on the host of rank 0. Other ranks receive nothing."""
    group, rank = state.comm.guard.group, state.settings.rank
    if rank == root == 0:
        return _on_host(tensors or {})
    if rank == root:
        assert group is not None
        _transfer(state, tensors, lambda tensor: group.pairwise([(0, tensor)], []))
    elif rank == 0:
        assert group is not None
        return _transfer(state, None, lambda tensor: group.pairwise([], [(root, tensor)]))
    return {}


def _on_host(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    return {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}


def _transfer(
    state: TrainState, tensors: Mapping[str, torch.Tensor] | None, begin: Callable[[torch.Tensor], Handle]
) -> Tensors:
    """The tensors that one rank passes, on the host of every rank that takes part. `begin` begins each transfer."""
    device, transport, file = state.comm.world.device, state.comm.transport, BytesIO()
    if tensors is not None:
        torch.save(_on_host(tensors), file)
    length = torch.tensor([len(file.getbuffer())], device=device)
    complete(begin(length), transport)
    content = torch.frombuffer(bytearray(file.getvalue() or bytes(int(length))), dtype=torch.uint8).to(device)
    complete(begin(content), transport)
    received: Tensors = torch.load(BytesIO(content.cpu().numpy().tobytes()), weights_only=True)
    return received


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
    what = "" if isinstance(weights, Mapping) else f"a state dict that is a {type(weights).__name__}"
    if not what:
        other = next((name for name, tensor in weights.items() if not isinstance(tensor, torch.Tensor)), None)
        what = "" if other is None else f"{other!r} in a state dict, a {type(weights[other]).__name__}"
    if what:
        rule = "a state dict maps names of weights and buffers to tensors"
        raise InvalidRequest(what, rule=rule, legal="load_state_dict(model.state_dict()), or load_model(path)")


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
            names = (each for each in _names_of_weight(state, number, layer, name) if each in weights)
            found = [weights[each] for each in names]
            if any(each.shape != found[0].shape or not torch.equal(each, found[0]) for each in found[1:]):
                raise InvalidRequest(
                    f"a state dict in which the names of the tied weight {whole!r} hold different values",
                    rule="the ends of a tie are one weight",
                    legal="equal values under all names, or one name alone",
                )
            if (saved := found[0] if found else None) is None:
                raise InvalidRequest(
                    f"a state dict without {whole!r}",
                    rule="a state dict holds every weight and buffer of the model",
                    legal="the state dict of the whole model, as Engine.state_dict() or model.state_dict() returns it",
                )
            if saved.shape != tensor.shape:
                raise InvalidRequest(
                    f"{whole} of shape {tuple(saved.shape)} in a state dict",
                    rule=f"the shape of the model, {tuple(tensor.shape)}",
                )
            pairs.append((tensor, full[name], saved))
    pairs += [(tensor, tensor, weights[name]) for name, tensor in settings.parts.unused.items() if name in weights]
    if (known := settings.parts.names) and (unknown := [name for name in weights if name not in known]):
        raise InvalidRequest(
            f"a state dict with {unknown[0]!r}",
            rule="a state dict holds weights and buffers of the model only",
            legal=f"names such as {next(iter(known))!r}",
        )
    return pairs


# -- predictions -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def predict(state: TrainState, inputs: Any) -> Any:
    """Outputs of the model in evaluation mode for `inputs`, on the host of every rank. Every rank calls it.

    Args:
        inputs: Inputs of a batch, with any number of samples, at least one, in the first dimension.

    Returns:
        The output in the structure of the model's; for a list of layers a tensor, or a tuple of several.

    Raises:
        InvalidRequest: Within a stream, and for outputs without samples in the first dimension.
    """
    state.check_drained("predict()")
    state.comm.guard.begin("prediction", (inputs, ()))
    state.comm.guard.reduce(0.0)  # no loss follows
    tensors, _ = state.slicer.split((inputs, ()))
    settings, slicer = state.settings, replace(state.slicer, shard=False)
    place, samples = settings.place, tensors[0].shape[0]
    microbatches, most_microbatches = slicer.count_evaluation(tensors)
    first, outputs = state.evaluated, dict[int, Value]()

    def execute(op: Op, value: Value) -> Value:
        index = op.index - first
        output = state.stages[op.stage].outputs(
            slicer.inputs(tensors, index) if op.stage == 0 else value,
            sample=op.index * place.replicas + place.replica,
        )
        if op.stage == place.stages - 1:
            _check_rows(output, slicer.size(index, samples))
            outputs[index * place.replicas + place.replica] = output
        return output

    if microbatches:
        run_forwards(state, microbatches, execute)
    state.evaluated += most_microbatches
    chunks = _of_all_replicas(state, outputs)
    state.comm.guard.end()
    values = tuple(torch.cat(parts) for parts in zip(*(chunks[number] for number in sorted(chunks)), strict=True))
    if settings.parts.output is not None:
        return settings.parts.output.restore(iter(values))
    return values[0] if len(values) == 1 else values


def _check_rows(output: Value, rows: int) -> None:
    for tensor in output:
        if not tensor.dim() or tensor.shape[0] != rows:
            raise InvalidRequest(
                f"an output of shape {tuple(tensor.shape)} for {rows} samples",
                rule="outputs have their samples in the first dimension, so that those of microbatches form a batch",
            )


def _of_all_replicas(state: TrainState, outputs: Mapping[int, Value]) -> dict[int, Value]:
    """Outputs of all chunks of the batch, which the last stages of the replicas hold, on the host."""
    settings, group = state.settings, state.comm.guard.group
    if group is None:
        return {number: tuple(tensor.cpu() for tensor in value) for number, value in outputs.items()}
    chunks: dict[int, Value] = {}
    for replica in range(settings.grid.data):
        pipeline = settings.grid.pipeline(settings.grid.rank(data=replica, inter=0))
        root = pipeline[settings.place.rank_of(settings.place.stages - 1)]
        mine = {f"{number} {part}": t for number, value in outputs.items() for part, t in enumerate(value)}
        received = _transfer(state, mine if settings.rank == root else None, partial(group.broadcast, root=root))
        for name, tensor in received.items():
            number = int(name.partition(" ")[0])
            chunks[number] = (*chunks.get(number, ()), tensor)
    return chunks
