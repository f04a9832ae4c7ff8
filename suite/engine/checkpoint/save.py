"""Save a checkpoint between batches, while no microbatch is in flight; `checkpoint.restore` loads it.

A checkpoint is a folder with the following files, which all ranks share.

    model-00001-of-00002.safetensors      weights and buffers of a pipeline rank, as `save_model` writes them
    model.safetensors.index.json          file of each of them, in the form of Hugging Face
    training-00000-00001.safetensors      the other tensors of a pipeline rank and replica, as `LAYER/moment_1/NAME`
    mask-00000.safetensors                indices of kept entries of a pipeline rank, of a pruned network
    state.json                            fingerprint of the run, counters, loss scale: the last file

Layers are numbered in the whole model, so a run with another split finds what it needs. The training file of the first
replica holds moments. That of every replica holds buffers, torch's
default generators and a search for a mask. Half-precision copies follow from the full weights.

The position in the run is the number of microbatches over all replicas: with the seed it determines all random numbers
of layers, and the data, on any grid.

If one rank fails to write or read its part, all ranks raise.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from suite import accelerator
from suite.core.errors import InvalidRequest
from suite.core.files import write_atomically
from suite.core.values import Json
from suite.engine.checkpoint import files
from suite.engine.checkpoint.files import Tensors
from suite.engine.checkpoint.model_files import write_index, write_shard
from suite.engine.checkpoint.run_fingerprint import fingerprint_of, search_of
from suite.engine.pruning.step import mask_of
from suite.engine.torch_api.torch_optimizer import OptimizerSettings, TorchOptimizer
from suite.engine.train_state import TrainState
from suite.pruning import mask

FORMAT = 4
STATE = "state.json"
SEARCH = "search/"  # prefix of the state of a search for a mask
RANDOM = "random/"  # prefix of the states of random generators
OWN = "optimizer."  # prefix of the kind of a state that torch's optimizer keeps
BUFFER = "buffer"  # kind of a tensor that is no moment


@dataclass(frozen=True)
class RunState:
    """Content of state.json.

    Attributes:
        run: Fingerprint of the run.
        search: Settings of a search for a mask; empty without one.
        ranks: Pipeline rank of each layer.
        steps: Updates without those that overflowed.
        pruned: Updates before the pruning.
        optimizer: Settings of an optimizer of torch.optim and its scheduler; None for a rule of the suite.
    """

    run: Mapping[str, Json]
    search: Mapping[str, Json]
    ranks: list[int]
    inter: int
    replicas: int
    updates: int
    steps: int
    skipped: int
    pruned: int | None
    microbatches: int
    evaluated: int
    optimizer: OptimizerSettings | None
    loss_scale: dict[str, float] | None
    format: int = FORMAT


def save(state: TrainState, folder: Path, *, keep: int | None = None, extra: Mapping[str, Json] | None = None) -> Path:
    """Write `folder`/step-000042 (42 updates), complete or not at all. Every rank calls it between batches.

    Args:
        keep: Number of newest checkpoints that stay in the folder; None for all.
        extra: Plain data of this rank, which `load` returns.

    Raises:
        InvalidRequest: Within a batch, or for keep below 1.
        OSError: A disk failed on this rank; the other ranks raise RankError.
    """
    guard, settings = state.comm.guard, state.settings
    path = files.path_of(folder, state.updates)
    unfinished = files.unfinished_of(path)
    try:
        with guard.all_or_none(f"{path} is begun"):
            files.check_keep(keep)
            metadata = {"extra": _as_json(extra)}
            state.check_drained("save()")
            if settings.rank == 0:
                files.begin(path)
        with guard.all_or_none(f"{path} is written"):
            write_shard(state, unfinished)
            layers = {number: described(state, layer) for number, layer in state.numbered_layers()}
            name = training_file(settings.place.rank, settings.place.replica)
            files.write(unfinished / name, _training_tensors(state), {**metadata, "layers": json.dumps(layers)})
            if state.pruned_after is not None and settings.place.replica == 0:
                mask.save(unfinished / mask.file_of(settings.place.rank), *mask_of(state))
        with guard.all_or_none(f"{path} is finished"):
            if settings.rank == 0:
                ranks, replicas = range(settings.grid.inter), range(settings.grid.data)
                files.check_shared(unfinished, [training_file(rank, replica) for rank in ranks for replica in replicas])
                write_index(unfinished, settings.grid.inter)
                write_atomically(
                    unfinished / STATE, json.dumps(asdict(_run_state(state)), indent=1).encode(), durable=True
                )
                files.finish(path, keep)
    except Exception:
        if settings.rank == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return path


def training_file(rank: int, replica: int) -> str:
    """Name of the file of pipeline rank `rank`."""
    return f"training-{rank:05d}-{replica:05d}.safetensors"


def _as_json(extra: Mapping[str, Json] | None) -> str:
    """Plain data as text. Raises InvalidRequest unless `extra` is plain data by name."""
    try:
        return json.dumps(dict(extra or {}))
    except (TypeError, ValueError) as error:
        rule = "plain data by name: text, numbers, true, false, None, lists and mappings"
        raise InvalidRequest(f"extra={extra!r}: {error}", rule=rule, legal='extra={"epoch": 3}') from error


def described(state: TrainState, layer: nn.Module) -> dict[str, list[Any]]:
    """Of each weight and buffer of a layer: whether it is trained, its dtype, and its shape before pruning."""
    trained, dtype = state.model_states.flat.spans, state.model_states.dtype
    return {
        name: ["trained", f"{dtype}", *tensor.shape] if id(tensor) in trained else [f"{tensor.dtype}", *tensor.shape]
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers())
    }


def live_tensors(state: TrainState) -> Tensors:
    """Buffers, and moments of trained weights, of this rank's layers, by `LAYER/KIND/NAME`.

    A save reads them, and a load writes to them."""
    states, tensors = state.model_states, Tensors()
    for number, layer in state.numbered_layers():
        tensors |= {f"{number}/{BUFFER}/{name}": buffer for name, buffer in layer.named_buffers()}
        for name, parameter in layer.named_parameters():
            if id(parameter) in states.flat.spans:
                exported = states.export(parameter)
                tensors |= {f"{number}/{moment}/{name}": exported[moment] for moment in states.rule.moments}
    return tensors


def _training_tensors(state: TrainState) -> Tensors:
    """Tensors of this rank that are not those of `save_model`."""
    rule, first = state.update.rule, state.settings.place.replica == 0
    tensors: Tensors = {f"{RANDOM}{name}": kept for name, kept in accelerator.random_states().items()}
    if state.pruned_after is None and state.pruning is not None:
        tensors |= {f"{SEARCH}{name}": kept for name, kept in state.pruning.method.state_dict().items()}
    tensors |= {key: tensor for key, tensor in live_tensors(state).items() if first or f"/{BUFFER}/" in key}
    if isinstance(rule, TorchOptimizer) and first:
        for number, layer in state.numbered_layers():
            for name, parameter in layer.named_parameters():
                own = rule.own_states(parameter)
                tensors |= {f"{number}/{OWN}{kind}/{name}": tensor for kind, tensor in own.items()}
    return tensors


def _run_state(state: TrainState) -> RunState:
    settings, optimizer = state.settings, state.update.rule
    return RunState(
        run=fingerprint_of(state),
        search=search_of(state),
        ranks=[settings.place.rank_of(stage) for stage, layers in enumerate(settings.split) for _ in layers],
        inter=settings.grid.inter,
        replicas=settings.grid.data,
        updates=state.updates,
        steps=state.model_states.rule.updates,
        skipped=state.update.skipped,
        pruned=state.pruned_after,
        microbatches=state.microbatches * settings.grid.data,
        evaluated=state.evaluated,
        optimizer=optimizer.state_dict() if isinstance(optimizer, TorchOptimizer) else None,
        loss_scale=state.loss_scaler.state() if state.loss_scaler else None,
    )
