"""Load a checkpoint, all of it or nothing, into an engine with the same fingerprint.

An unpruned engine takes over a mask with its states; a pruned engine must have the same mask."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from suite.core.errors import InvalidRequest
from suite.core.values import Json
from suite.engine.checkpoint import run_fingerprint, storage
from suite.engine.checkpoint.save import (
    INDEX,
    SCHEMA,
    SEARCH,
    Tensors,
    check_drained,
    format_of,
    layer_file,
    rank_file,
    shapes_of,
    states_of,
)
from suite.engine.collective_guard import Together
from suite.engine.prune import adopt, numbered, prunes
from suite.pruning.mask import Indices, Key, told

if TYPE_CHECKING:
    from suite.engine.engine import Engine


# what a manifest of another form meets
_OTHER = (KeyError, TypeError, ValueError, IndexError, AttributeError, StopIteration, ZeroDivisionError)


@dataclass(frozen=True)
class Loaded:
    """Result of a load.

    Attributes:
        updates: Batches that were trained, those that overflowed too.
        samples: Of data they used.
        notes: Newer checkpoints that are damaged, by name, and what another grid does not get as it was.
        extra: The state that this rank saved; rank 0's on another grid.
    """

    path: Path
    updates: int
    samples: int
    notes: tuple[str, ...] = ()
    extra: Mapping[str, Json] = field(default_factory=dict)


def load(engine: Engine, path: Path) -> Loaded:
    """Load the newest complete checkpoint in a folder, or the checkpoint that `path` names; every rank calls it.

    Raises InvalidRequest on all ranks, before anything has changed, where no checkpoint exists, where the named one
    is damaged, or where model, optimizer, precision, seed or microbatches do not match. Until all checks have
    passed, this rank's part is held on the host in addition to the engine's."""
    together = Together(engine)
    damaged: list[str] = []
    below = None
    while True:
        with together.step(f"{path} is resumed"):
            check_drained(engine)
            orders = [] if storage.is_step(path) else storage.standing(path)
        at = path
        if not storage.is_step(path):
            below = together.largest(max((order for order in orders if below is None or order < below), default=-1))
            if below < 0:
                message = f"no checkpoint in {path}" + "".join(f"; {fault}" for fault in damaged)
                raise InvalidRequest(
                    message, rule="a whole one, as save leaves it", legal="a folder that save was given"
                )
            at = storage.path_of(path, below)
        fault, loaded = "", None
        with together.step(f"{at} is resumed"):
            try:
                loaded = _Loaded(engine, at)
            except storage.Damaged as error:
                fault = str(error)
            except _OTHER as error:  # its manifest is whole, and another program's
                fault = f"{at.name} is no checkpoint of this suite ({type(error).__name__}: {error})"
        if not together.largest(bool(fault)):
            break
        damaged.append(fault or f"{at.name} has a file that is damaged, as another rank says")
        if storage.is_step(path):
            legal = f"{path.parent}, of which the newest whole one is taken"
            raise InvalidRequest(damaged[-1], rule="files have the manifest's SHA-256", legal=legal)
    assert loaded is not None
    loaded.take(engine)
    together.largest(0)  # threads share torch's default generator: no rank draws before all have set it
    return loaded.told(damaged)


class _Loaded:
    """A checkpoint that fits this engine: all that is to be copied, in memory, and where to. Changes nothing."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self.path, self.body = path, storage.manifest(path)
        body, place, data = self.body, engine.place, engine.grid.data
        self._check_run(engine)
        self.notes: list[str] = []
        self.ranks: dict[str, Tensors] = {}
        replica, saved = place.replica, body["replicas"]
        if saved != data:
            replica = 0
            if any(name.startswith("buffer/") for layer in body["layers"].values() for name in layer):
                self.notes.append(f"buffers (running statistics) are those of replica 0 of {saved}, for all {data}")
        same = (saved, len(body["split"])) == (data, engine.grid.inter)
        self.random = self._of_rank(*((place.stage, place.replica) if same else (0, 0)))
        self.search = {n.removeprefix(SEARCH): t for n, t in self.random.items() if n.startswith(SEARCH) and same}
        if not same and any(name.startswith(SEARCH) for name in self.random):
            self.notes.append("a search for a ticket begins anew: its masks are those of another grid")
        if self.search and engine.pruning is not None:
            engine.pruning.check(self.search)
        self.extra = body["extra"][engine.rank if same else 0]
        self.buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number, layer in numbered(engine):
            for name, buffer in layer.named_buffers():
                stage = next(stage for stage, (_, stop) in enumerate(body["split"]) if number < stop)
                self.buffers.append((buffer, self._of_rank(stage, replica)[f"buffer/{number}/{name}"]))
        self.states = {number: self._tensors(layer_file(number)) for number, _ in numbered(engine)}
        self.kept = self._kept(engine)

    def _kept(self, engine: Engine) -> Mapping[int, torch.Tensor]:
        """The places that stay of this stage's weights, by their ids, where the engine has to be pruned first. Raises
        InvalidRequest where they are of other weights, and where the engine is pruned already and otherwise."""
        entries = {
            (number, name.removeprefix(INDEX)): index
            for number, states in self.states.items()
            for name, index in states.items()
            if name.startswith(INDEX)
        }
        if engine.pruned is None:
            return prunes(engine, entries)
        live = dict(numbered(engine))
        for key, index in entries.items():
            pruned_index = engine.state.pruned[id(live[key[0]].get_parameter(key[1]))]
            if not torch.equal(pruned_index.cpu(), index):
                raise InvalidRequest(
                    f"{self.path.name} keeps other places of {told(key)}", rule=run_fingerprint.RESUMES
                )
        return {}

    def _of_rank(self, stage: int, replica: int) -> Tensors:
        """State that only one rank saved."""
        name = rank_file(stage, replica)
        self.ranks[name] = self.ranks.get(name) or self._tensors(name)
        return self.ranks[name]

    def _tensors(self, name: str) -> Tensors:
        data = storage.fetch(self.path, name, self.body["files"][name])
        try:
            return dict(format_of().load(data))
        except Exception as error:  # safetensors has an error of its own
            raise storage.Damaged(f"{self.path.name}/{name} holds no tensors ({error})") from error

    def _check_run(self, engine: Engine) -> None:
        body, name = self.body, self.path.name
        if body["schema"] != SCHEMA:
            raise InvalidRequest(f"{name} has schema {body['schema']}", rule=f"this suite reads schema {SCHEMA}")
        run_fingerprint.check(name, body["run"], run_fingerprint.of(engine))
        for number, layer in numbered(engine):
            expected, here = body["layers"][str(number)], shapes_of(engine, layer)
            if engine.pruned is None:
                expected = _whole(expected, here)
            for key in sorted(expected.keys() | here.keys()):
                if expected.get(key) != here.get(key):
                    message = f"layer {number} of {name} has {key} {expected.get(key)}, this engine's {here.get(key)}"
                    raise InvalidRequest(message, rule=run_fingerprint.RESUMES, legal=f"{key} {expected.get(key)}")
        if body["microbatches"] % engine.grid.data:
            legal = [str(n) for n in range(1, 1025) if body["microbatches"] % n == 0]
            raise InvalidRequest(
                f"{name} stands after {body['microbatches']} microbatches, on {engine.grid.data} replicas",
                rule="the replicas divide the microbatches that were trained",
                legal=f"{', '.join(legal[:8])} replicas",
            )

    @torch.no_grad()
    def take(self, engine: Engine) -> None:
        """Nothing here can be refused."""
        body = self.body
        if body.get("pruned") is not None and engine.pruned is None:
            adopt(engine, self.kept)
        engine.pruned = body.get("pruned")
        if self.search and engine.pruning is not None:
            engine.pruning.recall(self.search)
        for number, layer in numbered(engine):
            for name, live in states_of(engine, layer).items():
                live.copy_(self.states[number][name])
        for live, saved in self.buffers:
            live.copy_(saved)
        engine.state.refresh()
        engine.copies.write_buffers()
        engine.copies.write_frozen()
        engine.state.rule.updates, engine.updates = body["steps"], body["updates"]
        engine.update.skipped, engine.evaluated = body["skipped"], body["evaluated"]
        engine.microbatches = body["microbatches"] // engine.grid.data
        if engine.scaler and (scale := body["loss_scale"]) is not None:
            engine.scaler.restore(scale)
        torch.default_generator.set_state(self.random["random/cpu"])
        if engine.world.device.type == "cuda" and "random/cuda" in self.random:
            torch.cuda.set_rng_state(self.random["random/cuda"], engine.world.device)

    def told(self, damaged: Sequence[str]) -> Loaded:
        body = self.body
        samples = body["microbatches"] * body["run"]["microbatch"]
        return Loaded(self.path, body["updates"], samples, (*damaged, *self.notes), self.extra)


