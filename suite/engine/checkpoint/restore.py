"""Load a checkpoint, completely or not at all, into a run with the same fingerprint.

An unpruned run loads the mask of a pruned checkpoint with its states; a pruned run must have the same mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from suite import accelerator
from suite.core.errors import InvalidRequest
from suite.core.values import Json
from suite.engine.checkpoint import run_fingerprint, storage
from suite.engine.checkpoint.save import (
    INDEX,
    OWN,
    RANDOM,
    SCHEMA,
    SEARCH,
    Tensors,
    check_drained,
    layer_file,
    layer_shapes,
    layer_states,
    rank_file,
    safetensors,
)
from suite.engine.optim.torch_optimizer import TorchOptimizer
from suite.engine.pruning_step import reallocate, validate_mask
from suite.engine.train_state import TrainState
from suite.pruning.mask import Indices, Key, describe_weight

# errors of reading a manifest that another program wrote
_FOREIGN_MANIFEST = (
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    StopIteration,
    ZeroDivisionError,
)


@dataclass(frozen=True)
class Loaded:
    """Result of a load.

    Attributes:
        updates: Batches trained before the checkpoint, including those that overflowed.
        samples: Samples of data trained on before the checkpoint.
        notes: Newer checkpoints that are damaged, and states that another grid cannot resume.
        extra: Data that this rank saved; data of rank 0 on another grid.
    """

    path: Path
    updates: int
    samples: int
    notes: tuple[str, ...] = ()
    extra: Mapping[str, Json] = field(default_factory=dict)


def load(state: TrainState, path: Path) -> Loaded:
    """Load the checkpoint `path`, or the newest complete one in the folder `path`. Every rank calls it.

    This rank's part of the checkpoint is in host memory, next to the run's states, until all checks have passed.

    Raises InvalidRequest on all ranks, before anything changes, where no checkpoint exists, where the named one is
    damaged, or where model, optimizer, precision, seed or microbatches do not match."""
    guard = state.comm.guard
    damage: list[str] = []
    oldest_tried = None
    while True:
        with guard.all_or_none(f"{path} is resumed"):
            check_drained(state, "load()")
            orders = [] if storage.is_step(path) else storage.checkpoint_orders(path)
        checkpoint = path
        if not storage.is_step(path):
            candidates = (order for order in orders if oldest_tried is None or order < oldest_tried)
            oldest_tried = guard.max(max(candidates, default=-1))
            if oldest_tried < 0:
                raise InvalidRequest(
                    f"no checkpoint in {path}" + "".join(f"; {fault}" for fault in damage),
                    rule="a folder with at least one complete checkpoint",
                    legal="a folder that save() has written to",
                )
            checkpoint = storage.path_of(path, oldest_tried)
        fault, restorer = "", None
        with guard.all_or_none(f"{checkpoint} is resumed"):
            try:
                restorer = _Restorer(state, checkpoint)
            except storage.Damaged as error:
                fault = str(error)
            except _FOREIGN_MANIFEST as error:
                fault = f"{checkpoint.name} is not a checkpoint of this suite ({type(error).__name__}: {error})"
        if not guard.max(bool(fault)):
            break
        damage.append(fault or f"{checkpoint.name} has a damaged file, which another rank reports")
        if storage.is_step(path):
            legal = f"{path.parent}, to load the newest complete checkpoint"
            raise InvalidRequest(damage[-1], rule="every file has the SHA-256 of the manifest", legal=legal)
    assert restorer is not None
    restorer.restore()
    guard.max(0)  # threads share torch's default generator: no rank draws before all have set it
    return restorer.loaded(damage)


class _Restorer:
    """A checkpoint that matches a run, with all tensors of this rank in memory. Construction changes nothing.

    Attributes:
        body: The manifest.
        rank_tensors: Tensors of each rank's file that was read, by file name.
        rank_state: Tensors of this rank's file; on another grid, of rank 0's.
        search: State of a search for a mask.
        buffers: Buffers of this rank, each with its saved value.
        layer_tensors: Saved states of this rank's layers, by the layer's number.
        kept: Kept indices by the ids of weights, if the run has to be pruned first.
    """

    def __init__(self, state: TrainState, path: Path) -> None:
        self.state, self.path, self.body = state, path, storage.manifest(path)
        settings, body = state.settings, self.body
        place, grid = settings.place, settings.grid
        self._check_run()
        self.notes: list[str] = []
        self.rank_tensors: dict[str, Tensors] = {}
        replica, saved_replicas = place.replica, body["replicas"]
        if saved_replicas != grid.data:
            replica = 0
            if any(name.startswith("buffer/") for layer in body["layers"].values() for name in layer):
                self.notes.append(
                    f"buffers (running statistics) of all {grid.data} replicas: those of replica 0 of {saved_replicas}"
                )
        if len(body["homes"]) != len(body["split"]):
            raise storage.Damaged(
                f"{path.name} has {len(body['homes'])} ranks of stages for {len(body['split'])} stages"
            )
        same_grid = (saved_replicas, max(body["homes"]) + 1) == (grid.data, grid.inter)
        self.rank_state = self._load_rank(*((place.rank, place.replica) if same_grid else (0, 0)))
        searches = {name: tensor for name, tensor in self.rank_state.items() if name.startswith(SEARCH)}
        if searches and not same_grid:
            self.notes.append("the search for a mask starts anew: its masks are those of another grid")
        self.search = {name.removeprefix(SEARCH): tensor for name, tensor in searches.items() if same_grid}
        if self.search and state.pruning is not None:
            state.pruning.check_search_state(self.search)
        self.extra = body["extra"][settings.rank if same_grid else 0]
        self.buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number, layer in state.numbered_layers():
            for name, buffer in layer.named_buffers():
                home = next(home for home, (_, stop) in zip(body["homes"], body["split"], strict=True) if number < stop)
                self.buffers.append((buffer, self._load_rank(home, replica)[f"buffer/{number}/{name}"]))
        self.layer_tensors = {number: self._read(layer_file(number)) for number, _ in state.numbered_layers()}
        self.kept = self._kept_indices()

    def _kept_indices(self) -> Mapping[int, torch.Tensor]:
        """Kept indices by the ids of this stage's weights, for a run that is not pruned yet; empty for a pruned run.

        Raises InvalidRequest for indices of other weights, and for a run that is pruned differently."""
        indices = {
            (number, name.removeprefix(INDEX)): index
            for number, states in self.layer_tensors.items()
            for name, index in states.items()
            if name.startswith(INDEX)
        }
        if self.state.pruned_after is None:
            return validate_mask(self.state, indices)
        layers = dict(self.state.numbered_layers())
        for key, index in indices.items():
            kept_index = self.state.model_states.kept[id(layers[key[0]].get_parameter(key[1]))]
            if not torch.equal(kept_index.cpu(), index):
                raise InvalidRequest(
                    f"{self.path.name} keeps other entries of {describe_weight(key)} than this engine",
                    rule=run_fingerprint.RULE,
                )
        return {}

    def _load_rank(self, rank: int, replica: int) -> Tensors:
        """Tensors of the file of one pipeline rank."""
        name = rank_file(rank, replica)
        self.rank_tensors[name] = self.rank_tensors.get(name) or self._read(name)
        return self.rank_tensors[name]

    def _read(self, name: str) -> Tensors:
        data = storage.read_file(self.path, name, self.body["files"][name])
        try:
            return dict(safetensors().load(data))
        except Exception as error:  # safetensors has error classes of its own
            raise storage.Damaged(f"{self.path.name}/{name} holds no tensors ({error})") from error

    def _check_run(self) -> None:
        """Raises InvalidRequest for a checkpoint of another schema, run or model."""
        state, body, name = self.state, self.body, self.path.name
        replicas = state.settings.grid.data
        if body["schema"] != SCHEMA:
            raise InvalidRequest(f"{name} has schema {body['schema']}", rule=f"this suite reads schema {SCHEMA}")
        run_fingerprint.check_equal(name, body["run"], run_fingerprint.fingerprint_of(state))
        if isinstance(rule := state.update.rule, TorchOptimizer):
            rule.check_state_dict(body["optimizer"])
        for number, layer in state.numbered_layers():
            saved, current = body["layers"][str(number)], layer_shapes(state.model_states, layer)
            if state.pruned_after is None:
                saved = _unpruned_shapes(saved, current)
            for key in sorted(saved.keys() | current.keys()):
                if saved.get(key) != current.get(key):
                    raise InvalidRequest(
                        f"layer {number} of {name} has {key} {saved.get(key)}, this engine has {current.get(key)}",
                        rule=run_fingerprint.RULE,
                        legal=f"{key} {saved.get(key)}",
                    )
        if body["microbatches"] % replicas:
            legal = [str(n) for n in range(1, 1025) if body["microbatches"] % n == 0]
            raise InvalidRequest(
                f"{name} was saved after {body['microbatches']} microbatches; this engine has {replicas} replicas",
                rule="the number of replicas divides the number of trained microbatches",
                legal=f"{', '.join(legal[:8])} replicas",
            )

    @torch.no_grad()
    def restore(self) -> None:
        """Copy the checkpoint into the run. All checks have passed: nothing here is refused."""
        state, body = self.state, self.body
        if body.get("pruned") is not None and state.pruned_after is None:
            reallocate(state, self.kept)
        state.pruned_after = body.get("pruned")
        if self.search and state.pruning is not None:
            state.pruning.restore_search(self.search)
        for number, layer in state.numbered_layers():
            for name, tensor in layer_states(state.model_states, layer).items():
                tensor.copy_(self.layer_tensors[number][name])
        if isinstance(rule := state.update.rule, TorchOptimizer):
            self._restore_optimizer(rule)
        for buffer, saved in self.buffers:
            buffer.copy_(saved)
        state.model_states.round_weights()
        state.copies.write_buffers()
        state.copies.write_frozen()
        state.model_states.rule.updates, state.updates = body["steps"], body["updates"]
        state.update.skipped, state.evaluated = body["skipped"], body["evaluated"]
        state.microbatches = body["microbatches"] // state.settings.grid.data
        if state.loss_scaler and (scale := body["loss_scale"]) is not None:
            state.loss_scaler.restore(scale)
        saved_states = {name.removeprefix(RANDOM): kept for name, kept in self.rank_state.items()}
        accelerator.set_random_states(saved_states)

    def _restore_optimizer(self, rule: TorchOptimizer) -> None:
        """Copy settings, scheduler and states that torch's optimizer keeps."""
        rule.load_state_dict(self.body["optimizer"])
        for number, layer in self.state.numbered_layers():
            for name, parameter in layer.named_parameters():
                saved = {
                    key.removeprefix(OWN).removesuffix(f"/{name}"): tensor
                    for key, tensor in self.layer_tensors[number].items()
                    if key.startswith(OWN) and key.removeprefix(OWN).partition("/")[2] == name
                }
                rule.load_own_states(parameter, saved)

    def loaded(self, damage: Sequence[str]) -> Loaded:
        body = self.body
        samples = body["microbatches"] * body["run"]["microbatch"]
        return Loaded(self.path, body["updates"], samples, (*damage, *self.notes), self.extra)


