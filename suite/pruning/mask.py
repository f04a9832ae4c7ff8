"""Masks: the kept flat indices of each pruned weight, and the weights that may be pruned.

One rising int32 tensor per weight, into the weight's flat view (SAMO III-B): no weight has 2^31 entries. The rule for
`what="weights"`: the matrices of linear layers and of attention's projections and the kernels of convolutions, known by
their modules. Biases, norms, embeddings (and a matrix that is one too), parameters of a module's own and whatever
stands in a layer that says `prunable = False` (a language head) stay dense. `what="all"`: every trained weight.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.units import most_sparse
from suite.pruning.validation import LARGEST, REACHED, check_sparsity, check_what

Key = tuple[int, str]  # the layer's number in the whole model, the weight's name in it
Indices = dict[Key, torch.Tensor]  # int32, rising, never empty
Found = TypeVar("Found")
_MATRICES = (
    (nn.Linear | _ConvNd, ("weight",)),
    (nn.MultiheadAttention, ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")),
)
_SIZES = "entries"  # in a file: how many entries each weight has, so that another model's ticket is known as one


@dataclass(frozen=True)
class View:
    """View of the model for a pruning method: one stage's layers, and sums over all stages.

    Attributes:
        layers: This stage's, with their numbers in the whole model.
        weight: The full-precision weight of a key, live.
        keys: The prunable weights, in order; a tied weight appears once, at the input end.
        sparsity: The share to take away.
        seed: The run's.
        total: The sum of one number per stage, the same everywhere; every stage calls it equally often.
        stage, stages: Which one this is.
    """

    layers: Sequence[tuple[int, nn.Module]]
    weight: Callable[[Key], torch.Tensor]
    keys: Sequence[Key]
    sparsity: float
    seed: int
    total: Callable[[float], float]
    stage: int = 0
    stages: int = 1


def check_some(view: View, what: str = "weights that may be pruned", *, legal: str = "pruning=None") -> None:
    """Raises InvalidRequest on every stage alike, where no stage has a key. Every stage calls it equally often."""
    if not view.total(len(view.keys)):
        raise InvalidRequest("nothing to prune: no stage has a key", rule=f"a model with {what}", legal=legal)


def on_all(view: View, work: Callable[[], Found]) -> Found:
    """Result of `work`, which takes no sums, on this stage. An InvalidRequest on one stage is raised on every stage,
    so that no stage waits for a sum with another.
    """
    error, masks = None, []
    try:
        masks.append(work())
    except InvalidRequest as caught:
        error = caught
    if view.total(error is not None):
        raise error or InvalidRequest("a ticket is drawn: another stage cannot, and says why")
    return masks[0]


def kept(key: Key, entries: int, sparsity: float) -> int:
    """How many of a weight's entries stay. Raises InvalidRequest where none would, or where int32 does not reach
    all."""
    check_entries(key, entries)
    entries_kept = round((1 - check_sparsity(sparsity)) * entries)
    if not entries_kept:
        legal = f"sparsity={most_sparse(entries)}"
        raise InvalidRequest(
            f"{told(key)} of {entries} entries at sparsity {sparsity}", rule="something stays", legal=legal
        )
    return entries_kept


def check_entries(key: Key, entries: int) -> None:
    if entries >= LARGEST:
        raise InvalidRequest(f"{told(key)} of {entries} entries", rule=REACHED)


def check_index(key: Key, index: torch.Tensor, entries: int) -> None:
    """Raises InvalidRequest unless `index` is a ticket's of a weight with so many entries."""
    check_entries(key, entries)
    if not isinstance(index, torch.Tensor):
        raise InvalidRequest(f"{told(key)}: an index that is a {type(index).__name__}", rule="a tensor, flat int32")
    if index.dtype != torch.int32 or index.dim() != 1:
        raise InvalidRequest(f"{told(key)}: an index of {index.dtype} and {index.dim()} dimensions", rule="flat int32")
    if not index.numel():
        raise InvalidRequest(f"{told(key)} pruned to nothing", rule="something stays", legal="one index or more")
    first, last = int(index[0]), int(index[-1])
    if index.numel() > 1 and not bool((index[1:] > index[:-1]).all()):
        raise InvalidRequest(f"{told(key)}: an index that does not rise", rule="each place once, in order")
    if first < 0 or last >= entries:
        beyond = first if first < 0 else last
        raise InvalidRequest(
            f"{told(key)}: index {beyond} of {entries} entries", rule=f"from 0 to {entries - 1}", legal=str(entries - 1)
        )