def _whole(kept: Mapping[str, list[Any]], here: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The shapes in a checkpoint of a layer as they were before it was pruned: those of this engine where they have as
    many entries."""
    pruned = {name.removeprefix(INDEX): shape[1:] for name, shape in kept.items() if name.startswith(INDEX)}
    tensors = {}
    for name, shape in kept.items():
        places, entries = pruned.get(name.partition("/")[2], (None, None))
        own_shape = here.get(name, shape)
        compressed = shape[1:] == [places] and math.prod(own_shape[1:]) == entries
        if not name.startswith(INDEX):
            tensors[name] = [shape[0], *own_shape[1:]] if compressed else shape
    return tensors


def ticket(path: Path) -> tuple[Indices, dict[Key, int]]:
    """The ticket that a checkpoint holds, of the whole model, and how many entries each of its weights has.

    Raises InvalidRequest where there is no whole checkpoint, or none of a pruned network."""
    if not storage.is_step(path):
        standing = storage.standing(path)
        if not standing:
            raise InvalidRequest(
                f"no checkpoint in {path}", rule="a folder that save was given, or one checkpoint in it"
            )
        path = storage.path_of(path, standing[-1])
    indices: Indices = {}
    entries: dict[Key, int] = {}
    try:
        body = storage.manifest(path)
        for number, shapes in body["layers"].items():
            names = [name for name in shapes if name.startswith(INDEX)]
            file = layer_file(int(number))
            masks = format_of().load(storage.fetch(path, file, body["files"][file])) if names else {}
            for name in names:
                key = int(number), name.removeprefix(INDEX)
                indices[key], entries[key] = masks[name], shapes[name][-1]
    except storage.Damaged as error:
        raise InvalidRequest(str(error), rule="a whole checkpoint, as save leaves it") from error
    if not indices:
        raise InvalidRequest(
            f"{path.name} is of a network that is not pruned", rule="a ticket is in a checkpoint after it"
        )
    return indices, entries
