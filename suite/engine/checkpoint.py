"""Decides what a checkpoint keeps, that it is taken at a drain, and that a load takes all of it or nothing.

Kept are full-precision weights and moments by the layer's number in the whole model and the weight's name (so another
split reads what it needs), frozen weights, buffers and torch's default generators of every rank, loss scale, counts.
The position is the number of microbatches over all replicas: with the run's seed it selects all that layers draw, and
the data, on any grid. Half-precision copies are not kept: they follow from the full weights when those are loaded.

A file per layer, written by replica 0, and one per rank: the folder is one that all ranks see. What one rank cannot
write or read, no rank goes on from. The format is safetensors' (nothing is unpickled); suite.engine.shelf keeps files.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from suite.core.errors import MissingDependency, RankError, Refused, Unsupported
from suite.engine import identity, shelf

if TYPE_CHECKING:
    from suite.engine.train import Engine

SCHEMA = 1
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Loaded:
    """What a load took. updates: batches that were trained, those that overflowed too; samples: of data they used

    notes: newer checkpoints that are damaged, by name, and what another grid does not get as it was
    extra: what this rank gave when it saved; rank 0's on another grid
    """

    path: Path
    updates: int
    samples: int
    notes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


class _Together:
    """All ranks go on, or none."""

    def __init__(self, engine: Engine) -> None:
        self.world, self.size, self.progress = engine.world, engine.grid.size, engine.transport.progress

    def largest(self, number: int) -> int:
        return number if self.size == 1 else int(self.world.largest(float(number), self.progress))

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Inside, an error of one rank is every rank's."""
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        worst = self.largest(0 if error is None else 2 * self.world.rank + 1 + isinstance(error, Refused))
        if error is not None:
            raise error
        if worst:
            kind = RankError if worst % 2 else Refused
            raise kind(f"{what}: rank {(worst - 1) // 2} cannot, and says why")


# -- saving ----------------------------------------------------------------------------------------------------------


def save(engine: Engine, folder: Path, *, keep: int | None = None, extra: Mapping[str, Any] | None = None) -> Path:
    """Writes `folder`/step-000042, 42 being the updates, whole or not at all; every rank calls it, between batches.

    keep: how many checkpoints stay, the newest; None: all. extra: plain data of this rank, which `load` gives back
    Raises Refused within a batch or for keep below 1, OSError where a disk does not take it (RankError elsewhere).
    """
    together = _Together(engine)
    first = engine.rank == 0
    place = shelf.place_of(folder, engine.updates)
    try:
        with together.step(f"{place} is begun"):
            shelf.check_keep(keep)
            _check_drained(engine)
            _check_versions(engine)
            if first:
                shelf.begin(place)
        with together.step(f"{place} is written"):
            part = json.dumps({**_write(engine, place), "extra": dict(extra or {})})
            (place / f"{engine.rank}.json").write_text(part)
        with together.step(f"{place} is finished"):
            if first:
                shelf.finish(place, _body(engine, place), keep)
    except Exception:
        if first:
            shutil.rmtree(place, ignore_errors=True)
        raise
    return shelf.named(place)


def _check_drained(engine: Engine) -> None:
    if not engine.drained:
        raise Refused(
            "a checkpoint within a batch, or after one that was broken off",
            rule="checkpoints are taken and loaded between batches",
            legal="a new engine that loads the last one",
        )


def _check_versions(engine: Engine) -> None:
    """Where the versions join that an asynchronous policy keeps over a drain: their tensors beside the newest's."""
    if (live := engine.store.live()) != (0,):
        raise Unsupported(f"weight versions {live} before the newest", rule="a checkpoint keeps the newest weights")


def _layers(engine: Engine) -> Iterator[tuple[int, nn.Module]]:
    yield from zip(engine.split[engine.place.stage], engine.stage.layers, strict=True)


