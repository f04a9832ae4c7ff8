"""Whole model and whole outputs on every rank: state dicts in plain PyTorch's names, and predictions.

The state dict of the model holds full-precision weights and buffers by the names that plain PyTorch gives them, so
`torch.load` and `load_state_dict` of the plain model read it, and the other way round. A pruned weight is dense in it,
with zeros at pruned entries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from suite.comm.p2p.polling import complete
from suite.core.errors import InvalidRequest, SuiteError
from suite.core.op import FlushInterval, Op
from suite.core.protocols import Value
from suite.engine.batch_source import BatchSource
from suite.engine.checkpoint.save import check_drained, safetensors
from suite.engine.states.compress import mask
from suite.engine.step_runner import run_on_rank
from suite.engine.train_state import TrainState
from suite.engine.worker import run_to_end

Tensors = dict[str, torch.Tensor]
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # of a sharded file, in the form of Hugging Face


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


def rank_state_dict(state: TrainState) -> Tensors:
    """Weights and buffers of this rank's layers, on the host."""
    return {
        name: tensor.to("cpu", copy=True)
        for number, layer in state.numbered_layers()
        for name, tensor in layer_tensors(state, number, layer).items()
    }


def state_dict(state: TrainState) -> Tensors:
    """Weights and buffers of the whole model on rank 0, on the host; empty on other ranks. Every rank calls it.

    One layer at a time passes through the other ranks."""
    check_drained(state, "state_dict()")
    settings, group = state.settings, state.agreement.group
    rest = {name: tensor.to("cpu", copy=True) for name, tensor in state.unused.items()}
    if group is None:
        return rank_state_dict(state) | rest
    layers, whole = dict(state.numbered_layers()), Tensors()
    for stage, numbers in enumerate(settings.split):
        for number in numbers:
            root = settings.grid.pipeline(0)[settings.place.rank_of(stage)]
            mine = layer_tensors(state, number, layers[number]) if settings.rank == root else None
            tensors = broadcast_tensors(state, root, mine)
            if settings.rank == 0:
                whole |= tensors
    return whole | rest if settings.rank == 0 else whole


def broadcast_tensors(state: TrainState, root: int, tensors: Mapping[str, torch.Tensor] | None) -> Tensors:
    """The tensors that rank `root` passes, on the host of every rank. Other ranks pass None."""
    group, device = state.agreement.group, state.comm.world.device
    assert group is not None
    heads = None if tensors is None else {name: [str(t.dtype), *t.shape] for name, t in tensors.items()}
    head = b"" if heads is None else json.dumps(heads).encode()
    length = torch.tensor([len(head)], dtype=torch.int64, device=device)
    complete(group.broadcast(length, root), state.comm.transport)
    buffer = torch.frombuffer(bytearray(head or bytes(int(length))), dtype=torch.uint8).to(device)
    complete(group.broadcast(buffer, root), state.comm.transport)
    received = Tensors()
    for name, (dtype, *shape) in json.loads(bytes(buffer.cpu().numpy())).items():
        kind = getattr(torch, dtype.removeprefix("torch."))
        mine = torch.empty(shape, dtype=kind, device=device) if tensors is None else tensors[name].to(device)
        payload = mine.detach().contiguous().clone().view(-1).view(torch.uint8)
        if payload.numel():
            complete(group.broadcast(payload, root), state.comm.transport)
        received[name] = payload.view(kind).view(shape).cpu()
    return received