def told(key: Key) -> str:
    return f"weight {key[1]} of layer {key[0]}"


def prunable(layer: nn.Module, what: str) -> Iterator[str]:
    """The names of the weights in a layer that may be pruned, by the rule above."""
    check_what(what)
    if what == "weights" and not getattr(layer, "prunable", True):
        return
    matrices, embedded = set(), set()  # ids: a weight may have several names
    for module in layer.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                embedded.add(id(parameter))
            elif any(isinstance(module, kind) and name in names for kind, names in _MATRICES):
                matrices.add(id(parameter))
    for name, parameter in layer.named_parameters():
        if parameter.requires_grad and (what == "all" or id(parameter) in matrices - embedded):
            yield name


def density(indices: Mapping[Key, torch.Tensor], entries: Mapping[Key, int]) -> float:
    """The share of the pruned weights' entries that stays."""
    return math.fsum(index.numel() for index in indices.values()) / sum(entries[key] for key in indices)


# -- files -----------------------------------------------------------------------------------------------------------


def save(path: Path, indices: Mapping[Key, torch.Tensor], entries: Mapping[Key, int]) -> None:
    """Writes a ticket: one index per weight, and how many entries each weight has. A concurrent reader, or a reader
    after an interrupted save, finds the previous file.
    """
    sizes = {_name(key): entries[key] for key in indices}
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    tensors = {_name(key): index.clone() for key, index in indices.items()}  # the ends of a tie share one
    try:
        _format().torch.save_file(tensors, beside, {_SIZES: json.dumps(sizes)})
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def load(path: Path) -> tuple[Indices, dict[Key, int]]:
    """The ticket in a file, and how many entries each weight had. Raises InvalidRequest for a file that holds none."""
    written = "a file that suite.pruning.mask.save wrote"
    try:
        with _format().safe_open(path, framework="pt") as file:
            sizes = json.loads((file.metadata() or {})[_SIZES])
            indices = {_key(name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            entries = {_key(name): int(size) for name, size in sizes.items()}
    except MissingDependency:
        raise
    except Exception as error:
        raise InvalidRequest(f"{path} holds no ticket ({error})", rule=written) from error
    if not indices:
        raise InvalidRequest(f"{path} holds no ticket (no index)", rule=written)
    if apart := sorted(indices.keys() ^ entries.keys()):
        what = "an index and no size" if apart[0] in indices else "a size and no index"
        raise InvalidRequest(f"{path} holds no ticket ({what} of {told(apart[0])})", rule=written)
    for key, index in indices.items():
        check_index(key, index, entries[key])
    return indices, entries


def check_model(source: str, entries: Mapping[Key, int], own: Mapping[Key, int]) -> None:
    """Raises InvalidRequest unless a ticket with these `entries` is of the model (or the stage of it) with `own`."""
    for key, size in own.items():
        if key not in entries:
            raise InvalidRequest(f"{source} has no index of {told(key)}", rule="a ticket of this model")
        if entries[key] != size:
            what = f"{source}: {told(key)} has {entries[key]} entries, this model's {size}"
            raise InvalidRequest(what, rule="a ticket of this model")


def _name(key: Key) -> str:
    return f"{key[0]}/{key[1]}"


def _key(name: str) -> Key:
    number, _, weight = name.partition("/")
    return int(number), weight


def _format() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise MissingDependency("safetensors", "pip install safetensors to save and load tickets") from error
    return safetensors