def _states(engine: Engine, layer: nn.Module) -> Tensors:
    """A layer's full-precision weights and their moments, live, by state and name."""
    found: Tensors = {}
    for name, parameter in layer.named_parameters():
        trained = id(parameter) in engine.state.at
        states = engine.state.export(parameter) if trained else {"weight": parameter.data}
        found |= {f"{state}/{name}": tensor for state, tensor in states.items()}
    return found


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[Any]]:
    return {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in tensors.items()}


def _shapes_of(engine: Engine, layer: nn.Module) -> dict[str, list[Any]]:
    """The type and shape of all that a checkpoint keeps of a layer."""
    return _shapes(_states(engine, layer)) | _shapes({f"buffer/{name}": b for name, b in layer.named_buffers()})


def _write(engine: Engine, place: Path) -> dict[str, Any]:
    """This rank's files, and what they hold."""
    files: dict[str, Any] = {}
    own: Tensors = {"random/cpu": torch.default_generator.get_state()}
    if engine.world.device.type == "cuda":
        own["random/cuda"] = torch.cuda.get_rng_state(engine.world.device)
    for number, layer in _layers(engine):
        own |= {f"buffer/{number}/{name}": buffer for name, buffer in layer.named_buffers()}
        if engine.place.replica == 0:
            name = _layer_file(number)
            files[name] = shelf.put(place / name, _packed(_states(engine, layer)))
    name = _rank_file(engine.place.stage, engine.place.replica)
    files[name] = shelf.put(place / name, _packed(own))
    return {"files": files, "layers": {str(number): _shapes_of(engine, layer) for number, layer in _layers(engine)}}


def _layer_file(number: int) -> str:
    return f"layer-{number:05d}.safetensors"


def _rank_file(stage: int, replica: int) -> str:
    return f"stage-{stage:05d}-replica-{replica:05d}.safetensors"


def _body(engine: Engine, place: Path) -> dict[str, Any]:
    """The manifest, of all ranks' parts."""
    parts = []
    for rank in range(engine.grid.size):
        path = place / f"{rank}.json"
        if not path.exists():
            raise Refused(f"rank 0 sees no file of rank {rank} in {place}", rule="a folder that all ranks share")
        parts.append(json.loads(path.read_text()))
        path.unlink()
    return {
        "schema": SCHEMA,
        "run": identity.of(engine),
        "split": [[stage.start, stage.stop] for stage in engine.split],
        "replicas": engine.grid.data,
        "updates": engine.updates,
        "steps": engine.state.rule.updates,  # less than the updates by those that overflowed
        "skipped": engine.update.skipped,
        "microbatches": engine.microbatches * engine.grid.data,
        "evaluated": engine.evaluated,
        "loss_scale": engine.scaler.state() if engine.scaler else None,
        "layers": {number: shapes for part in parts for number, shapes in part["layers"].items()},
        "files": {name: told for part in parts for name, told in part["files"].items()},
        "extra": [part["extra"] for part in parts],
    }


def _packed(tensors: Mapping[str, torch.Tensor]) -> bytes:
    return bytes(_format().save({name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}))


def _format() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise MissingDependency("safetensors", "pip install safetensors to save and load checkpoints") from error
    return safetensors.torch


# -- loading ---------------------------------------------------------------------------------------------------------