@torch.no_grad()
def load_state_dict(state: TrainState, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy the weights and buffers of the whole model into this rank's layers. Every rank calls it with its own part at
    least. Moments and counters stay.

    Raises InvalidRequest on all ranks, before anything changes, for a missing or unknown name and for another shape."""
    with state.comm.guard.all_or_none("a state dict is loaded"):
        check_drained(state, "load_state_dict()")
        _check_tensors(weights)
        pairs = _pairs(state, weights)
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


def names_of_weight(state: TrainState, number: int, layer: nn.Module, name: str) -> list[str]:
    """Names of a weight or buffer in the whole model, its own first. A tied weight has several, of which a file of
    Hugging Face holds one."""
    settings = state.settings
    own = dict(layer.named_parameters(remove_duplicate=False))
    same = [other for other, weight in own.items() if weight is own.get(name)]
    ends = [end for ends in settings.ties if any((number, each) in ends for each in (name, *same)) for end in ends]
    return list(dict.fromkeys(settings.name_of(*end) for end in [(number, name), *((number, o) for o in same), *ends]))


def _pairs(state: TrainState, weights: Mapping[str, torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """Each tensor of this rank, the user's own that it copies, and the saved one of its name."""
    pairs: list[tuple[torch.Tensor, ...]] = []
    settings = state.settings
    originals = {id(copied): original for original, copied in state.copies.layers}
    for number, layer in state.numbered_layers():
        full = originals.get(id(layer), layer).state_dict()
        for name, tensor in layer.state_dict(keep_vars=True).items():
            whole = settings.name_of(number, name)
            names = (each for each in names_of_weight(state, number, layer, name) if each in weights)
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
    pairs += [(tensor, tensor, weights[name]) for name, tensor in state.unused.items() if name in weights]
    if (known := settings.names) and (unknown := [name for name in weights if name not in known]):
        raise InvalidRequest(
            f"a state dict with {unknown[0]!r}",
            rule="a state dict holds weights and buffers of the model only",
            legal=f"names such as {next(iter(known))!r}",
        )
    return pairs


# -- files -----------------------------------------------------------------------------------------------------------


def save_model(state: TrainState, folder: Path, *, sharded: bool) -> Path:
    """Write the weights of the whole model to `folder` in the safetensors format. Every rank calls it.

    Args:
        sharded: Whether each rank of the first replica writes its own file, which the folder must be shared for.
            Otherwise rank 0 gathers the model, and writes one file.

    Returns:
        The file, or the index of a sharded one.
    """
    place, settings = state.settings.place, state.settings
    guard = state.comm.guard
    if not sharded:
        whole = state_dict(state)
        with guard.all_or_none(f"{folder / WEIGHTS} is written"):
            if settings.rank == 0:
                _write(folder / WEIGHTS, whole)
        return folder / WEIGHTS
    check_drained(state, "save_model()")
    mine = rank_state_dict(state) if place.replica == 0 else {}
    file = f"model-{place.rank + 1:05d}-of-{place.ranks:05d}.safetensors"
    with guard.all_or_none(f"{folder / file} is written"):
        if place.replica == 0:
            _write(folder / file, mine)
    with guard.all_or_none(f"{folder / INDEX} is written"):
        if settings.rank == 0:
            _write_index(folder, place.ranks)
    return folder / INDEX


def _write(path: Path, tensors: Tensors) -> None:
    """Write tensors on the host, which share no memory, to a file in a folder that may not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors().save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def _write_index(folder: Path, files: int) -> None:
    """Write which file holds each name."""
    from safetensors import safe_open

    weight_map, total = dict[str, str](), 0
    for number in range(files):
        file = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        with safe_open(folder / file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                weight_map[name] = file
        total += (folder / file).stat().st_size
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=1))


def load_model(state: TrainState, path: Path) -> None:
    """Load the weights of the whole model from a file or a folder of `save_model` or of Hugging Face, or from a file
    of torch.save. Every rank calls it, and reads its own tensors only.

    Raises InvalidRequest on all ranks for a file that is missing or holds another model."""
    with state.comm.guard.all_or_none(f"{path} is loaded"):
        wanted = {
            whole
            for number, layer in state.numbered_layers()
            for name in layer.state_dict()
            for whole in names_of_weight(state, number, layer, name)
        }
        try:
            weights = _read(path, wanted)
        except (SuiteError, OSError, ImportError):
            raise
        except Exception as error:  # a damaged file may raise any class
            raise InvalidRequest(
                f"{path}, which holds no state dict that can be read",
                rule="a file in the safetensors format, or a state dict that torch.save has written",
                legal="torch.save(model.state_dict(), path)",
            ) from error
    load_state_dict(state, weights)


def _read(path: Path, wanted: set[str]) -> Tensors:
    from safetensors import safe_open

    if path.is_dir():
        path = next((path / name for name in (INDEX, WEIGHTS) if (path / name).exists()), path / WEIGHTS)
    if not path.exists():
        raise InvalidRequest(
            f"no file {path}", rule="the weights of a model", legal=f"a folder with {WEIGHTS} or {INDEX}"
        )
    if path.name.endswith(".index.json"):
        weight_map = json.loads(path.read_text())["weight_map"]
        files = sorted({path.parent / weight_map[name] for name in wanted if name in weight_map})
    elif path.suffix == ".safetensors":
        files = [path]
    else:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(loaded, Mapping):
            raise TypeError(f"it holds a {type(loaded).__name__}")
        return {name: tensor for name, tensor in loaded.items() if isinstance(tensor, torch.Tensor)}
    tensors = Tensors()
    for file in files:
        with safe_open(file, framework="pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys() if name in wanted}  # noqa: SIM118
    return tensors


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
    check_drained(state, "predict()")
    source = BatchSource([(inputs, ())], single=True)
    tensors, _ = state.slicer.split(state.agreement.next(source, "prediction"))
    state.agreement.settle()
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
        program = state.schedule.evaluation(FlushInterval(first, microbatches, None, 0))
        run_to_end(run_on_rank(state, program, execute, 0))
    state.evaluated += most_microbatches
    chunks = _of_all_replicas(state, outputs)
    state.agreement.calls.end()
    values = tuple(torch.cat(parts) for parts in zip(*(chunks[number] for number in sorted(chunks)), strict=True))
    if settings.output is not None:
        return settings.output.restore(iter(values))
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
    settings = state.settings
    if state.agreement.group is None:
        return {number: tuple(tensor.cpu() for tensor in value) for number, value in outputs.items()}
    chunks: dict[int, Value] = {}
    for replica in range(settings.grid.data):
        pipeline = settings.grid.pipeline(settings.grid.rank(data=replica, inter=0))
        root = pipeline[settings.place.rank_of(settings.place.stages - 1)]
        mine = {f"{number} {part}": t for number, value in outputs.items() for part, t in enumerate(value)}
        received = broadcast_tensors(state, root, mine if settings.rank == root else None)
        for name, tensor in received.items():
            number = int(name.partition(" ")[0])
            chunks[number] = (*chunks.get(number, ()), tensor)
    return chunks
