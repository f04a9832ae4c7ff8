"""Mask of a stage from a checkpoint or a file, checked against the model and the requested sparsity.

A mask can be used on other grids and by other systems than the run that drew it. Every stage derives the kind and the
sparsity of the mask from the whole file, so all stages decide alike.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from suite.core.errors import InvalidRequest
from suite.core.protocols import MaskMethod
from suite.pruning.mask import Indices, Key, View, density, describe_weight, load


@dataclass(frozen=True)
class Saved(MaskMethod):
    """The mask in a checkpoint, or in a file that suite.pruning.mask.save wrote. Every rank can read `path`.

    A mask of channels has entries for batch norms and their convolutions only. Any other mask has an entry for every
    prunable weight.
    """

    path: str

    def draws_after(self, batches: int) -> bool:
        return batches == 0

    def draw(self, view: View) -> Indices:
        """The mask of this stage. Raises InvalidRequest for a file without a mask and for another model or sparsity."""
        indices, entries = load(Path(self.path))
        numbers = [number for number, _ in view.layers]
        beyond = max(numbers, default=-1) + 1 if view.stage == view.stages - 1 else sys.maxsize
        own = {key for key in indices if key[0] in numbers or key[0] >= beyond}
        scales = channels(indices)
        expected = sorted(own if scales else own.union(view.keys))
        sizes = {(n, name): weight.numel() for n, layer in view.layers for name, weight in layer.named_parameters()}
        for key in expected:
            if entries.get(key) != sizes.get(key):
                saved, ours = (f"{of[key]} entries" if key in of else "none" for of in (entries, sizes))
                what = f"{self.path} has {saved} of {describe_weight(key)}, and this model has {ours}"
                raise InvalidRequest(what, rule="a mask of this model")
        check_share(self.path, {key: indices[key] for key in scales} or indices, entries, view.sparsity)
        return {key: indices[key].to(view.weight(key).device) for key in expected}


def channels(indices: Mapping[Key, torch.Tensor]) -> list[Key]:
    """The scales of batch norms in a mask of channels; empty for any other mask.

    A mask of channels has, for each scale, a shift with the same indices and one convolution. It has no other entries.
    """

    def shift(key: Key) -> Key:
        return key[0], key[1].removesuffix("weight") + "bias"

    channel_keys = [key for key in indices if key[1].endswith("weight") and shift(key) in indices]
    channel_keys = [key for key in channel_keys if torch.equal(indices[key], indices[shift(key)])]
    return channel_keys if len(indices) == 3 * len(channel_keys) else []


def check_share(source: str, indices: Mapping[Key, torch.Tensor], entries: Mapping[Key, int], sparsity: float) -> None:
    """Raise InvalidRequest for a mask with another sparsity than requested.

    The tolerance is one entry per weight. Rounding changes half an entry per weight if each weight keeps its share, and
    half an entry in total for a global threshold. A tied weight is stored twice in the file but drawn once.
    """
    over = sum(index.numel() - (1 - sparsity) * entries[key] for key, index in indices.items())
    twice = [0.0]
    if abs(over) > len(indices):
        tied_keys = [key for key in indices if _tied(key, indices, entries)]
        twice += [indices[key].numel() - (1 - sparsity) * entries[key] for key in tied_keys]
    if min(abs(over - one) for one in twice) > len(indices):
        share = 1 - density(indices, entries)
        what = f"{source} holds a mask of sparsity {share:.12g}, requested is sparsity={sparsity}"
        raise InvalidRequest(what, rule="a mask of the requested sparsity", legal=f"sparsity={share:.12g}")


def _tied(key: Key, indices: Mapping[Key, torch.Tensor], entries: Mapping[Key, int]) -> bool:
    """Whether an earlier layer has a weight of the same size with the same kept indices."""
    return any(
        other[0] < key[0] and entries[other] == entries[key] and torch.equal(indices[other], indices[key])
        for other in indices
    )