def load(engine: Engine, path: Path) -> Loaded:
    """Takes over the newest whole checkpoint in a folder, or the one that `path` names; every rank calls it.

    Raises Refused, on all ranks and before anything has changed, where there is none, where the one that is named is
    damaged, and where it is of another model, optimizer, precision or seed, or of microbatches that the replicas here
    do not divide. Until all is checked this rank's part is held beside the engine's, on the host.
    """
    together = _Together(engine)
    damaged: list[str] = []
    below = None
    while True:
        with together.step(f"{path} is resumed"):
            _check_drained(engine)
            orders = [] if shelf.is_step(path) else shelf.standing(path)
        at = path
        if not shelf.is_step(path):
            below = together.largest(max((order for order in orders if below is None or order < below), default=-1))
            if below < 0:
                told = f"no checkpoint in {path}" + "".join(f"; {fault}" for fault in damaged)
                raise Refused(told, rule="a whole one, as save leaves it", legal="a folder that save was given")
            at = shelf.path_of(path, below)
        fault, found = "", None
        with together.step(f"{at} is resumed"):
            try:
                found = _Found(engine, at)
            except shelf.Damaged as error:
                fault = str(error)
        if not together.largest(bool(fault)):
            break
        damaged.append(fault or f"{at.name} has a file that is damaged, as another rank says")
        if shelf.is_step(path):
            legal = f"{path.parent}, of which the newest whole one is taken"
            raise Refused(damaged[-1], rule="files have the manifest's SHA-256", legal=legal)
    assert found is not None
    found.take(engine)
    together.largest(0)  # threads share torch's default generator: nobody draws before all have set it
    return found.told(damaged)


class _Found:
    """A checkpoint that fits this engine: all that is to be copied, in memory, and where to. Changes nothing."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self.path, self.body = path, shelf.manifest(path)
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
        self.extra = body["extra"][engine.rank if same else 0]
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number, layer in _layers(engine):
            states = self._tensors(_layer_file(number))
            self.copies += [(live, states[name]) for name, live in _states(engine, layer).items()]
            for name, buffer in layer.named_buffers():
                stage = next(stage for stage, (_, stop) in enumerate(body["split"]) if number < stop)
                self.copies.append((buffer, self._of_rank(stage, replica)[f"buffer/{number}/{name}"]))

    def _of_rank(self, stage: int, replica: int) -> Tensors:
        """What one rank alone has kept."""
        name = _rank_file(stage, replica)
        self.ranks[name] = self.ranks.get(name) or self._tensors(name)
        return self.ranks[name]

    def _tensors(self, name: str) -> Tensors:
        return dict(_format().load(shelf.fetch(self.path, name, self.body["files"][name])))

    def _check_run(self, engine: Engine) -> None:
        body, name = self.body, self.path.name
        if body["schema"] != SCHEMA:
            raise Refused(f"{name} has schema {body['schema']}", rule=f"this suite reads schema {SCHEMA}")
        identity.check(name, body["run"], identity.of(engine))
        for number, layer in _layers(engine):
            kept, here = body["layers"][str(number)], _shapes_of(engine, layer)
            for key in sorted(kept.keys() | here.keys()):
                if kept.get(key) != here.get(key):
                    told = f"layer {number} of {name} has {key} {kept.get(key)}, this engine's {here.get(key)}"
                    raise Refused(told, rule=identity.RESUMES, legal=f"{key} {kept.get(key)}")
        if body["microbatches"] % engine.grid.data:
            legal = [str(n) for n in range(1, 1025) if body["microbatches"] % n == 0]
            raise Refused(
                f"{name} stands after {body['microbatches']} microbatches, on {engine.grid.data} replicas",
                rule="the replicas divide the microbatches that were trained",
                legal=f"{', '.join(legal[:8])} replicas",
            )

    @torch.no_grad()
    def take(self, engine: Engine) -> None:
        """Nothing here can be refused."""
        body = self.body
        for live, kept in self.copies:
            live.copy_(kept)
        engine.state.refresh()
        engine.state.rule.updates, engine.updates = body["steps"], body["updates"]
        engine.update.skipped, engine.evaluated = body["skipped"], body["evaluated"]
        engine.microbatches = body["microbatches"] // engine.grid.data
        if engine.scaler:
            engine.scaler.restore(body["loss_scale"])
        torch.default_generator.set_state(self.random["random/cpu"])
        if engine.world.device.type == "cuda" and "random/cuda" in self.random:
            torch.cuda.set_rng_state(self.random["random/cuda"], engine.world.device)

    def told(self, damaged: Sequence[str]) -> Loaded:
        body = self.body
        samples = body["microbatches"] * body["run"]["microbatch"]
        return Loaded(self.path, body["updates"], samples, (*damaged, *self.notes), self.extra)
