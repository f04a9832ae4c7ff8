"""Decides what a ticket is (for each pruned weight the flat places that stay) and which weights may be pruned.

One rising int32 tensor per weight, into the weight's flat view (SAMO III-B): no weight has 2^31 entries. The rule for
`what="weights"`: the matrices of linear layers and the kernels of convolutions; biases, norms, embeddings and whatever
else stands in a layer that says `prunable = False` (a language head) stay dense. `what="all"`: every trained weight.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from suite.core.errors import MissingDependency, Refused, UnknownName

Key = tuple[int, str]  # the layer's number in the whole model, the weight's name in it
Indices = dict[Key, torch.Tensor]  # int32, rising, never empty
WHAT = ("weights", "all")
LARGEST = 2**31  # entries of a weight, which int32 must reach
_SIZES = "entries"  # in a file: how many entries each weight has, so that another model's ticket is known as one


@dataclass(frozen=True)
class View:
    """What a method of pruning sees of the model: one stage's layers, and sums over all stages.

    layers: this stage's, with their numbers in the whole model; weight: the full-precision weight of a key, live
    keys: what may be pruned here, in order; a tied weight stands here once, where the input's end holds it
    sparsity: the share to take away; seed: the run's
    total: the sum of one number per stage, the same everywhere; every stage calls it equally often
    stage, stages: which one this is
    """

    layers: Sequence[tuple[int, nn.Module]]
    weight: Callable[[Key], torch.Tensor]
    keys: Sequence[Key]
    sparsity: float
    seed: int
    total: Callable[[float], float]
    stage: int = 0
    stages: int = 1


class Method(Protocol):
    """How a ticket is drawn."""

    def due(self, batches: int) -> bool:
        """Whether the weights are looked at after so many batches; 0: as they were drawn."""

    def draw(self, view: View) -> Indices | None:
        """The places that stay of every key of this stage; None to look again later, on every stage alike."""


def check_sparsity(sparsity: float) -> float:
    """Raises Refused for anything but a share from 0 to below 1."""
    number = isinstance(sparsity, int | float) and not isinstance(sparsity, bool)
    if not number or not 0 <= sparsity < 1:
        raise Refused(f"pruning.sparsity={sparsity}", rule="a share from 0 to below 1", legal="pruning.sparsity=0.9")
    return float(sparsity)


def kept(key: Key, entries: int, sparsity: float) -> int:
    """How many of a weight's entries stay. Raises Refused where none would, or where int32 does not reach all."""
    check_entries(key, entries)
    left = round((1 - check_sparsity(sparsity)) * entries)
    if not left:
        legal = f"pruning.sparsity={1 - 1 / entries:.6g}"
        raise Refused(f"{told(key)} of {entries} entries at sparsity {sparsity}", rule="something stays", legal=legal)
    return left


def check_entries(key: Key, entries: int) -> None:
    if entries >= LARGEST:
        raise Refused(f"{told(key)} of {entries} entries", rule="below 2^31, which a 32-bit index reaches (SAMO III-B)")


def check_index(key: Key, index: torch.Tensor, entries: int) -> None:
    """Raises Refused unless `index` is a ticket's of a weight with so many entries."""
    check_entries(key, entries)
    if index.dtype != torch.int32 or index.dim() != 1:
        raise Refused(f"{told(key)}: an index of {index.dtype} and {index.dim()} dimensions", rule="flat int32")
    if not index.numel():
        raise Refused(f"{told(key)} pruned to nothing", rule="something stays", legal="one index or more")
    first, last = int(index[0]), int(index[-1])
    if index.numel() > 1 and not bool((index[1:] > index[:-1]).all()):
        raise Refused(f"{told(key)}: an index that does not rise", rule="each place once, in order")
    if first < 0 or last >= entries:
        beyond = first if first < 0 else last
        raise Refused(
            f"{told(key)}: index {beyond} of {entries} entries", rule=f"from 0 to {entries - 1}", legal=str(entries - 1)
        )


def told(key: Key) -> str:
    return f"weight {key[1]} of layer {key[0]}"


def prunable(layer: nn.Module, what: str) -> Iterator[str]:
    """The names of the weights in a layer that may be pruned, by the rule above."""
    if what not in WHAT:
        raise UnknownName("pruning.what", what, WHAT)
    if what == "weights" and not getattr(layer, "prunable", True):
        return
    spared = {
        f"{path}.{name}".strip(".")
        for path, module in layer.named_modules()
        if isinstance(module, nn.Embedding)
        for name, _ in module.named_parameters(recurse=False)
    }
    for name, parameter in layer.named_parameters():
        if parameter.requires_grad and (what == "all" or (parameter.dim() > 1 and name not in spared)):
            yield name


def density(indices: Mapping[Key, torch.Tensor], entries: Mapping[Key, int]) -> float:
    """The share of the pruned weights' entries that stays."""
    return math.fsum(index.numel() for index in indices.values()) / sum(entries[key] for key in indices)


# -- files -----------------------------------------------------------------------------------------------------------


def save(path: Path, indices: Mapping[Key, torch.Tensor], entries: Mapping[Key, int]) -> None:
    """Writes a ticket: one index per weight, and how many entries each weight has."""
    sizes = {_name(key): entries[key] for key in indices}
    path.parent.mkdir(parents=True, exist_ok=True)
    _format().torch.save_file({_name(key): index for key, index in indices.items()}, path, {_SIZES: json.dumps(sizes)})


def load(path: Path) -> tuple[Indices, dict[Key, int]]:
    """The ticket in a file, and how many entries each weight had. Raises Refused for a file that holds none."""
    try:
        with _format().safe_open(path, framework="pt") as file:
            sizes = json.loads((file.metadata() or {})[_SIZES])
            indices = {_key(name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            entries = {_key(name): int(size) for name, size in sizes.items()}
    except MissingDependency:
        raise
    except Exception as error:
        raise Refused(
            f"{path} holds no ticket ({error})", rule="a file that suite.pruning.ticket.save wrote"
        ) from error
    for key, index in indices.items():
        check_index(key, index, entries[key])
    return indices, entries


def check_model(source: str, entries: Mapping[Key, int], own: Mapping[Key, int]) -> None:
    """Raises Refused unless a ticket with these `entries` is of the model (or the stage of it) with `own`."""
    for key, size in own.items():
        if key not in entries:
            raise Refused(f"{source} has no index of {told(key)}", rule="a ticket of this model")
        if entries[key] != size:
            what = f"{source}: {told(key)} has {entries[key]} entries, this model's {size}"
            raise Refused(what, rule="a ticket of this model")


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