def _unpruned_shapes(saved: Mapping[str, list[Any]], current: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Saved shapes of a layer before pruning, which are this run's shapes where the number of entries matches."""
    pruned = {name.removeprefix(INDEX): shape[1:] for name, shape in saved.items() if name.startswith(INDEX)}
    shapes = {}
    for name, shape in saved.items():
        kept_entries, entries = pruned.get(name.partition("/")[2], (None, None))
        current_shape = current.get(name, shape)
        compressed = shape[1:] == [kept_entries] and math.prod(current_shape[1:]) == entries
        if not name.startswith(INDEX):
            shapes[name] = [shape[0], *current_shape[1:]] if compressed else shape
    return shapes


def load_mask(path: Path) -> tuple[Indices, dict[Key, int]]:
    """The mask of the whole model in a checkpoint, and the number of entries of each masked weight.

    Raises InvalidRequest where no checkpoint is complete, and for a checkpoint of a network that is not pruned."""
    if not storage.is_step(path):
        orders = storage.checkpoint_orders(path)
        if not orders:
            raise InvalidRequest(f"no checkpoint in {path}", rule="a checkpoint, or a folder with at least one")
        path = storage.path_of(path, orders[-1])
    indices: Indices = {}
    entries: dict[Key, int] = {}
    try:
        body = storage.manifest(path)
        for number, shapes in body["layers"].items():
            names = [name for name in shapes if name.startswith(INDEX)]
            file = layer_file(int(number))
            tensors = safetensors().load(storage.read_file(path, file, body["files"][file])) if names else {}
            for name in names:
                key = int(number), name.removeprefix(INDEX)
                indices[key], entries[key] = tensors[name], shapes[name][-1]
    except storage.Damaged as error:
        raise InvalidRequest(str(error), rule="a complete checkpoint") from error
    if not indices:
        raise InvalidRequest(
            f"{path.name} holds no mask", rule="the checkpoint of a pruned network, saved after pruning"
        )
    return indices, entries
