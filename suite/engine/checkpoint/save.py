"""Save a checkpoint between batches, while no microbatch is in flight; `checkpoint.restore` loads it.

A checkpoint holds full-precision weights and moments by the layer's number in the whole model and the weight's name, so
a run with another split finds what it needs. It also holds frozen weights, buffers, torch's default generators of every
rank, the loss scale and counters. Half-precision copies follow from the full weights when those are loaded. A pruned
weight is saved as its kept entries and their indices.

The position in the run is the number of microbatches over all replicas: with the seed it determines all random numbers
of layers, and the data, on any grid.

Replica 0 writes a file per layer, and each rank one file of its own, so all ranks must share the folder. If one rank
fails to write or read its part, all ranks raise. Files are in the safetensors format, which unpickles nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from suite import accelerator
from suite.core.errors import InvalidRequest, MissingDependency, Unsupported
from suite.core.protocols import UpdateRule
from suite.core.values import Json
from suite.engine.asynchronous import within_stream
from suite.engine.checkpoint import storage
from suite.engine.checkpoint.run_fingerprint import fingerprint_of
from suite.engine.optim.torch_optimizer import TorchOptimizer
from suite.engine.states.state import ModelState
from suite.engine.train_state import TrainState

SCHEMA = 2
SEARCH = "search/"  # prefix of the state of a search for a mask
RANDOM = "random/"  # prefix of the states of random generators
OWN = "optimizer/"  # prefix of a state that torch's optimizer keeps
INDEX = "index/"  # prefix of the kept indices of a pruned weight, next to its compressed states
Tensors = dict[str, torch.Tensor]


def save(state: TrainState, folder: Path, *, keep: int | None = None, extra: Mapping[str, Json] | None = None) -> Path:
    """Write `folder`/step-000042 (42 updates), complete or not at all. Every rank calls it between batches.

    Args:
        keep: Number of newest checkpoints that stay in the folder; None for all.
        extra: Plain data of this rank, which `load` returns.

    Raises:
        InvalidRequest: Within a batch, or for keep below 1.
        OSError: A disk failed on this rank; the other ranks raise RankError.
    """
    guard, rank = state.comm.guard, state.settings.rank
    unfinished = storage.unfinished_path(folder, state.updates)
    try:
        with guard.all_or_none(f"{unfinished} is begun"):
            storage.check_folder(folder)
            storage.check_keep(keep)
            _check_extra(extra)
            check_drained(state, "save()")
            _check_versions(state)
            if rank == 0:
                storage.begin(unfinished)
        with guard.all_or_none(f"{unfinished} is written"):
            rank_part = json.dumps({**_write_files(state, unfinished), "extra": dict(extra or {})})
            (unfinished / f"{rank}.json").write_text(rank_part)
        with guard.all_or_none(f"{unfinished} is finished"):
            if rank == 0:
                storage.finish(unfinished, _manifest(state, unfinished), keep)
    except Exception:
        if rank == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return storage.finished_path(unfinished)


def _check_extra(extra: Mapping[str, Json] | None) -> None:
    """Raises InvalidRequest unless `extra` is plain data by name."""
    try:
        json.dumps(dict(extra or {}))
    except (TypeError, ValueError) as error:
        rule = "plain data by name: text, numbers, true, false, None, lists and mappings"
        raise InvalidRequest(f"extra={extra!r}: {error}", rule=rule, legal='extra={"epoch": 3}') from error


def check_drained(state: TrainState, call: str) -> None:
    """Raises InvalidRequest within a batch, and after an interrupted one."""
    if not state.drained:
        raise within_stream(call)


def _check_versions(state: TrainState) -> None:
    """Raises Unsupported for a weight policy that keeps older versions over a drain."""
    if (updates_back := state.versions.live()) != (0,):
        raise Unsupported(
            f"weight versions {updates_back} updates before the newest",
            rule="a checkpoint holds only the newest weights",
        )


def layer_states(states: ModelState, layer: nn.Module) -> Tensors:
    """Live full-precision weights and moments of a layer, by `state/weight`."""
    tensors: Tensors = {}
    for name, parameter in layer.named_parameters():
        trained = id(parameter) in states.flat.spans
        exported = states.export(parameter) if trained else {"weight": parameter.data}
        tensors |= {f"{state}/{name}": tensor for state, tensor in exported.items()}
    return tensors


def own_states(rule: UpdateRule, layer: nn.Module) -> Tensors:
    """States of a layer's trained weights that torch's optimizer keeps, by `optimizer/state/weight`."""
    if not isinstance(rule, TorchOptimizer):
        return {}
    return {
        f"{OWN}{state}/{name}": tensor
        for name, parameter in layer.named_parameters()
        for state, tensor in rule.own_states(parameter).items()
    }


def _dtypes_and_shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[Any]]:
    return {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in tensors.items()}


def layer_shapes(states: ModelState, layer: nn.Module) -> dict[str, list[Any]]:
    """Dtype and shape of each tensor of a layer in a checkpoint; for an index also the entries of the whole weight."""
    buffers = {f"buffer/{name}": buffer for name, buffer in layer.named_buffers()}
    shapes = _dtypes_and_shapes(layer_states(states, layer)) | _dtypes_and_shapes(buffers)
    for name, shape in shapes.items():
        if name.startswith(INDEX):
            shape.append(layer.get_parameter(name.removeprefix(INDEX)).numel())
    return shapes


def _write_files(state: TrainState, folder: Path) -> dict[str, Any]:
    """Write this rank's files. Returns this rank's part of the manifest."""
    place, states = state.settings.place, state.model_states
    files: dict[str, storage.FileDigest] = {}
    tensors: Tensors = {f"{RANDOM}{name}": kept for name, kept in accelerator.random_states().items()}
    if state.pruned_after is None and state.pruning is not None:
        tensors |= {f"{SEARCH}{name}": mask for name, mask in state.pruning.search_state().items()}
    for number, layer in state.numbered_layers():
        tensors |= {f"buffer/{number}/{name}": buffer for name, buffer in layer.named_buffers()}
        if place.replica == 0:
            name = layer_file(number)
            tensors_of_layer = layer_states(states, layer) | own_states(state.update.rule, layer)
            files[name] = storage.write_file(folder / name, _serialized(tensors_of_layer))
    name = rank_file(place.rank, place.replica)
    files[name] = storage.write_file(folder / name, _serialized(tensors))
    return {"files": files, "layers": {str(number): layer_shapes(states, x) for number, x in state.numbered_layers()}}


def layer_file(number: int) -> str:
    return f"layer-{number:05d}.safetensors"


def rank_file(rank: int, replica: int) -> str:
    """Name of the file of pipeline rank `rank`."""
    return f"rank-{rank:05d}-replica-{replica:05d}.safetensors"


def _manifest(state: TrainState, folder: Path) -> storage.Manifest:
    """The manifest, collected from the parts of all ranks."""
    settings, optimizer, parts = state.settings, state.update.rule, []
    for rank in range(settings.grid.size):
        path = folder / f"{rank}.json"
        if not path.exists():
            rule = "all ranks share the folder of a checkpoint"
            raise InvalidRequest(f"rank 0 finds no file of rank {rank} in {folder}", rule=rule)
        parts.append(json.loads(path.read_text()))
        path.unlink()
    return {
        "schema": SCHEMA,
        "run": fingerprint_of(state),
        "split": [[layers.start, layers.stop] for layers in settings.split],
        "homes": [settings.place.rank_of(stage) for stage in range(settings.place.stages)],
        "replicas": settings.grid.data,
        "updates": state.updates,
        "steps": state.model_states.rule.updates,  # updates without those that overflowed
        "skipped": state.update.skipped,
        "pruned": state.pruned_after,
        "microbatches": state.microbatches * settings.grid.data,
        "evaluated": state.evaluated,
        "optimizer": optimizer.state_dict() if isinstance(optimizer, TorchOptimizer) else None,
        "loss_scale": state.loss_scaler.state() if state.loss_scaler else None,
        "layers": {number: shapes for part in parts for number, shapes in part["layers"].items()},
        "files": {name: checksum for part in parts for name, checksum in part["files"].items()},
        "extra": [part["extra"] for part in parts],
    }


def _serialized(tensors: Mapping[str, torch.Tensor]) -> bytes:
    on_cpu = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    return bytes(safetensors().save(on_cpu))


def safetensors() -> Any:
    """The module safetensors.torch. Raises MissingDependency where it is not installed."""
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise MissingDependency("safetensors", "pip install safetensors to save and load checkpoints") from error
    return safetensors.torch
