"""Masks: the kept flat indices of each pruned weight, and the weights that may be pruned.

A mask has one sorted int32 tensor per weight, which indexes the weight's flat view (SAMO III-B). So a weight has fewer
than 2^31 entries.

The scope selects the weights that may be pruned. `weights` selects the matrices of linear layers and attention
projections, and the kernels of convolutions, by the types of their modules. It leaves biases, norms, embeddings (and a
matrix tied to one), parameters of other modules, and all weights of a layer with `prunable = False` (a language head)
dense. `all` selects every trained weight.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import safetensors.torch
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from suite.core.errors import InvalidRequest
from suite.core.files import write_atomically
from suite.core.units import most_sparse
from suite.core.values import format_value
from suite.pruning.validation import LARGEST, REACHED, check_pruned_scope

Key = tuple[int, str]  # (number of the layer in the whole model, name of the weight in the layer)
Indices = dict[Key, torch.Tensor]  # int32, in rising order, at least one per weight
Found = TypeVar("Found")
_MATRICES = (
    (nn.Linear | _ConvNd, ("weight",)),
    (nn.MultiheadAttention, ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")),
)
_PRUNED = {
    "weights": "a model with weights that may be pruned",
    "channels": "a model with batch norms that directly follow a convolution",
}
_WITH_MASK = "a checkpoint of a pruned network (step-000042), or a file that suite.pruning.mask.save wrote"
_SIZES = "entries"  # in a file: number of entries of each weight, which identifies the mask of another model


@dataclass(frozen=True)
class View:
    """View of the model for a pruning method: the layers of one stage, and sums over all stages.

    Attributes:
        layers: Layers of this stage, by their number in the whole model.
        weight: The current full-precision weight of a key.
        keys: The prunable weights, in order; a tied weight appears once, at the input end.
        sparsity: Share of the entries to prune.
        seed: Seed of the run.
        total: Function that adds one number per stage. It is collective: every stage calls it the same number of times.
        stage, stages: Number of this stage, and number of stages.
    """

    layers: Sequence[tuple[int, nn.Module]]
    weight: Callable[[Key], torch.Tensor]
    keys: Sequence[Key]
    sparsity: float
    seed: int
    total: Callable[[float], float]
    stage: int = 0
    stages: int = 1


def check_some(view: View, kind: str = "weights") -> None:
    """Raise InvalidRequest on every stage if no stage has weights (or channels) to prune. Every stage calls it."""
    if not view.total(len(view.keys)):
        raise InvalidRequest(f"no stage has {kind} to prune", rule=_PRUNED[kind], legal="pruning=None")


def on_all(view: View, work: Callable[[], Found]) -> Found:
    """The result of `work`, which runs on each stage without communication.

    If `work` raises InvalidRequest on one stage, every stage raises. Otherwise the others would wait forever.
    """
    error, masks = None, []
    try:
        masks.append(work())
    except InvalidRequest as caught:
        error = caught
    if view.total(error is not None):
        raise error or InvalidRequest("no mask for this stage: another stage could not draw its part and reports why")
    return masks[0]


def kept_count(key: Key, entries: int, sparsity: float) -> int:
    """Number of kept entries of a weight.

    Raises InvalidRequest if no entry would be kept, or if the weight is too large for int32 indices.
    """
    check_entries(key, entries)
    entries_kept = round((1 - sparsity) * entries)
    if not entries_kept:
        legal = f"sparsity={most_sparse(entries)}"
        raise InvalidRequest(
            f"{describe_weight(key)} of {entries} entries at sparsity {sparsity}",
            rule="each weight keeps at least one entry",
            legal=legal,
        )
    return entries_kept


def check_entries(key: Key, entries: int) -> None:
    if entries >= LARGEST:
        raise InvalidRequest(f"{describe_weight(key)} of {entries} entries", rule=REACHED)


def check_index(key: Key, index: torch.Tensor, entries: int) -> None:
    """Raise InvalidRequest unless `index` is the index of a mask for a weight with this number of entries."""
    check_entries(key, entries)
    flat = isinstance(index, torch.Tensor) and index.dtype == torch.int32 and index.dim() == 1 and index.numel() > 0
    if not flat or not bool((index[1:] > index[:-1]).all()) or int(index[0]) < 0 or int(index[-1]) >= entries:
        rule = f"a flat int32 tensor of at least one place from 0 to {entries - 1}, in rising order"
        raise InvalidRequest(f"{describe_weight(key)} with the index {format_value(index)}", rule=rule)


def describe_weight(key: Key) -> str:
    return f"weight {key[1]} of layer {key[0]}"


def prunable(layer: nn.Module, scope: str) -> Iterator[str]:
    """Names of the prunable weights in a layer, by the scope as defined in the module docstring."""
    check_pruned_scope(scope)
    if scope == "weights" and not getattr(layer, "prunable", True):
        return
    matrices, embedded = set(), set()  # by id, because a weight may have several names
    for module in layer.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                embedded.add(id(parameter))
            elif any(isinstance(module, kind) and name in names for kind, names in _MATRICES):
                matrices.add(id(parameter))
    for name, parameter in layer.named_parameters():
        if parameter.requires_grad and (scope == "all" or id(parameter) in matrices - embedded):
            yield name


def density(indices: Mapping[Key, torch.Tensor], entries: Mapping[Key, int]) -> float:
    """Kept entries of the pruned weights as a fraction of all their entries."""
    return math.fsum(index.numel() for index in indices.values()) / sum(entries[key] for key in indices)


# -- files -----------------------------------------------------------------------------------------------------------


def save(path: Path, indices: Mapping[Key, torch.Tensor], entries: Mapping[Key, int]) -> None:
    """Write a mask: one index per weight, and the number of entries of each weight.

    The file is replaced atomically, so that readers find the previous file until the new one is complete.
    """
    sizes = {_name(key): entries[key] for key in indices}
    tensors = {_name(key): index.clone() for key, index in indices.items()}  # both ends of a tie share one tensor
    write_atomically(path, safetensors.torch.save(tensors, {_SIZES: json.dumps(sizes)}), durable=True)


def file_of(stage: int) -> str:
    """Name of the file of a stage's part of the mask in a checkpoint."""
    return f"mask-{stage:05d}.safetensors"


def load(path: Path) -> tuple[Indices, dict[Key, int]]:
    """The mask in a file, or in all files of a checkpoint, and the number of entries of each weight.

    Raises InvalidRequest where there is no mask."""
    indices, entries = Indices(), dict[Key, int]()
    try:
        for part in sorted(path.glob("mask-*.safetensors")) if path.is_dir() else [path]:
            with safetensors.safe_open(part, framework="pt") as file:
                sizes = json.loads((file.metadata() or {})[_SIZES])
                entries |= {_key(name): int(size) for name, size in sizes.items()}
                indices |= {_key(name): file.get_tensor(name) for name in sizes}
    except Exception as error:
        raise InvalidRequest(f"{path} holds no mask ({error})", rule=_WITH_MASK) from error
    if not indices and path.is_dir():
        raise InvalidRequest(f"{path} holds no mask", rule=_WITH_MASK)
    for key, index in indices.items():
        check_index(key, index, entries[key])
    return indices, entries


def _name(key: Key) -> str:
    return f"{key[0]}/{key[1]}"


def _key(name: str) -> Key:
    number, _, weight = name.partition("/")
    return int(number), weight
