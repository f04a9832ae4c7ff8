"""Load a checkpoint, completely or not at all, into a run with the same fingerprint.

An unpruned run loads the mask of a pruned checkpoint with its states; a pruned run must have the same mask.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from suite import accelerator
from suite.core.errors import InvalidRequest, SuiteError
from suite.core.values import Json
from suite.engine.checkpoint import files, run_fingerprint
from suite.engine.checkpoint.files import Tensors
from suite.engine.checkpoint.model_files import shard
from suite.engine.checkpoint.save import (
    BUFFER,
    FORMAT,
    OWN,
    RANDOM,
    SEARCH,
    STATE,
    RunState,
    described,
    live_tensors,
    training_file,
)
from suite.engine.pruning.step import mask_of, reallocate, validate_mask
from suite.engine.torch_api import state_dicts
from suite.engine.torch_api.torch_optimizer import TorchOptimizer
from suite.engine.train_state import TrainState
from suite.pruning import mask
from suite.pruning.mask import Indices


@dataclass(frozen=True)
class Loaded:
    """Result of a load.

    Attributes:
        updates: Batches trained before the checkpoint, including those that overflowed.
        samples: Samples of data trained on before the checkpoint.
        notes: States that another grid cannot resume.
        extra: Data that this rank saved; data of rank 0 on another grid.
    """

    path: Path
    updates: int
    samples: int
    notes: tuple[str, ...] = ()
    extra: Mapping[str, Json] = field(default_factory=dict)


def load(state: TrainState, path: Path) -> Loaded:
    """Load the checkpoint `path`, or the newest one in the folder `path`. Every rank calls it.

    This rank's part of the checkpoint is in host memory, next to the run's states, until all checks have passed.

    Raises InvalidRequest on all ranks, before anything changes, where no checkpoint exists, where it is not complete,
    or where model, optimizer, precision, seed or microbatches do not match."""
    guard = state.comm.guard
    with guard.all_or_none(f"{path} is resumed"):
        state.check_drained("load()")
        steps = files.steps(path)
    path = _newest(path, guard.max(max(steps, default=-1)))
    with guard.all_or_none(f"{path} is resumed"), _complete(path):
        checkpoint = _Checkpoint(state, path)
    checkpoint.restore()
    guard.max(0)  # threads share torch's default generator: no rank draws before all have set it
    return checkpoint.loaded()


def _newest(path: Path, step: int) -> Path:
    """The checkpoint `path`, or the one after `step` updates in the folder `path`; without one `step` is negative."""
    if files.step_of(path) is not None:
        return path
    if step < 0:
        raise InvalidRequest(
            f"no checkpoint in {path}",
            rule="a folder with at least one checkpoint",
            legal="a folder that save() has written to",
        )
    return files.path_of(path, step)


@contextmanager
def _complete(path: Path) -> Iterator[None]:
    """Raise InvalidRequest, which names the checkpoint before `path`, where a part of `path` cannot be read."""
    try:
        yield
    except SuiteError:
        raise
    except Exception as error:  # a damaged file may hold anything
        earlier = [step for step in files.steps(path.parent) if step < (files.step_of(path) or 0)]
        raise InvalidRequest(
            f"{path.name}, of which a part cannot be read: {error if isinstance(error, ValueError) else repr(error)}",
            rule="a checkpoint has all files that save() of this version writes",
            legal=str(files.path_of(path.parent, earlier[-1])) if earlier else "a checkpoint that save() has written",
        ) from error


def _run_state(path: Path) -> RunState:
    """The content of state.json. Raises ValueError for a checkpoint that has none of this version."""
    if not (path / STATE).is_file():
        raise ValueError(f"{STATE} is missing")
    body = RunState(**json.loads((path / STATE).read_bytes()))
    if body.format != FORMAT:
        raise ValueError(f"{STATE} has format {body.format}, this suite reads {FORMAT}")
    return body


class _Checkpoint:
    """A checkpoint that matches a run, with all tensors of this rank in memory. Construction changes nothing.

    Attributes:
        body: Content of state.json.
        rank_state: Random states, and the state of a search for a mask, of this rank; on another grid, of rank 0.
        mask: Saved indices of kept entries of this rank's layers.
        tensors: Saved buffers and moments of this rank's layers, by `LAYER/KIND/NAME`.
        descriptions: What `described` returned for each layer.
        weights: Weights and buffers with their saved values, as `state_dicts.pairs_of` returns them.
        kept: Kept indices by the ids of weights, if the run has to be pruned first.
    """

    def __init__(self, state: TrainState, path: Path) -> None:
        self.state, self.path, self.body = state, path, _run_state(path)
        place, grid, body = state.settings.place, state.settings.grid, self.body
        self._check_run()
        same_grid = (body.inter, body.replicas) == (grid.inter, grid.data)
        name = training_file(*((place.rank, place.replica) if same_grid else (0, 0)))
        self.rank_state, metadata = files.read(path / name, lambda key: key.startswith((RANDOM, SEARCH)))
        self.extra = json.loads(metadata["extra"])
        self.tensors, self.mask = Tensors(), Indices()
        self.descriptions: dict[str, dict[str, list[Any]]] = {}
        weights = self._read_layers(place.replica if body.replicas == grid.data else 0)
        for number, layer in state.numbered_layers():
            saved, current = self.descriptions[str(number)], described(state, layer)
            run_fingerprint.check_equal(path.name, {f"layer {number}": saved}, {f"layer {number}": current})
        self.weights = state_dicts.pairs_of(state, weights)
        self.kept = self._kept_indices()
        self.notes: list[str] = []
        if body.search and not same_grid:
            self.notes.append("the search for a mask starts anew: its masks are those of another grid")
            self.rank_state = {key: tensor for key, tensor in self.rank_state.items() if key.startswith(RANDOM)}
        elif body.search and state.pruning is not None:
            search = {"pruning": run_fingerprint.search_of(state)}
            run_fingerprint.check_equal(path.name, {"pruning": body.search}, search)
        if body.replicas != grid.data and any(f"/{BUFFER}/" in key for key in self.tensors):
            self.notes.append(
                f"buffers (running statistics) of all {grid.data} replicas: those of replica 0 of {body.replicas}"
            )

    def _read_layers(self, replica: int) -> Tensors:
        """Read the tensors of this rank's layers. Returns their weights by the names in the whole model."""
        body, weights = self.body, Tensors()
        numbers, names = list(map(str, self.state.settings.layers)), state_dicts.names_of_rank(self.state)
        for rank in sorted({body.ranks[int(number)] for number in numbers}):
            weights |= files.read(self.path / shard(rank, body.inter), names.__contains__)[0]
            for each in sorted({0, replica}):  # the first replica has moments, and every replica has its buffers
                path = self.path / training_file(rank, each)
                tensors, metadata = files.read(path, lambda key: key.partition("/")[0] in numbers)
                self.tensors |= tensors
            if body.pruned is not None:
                indices, _ = mask.load(self.path / mask.file_of(rank))
                self.mask |= {key: index for key, index in indices.items() if key[0] in self.state.settings.layers}
            self.descriptions |= json.loads(metadata["layers"])
        return weights

    def _check_run(self) -> None:
        """Raises InvalidRequest for a checkpoint of another run."""
        state, body, name = self.state, self.body, self.path.name
        replicas = state.settings.grid.data
        run_fingerprint.check_equal(name, body.run, run_fingerprint.fingerprint_of(state))
        if body.microbatches % replicas:
            legal = [str(n) for n in range(1, 1025) if body.microbatches % n == 0]
            raise InvalidRequest(
                f"{name} was saved after {body.microbatches} microbatches; this engine has {replicas} replicas",
                rule="the number of replicas divides the number of trained microbatches",
                legal=f"{', '.join(legal[:8])} replicas",
            )

    def _kept_indices(self) -> Mapping[int, torch.Tensor]:
        """Kept indices by the ids of this stage's weights, for a run that is not pruned yet; empty for a pruned run.

        Raises InvalidRequest for indices of other weights, and for a run that is pruned differently."""
        saved = self.mask
        if self.state.pruned_after is None:
            return validate_mask(self.state, saved)
        ours = {key: index.cpu() for key, index in mask_of(self.state)[0].items()}
        if ours.keys() != saved.keys() or not all(torch.equal(index, saved[key]) for key, index in ours.items()):
            raise InvalidRequest(f"{self.path.name} keeps other entries than this engine", rule=run_fingerprint.RULE)
        return {}

    @torch.no_grad()
    def restore(self) -> None:
        """Copy the checkpoint into the run. All checks have passed: nothing here is refused."""
        state, body, optimizer = self.state, self.body, self.state.update.rule
        if body.pruned is not None and state.pruned_after is None:
            reallocate(state, self.kept)
        state.pruned_after = body.pruned
        search = {key.removeprefix(SEARCH): kept for key, kept in self.rank_state.items() if key.startswith(SEARCH)}
        if search and state.pruning is not None:
            state.pruning.method.load_state_dict(search)
        state_dicts.copy_pairs(state, self.weights)
        if isinstance(optimizer, TorchOptimizer):
            optimizer.load_state_dict(body.optimizer)
            for number, layer in state.numbered_layers():
                for name, parameter in layer.named_parameters():
                    optimizer.load_own_states(parameter, self._own_states(number, name))
        for key, tensor in live_tensors(state).items():
            tensor.copy_(self.tensors[key])
        state.copies.write_buffers()
        state.model_states.rule.updates, state.updates = body.steps, body.updates
        state.update.skipped, state.evaluated = body.skipped, body.evaluated
        state.microbatches = body.microbatches // state.settings.grid.data
        if state.loss_scaler and (scale := body.loss_scale) is not None:
            state.loss_scaler.restore(scale)
        accelerator.set_random_states({key.removeprefix(RANDOM): kept for key, kept in self.rank_state.items()})

    def _own_states(self, number: int, name: str) -> Tensors:
        """States of a weight that torch's optimizer keeps."""
        start, end = f"{number}/{OWN}", f"/{name}"
        own = (key for key in self.tensors if key.startswith(start) and key.endswith(end))
        return {key.removeprefix(start).removesuffix(end): self.tensors[key] for key in own}

    def loaded(self) -> Loaded:
        body = self.body
        samples = body.microbatches * self.state.settings.config.microbatch
        return Loaded(self.path, body.updates, samples, tuple(self.notes), self.extra)
