"""Weights of the whole model in safetensors files, by the names of plain PyTorch: `save_model` and `load_model`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from suite.core.errors import InvalidRequest, SuiteError
from suite.core.files import write_atomically
from suite.engine.checkpoint import files
from suite.engine.checkpoint.files import Tensors
from suite.engine.torch_api import state_dicts
from suite.engine.train_state import TrainState

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # of a sharded model, in the form of Hugging Face


def save_model(state: TrainState, folder: Path, *, sharded: bool) -> Path:
    """Write the weights of the whole model to `folder`. Every rank calls it.

    Args:
        sharded: Whether each rank of the first replica writes its own file, which the folder must be shared for.
            Otherwise rank 0 gathers the model, and writes one file.

    Returns:
        The file, or the index of a sharded one.
    """
    guard, settings = state.comm.guard, state.settings
    path = folder / (INDEX if sharded else WEIGHTS)
    state.check_drained("save_model()")
    whole = {} if sharded else state_dicts.state_dict(state)
    with guard.all_or_none(f"{path} is written"):
        folder.mkdir(parents=True, exist_ok=True)
        if sharded:
            write_shard(state, folder)
        elif settings.rank == 0:
            files.write(path, whole)
    with guard.all_or_none(f"{path} is finished"):
        if sharded and settings.rank == 0:
            write_index(folder, settings.grid.inter)
    return path


def write_shard(state: TrainState, folder: Path) -> None:
    """Write the weights and buffers of this rank's layers; on the first replica only."""
    place = state.settings.place
    if place.replica == 0:
        files.write(folder / shard(place.rank, place.ranks), state_dicts.rank_tensors(state))


def shard(rank: int, ranks: int) -> str:
    """Name of the file of pipeline rank `rank`."""
    return f"model-{rank + 1:05d}-of-{ranks:05d}.safetensors"


def write_index(folder: Path, ranks: int) -> None:
    """Write the file of each name."""
    shards = [shard(rank, ranks) for rank in range(ranks)]
    files.check_shared(folder, shards)
    total = sum((folder / file).stat().st_size for file in shards)
    weight_map = {name: file for file in shards for name in files.names(folder / file)}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_atomically(folder / INDEX, json.dumps(index, indent=1).encode(), durable=True)


def load_model(state: TrainState, path: Path) -> None:
    """Load the weights of the whole model from a file or a folder of `save_model`, `save` or Hugging Face, or from a
    file of torch.save. Every rank calls it, and reads its own tensors only.

    Raises InvalidRequest on all ranks for a file that is missing or holds another model."""
    with state.comm.guard.all_or_none(f"{path} is loaded"):
        try:
            weights = _read(path, state_dicts.names_of_rank(state))
        except (SuiteError, OSError):
            raise
        except Exception as error:  # a damaged file may raise any class
            raise InvalidRequest(
                f"{path}, which holds no state dict that can be read",
                rule="a file in the safetensors format, or a state dict that torch.save has written",
                legal="torch.save(model.state_dict(), path)",
            ) from error
    state_dicts.load_state_dict(state, weights)


def _read(path: Path, wanted: set[str]) -> Tensors:
    if path.is_dir():
        path = next((path / name for name in (INDEX, WEIGHTS) if (path / name).exists()), path / WEIGHTS)
    if not path.exists():
        raise InvalidRequest(
            f"no file {path}", rule="the weights of a model", legal=f"a folder with {WEIGHTS} or {INDEX}"
        )
    if path.name.endswith(".index.json"):
        weight_map = json.loads(path.read_text())["weight_map"]
        shards = {path.parent / weight_map[name] for name in wanted if name in weight_map}
    elif path.suffix == ".safetensors":
        shards = {path}
    else:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(loaded, Mapping):
            raise TypeError(f"it holds a {type(loaded).__name__}")
        return {name: tensor for name, tensor in loaded.items() if isinstance(tensor, torch.Tensor)}
    tensors = Tensors()
    for file in sorted(shards):
        tensors |= files.read(file, wanted.__contains__)[0]
    return tensors
