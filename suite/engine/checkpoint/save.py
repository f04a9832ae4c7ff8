"""Save a checkpoint at a drain; suite.engine.checkpoint.restore loads it.

Kept are full-precision weights and moments by the layer's number in the whole model and the weight's name (so another
split reads what it needs), frozen weights, buffers and torch's default generators of every rank, loss scale, counts.
The position is the number of microbatches over all replicas: with the run's seed it selects all that layers draw, and
the data, on any grid. Half-precision copies are not kept: they follow from the full weights when those are loaded. Of
pruned weights a checkpoint holds what their ticket keeps, and the ticket.

Replica 0 writes a file per layer, and each rank one file: all ranks must see the same folder. If one rank cannot
write or read its part, all ranks raise. The format is safetensors' (nothing is unpickled);
suite.engine.checkpoint.storage keeps files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from suite.core.errors import InvalidRequest, MissingDependency, Unsupported
from suite.core.values import Json
from suite.engine.checkpoint import run_fingerprint, storage
from suite.engine.collective_guard import Together
from suite.engine.prune import numbered

if TYPE_CHECKING:
    from suite.engine.engine import Engine

SCHEMA = 1
SEARCH = "search/"  # what a method that looks for a ticket remembers of earlier batches
INDEX = "index/"  # kept indices of a pruned weight, stored with its compressed states
Tensors = dict[str, torch.Tensor]


# -- saving ----------------------------------------------------------------------------------------------------------


def save(engine: Engine, folder: Path, *, keep: int | None = None, extra: Mapping[str, Json] | None = None) -> Path:
    """Writes `folder`/step-000042, 42 being the updates, whole or not at all; every rank calls it, between batches.

    Args:
        keep: How many checkpoints stay, the newest; None: all.
        extra: Plain data of this rank, which `load` gives back Raises InvalidRequest within a batch or for keep below
            1, OSError where a disk does not take it (RankError elsewhere).
    """
    together = Together(engine)
    first = engine.rank == 0
    place = storage.place_of(folder, engine.updates)
    try:
        with together.step(f"{place} is begun"):
            storage.check_keep(keep)
            _check_extra(extra)
            check_drained(engine)
            _check_versions(engine)
            if first:
                storage.begin(place)
        with together.step(f"{place} is written"):
            part = json.dumps({**_write(engine, place), "extra": dict(extra or {})})
            (place / f"{engine.rank}.json").write_text(part)
        with together.step(f"{place} is finished"):
            if first:
                storage.finish(place, _body(engine, place), keep)
    except Exception:
        if first:
            shutil.rmtree(place, ignore_errors=True)
        raise
    return storage.named(place)


def _check_extra(extra: Mapping[str, Json] | None) -> None:
    """Raises InvalidRequest for anything but plain data by name."""
    try:
        json.dumps(dict(extra or {}))
    except (TypeError, ValueError) as error:
        rule = "plain data by name: text, numbers, true, false, None, lists and mappings"
        raise InvalidRequest(f"extra={extra!r}: {error}", rule=rule, legal='extra={"epoch": 3}') from error


def check_drained(engine: Engine) -> None:
    if not engine.drained:
        raise InvalidRequest(
            "a checkpoint within a batch, or after one that was broken off",
            rule="checkpoints are taken and loaded between batches",
            legal="a new engine that loads the last one",
        )


def _check_versions(engine: Engine) -> None:
    """Where the versions join that an asynchronous policy keeps over a drain: their tensors beside the newest's."""
    if (live := engine.store.live()) != (0,):
        raise Unsupported(f"weight versions {live} before the newest", rule="a checkpoint keeps the newest weights")


def states_of(engine: Engine, layer: nn.Module) -> Tensors:
    """A layer's full-precision weights and their moments, live, by state and name."""
    tensors: Tensors = {}
    for name, parameter in layer.named_parameters():
        trained = id(parameter) in engine.state.flat.at
        states = engine.state.export(parameter) if trained else {"weight": parameter.data}
        tensors |= {f"{state}/{name}": tensor for state, tensor in states.items()}
    return tensors


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[Any]]:
    return {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in tensors.items()}


def shapes_of(engine: Engine, layer: nn.Module) -> dict[str, list[Any]]:
    """The type and shape of all that a checkpoint keeps of a layer; of an index also how many entries it is into."""
    shapes = _shapes(states_of(engine, layer)) | _shapes({f"buffer/{name}": b for name, b in layer.named_buffers()})
    for name, shape in shapes.items():
        if name.startswith(INDEX):
            shape.append(layer.get_parameter(name.removeprefix(INDEX)).numel())
    return shapes


def _write(engine: Engine, place: Path) -> dict[str, Any]:
    """This rank's files, and their content."""
    files: dict[str, storage.Written] = {}
    tensors: Tensors = {"random/cpu": torch.default_generator.get_state()}
    if engine.world.device.type == "cuda":
        tensors["random/cuda"] = torch.cuda.get_rng_state(engine.world.device)
    if engine.pruned is None and engine.pruning is not None:
        tensors |= {f"{SEARCH}{name}": mask for name, mask in engine.pruning.remembered().items()}
    for number, layer in numbered(engine):
        tensors |= {f"buffer/{number}/{name}": buffer for name, buffer in layer.named_buffers()}
        if engine.place.replica == 0:
            name = layer_file(number)
            files[name] = storage.put(place / name, _packed(states_of(engine, layer)))
    name = rank_file(engine.place.stage, engine.place.replica)
    files[name] = storage.put(place / name, _packed(tensors))
    return {"files": files, "layers": {str(number): shapes_of(engine, layer) for number, layer in numbered(engine)}}


def layer_file(number: int) -> str:
    return f"layer-{number:05d}.safetensors"


def rank_file(stage: int, replica: int) -> str:
    return f"stage-{stage:05d}-replica-{replica:05d}.safetensors"


def _body(engine: Engine, place: Path) -> storage.Manifest:
    """The manifest, of all ranks' parts."""
    parts = []
    for rank in range(engine.grid.size):
        path = place / f"{rank}.json"
        if not path.exists():
            raise InvalidRequest(f"rank 0 sees no file of rank {rank} in {place}", rule="a folder that all ranks share")
        parts.append(json.loads(path.read_text()))
        path.unlink()
    return {
        "schema": SCHEMA,
        "run": run_fingerprint.of(engine),
        "split": [[stage.start, stage.stop] for stage in engine.split],
        "replicas": engine.grid.data,
        "updates": engine.updates,
        "steps": engine.state.rule.updates,  # less than the updates by those that overflowed
        "skipped": engine.update.skipped,
        "pruned": engine.pruned,
        "microbatches": engine.microbatches * engine.grid.data,
        "evaluated": engine.evaluated,
        "loss_scale": engine.scaler.state() if engine.scaler else None,
        "layers": {number: shapes for part in parts for number, shapes in part["layers"].items()},
        "files": {name: checksum for part in parts for name, checksum in part["files"].items()},
        "extra": [part["extra"] for part in parts],
    }


def _packed(tensors: Mapping[str, torch.Tensor]) -> bytes:
    return bytes(format_of().save({name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}))


def format_of() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise MissingDependency("safetensors", "pip install safetensors to save and load checkpoints") from error
    return safetensors.torch
