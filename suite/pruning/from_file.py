"""Mask of a stage from a file, checked against the model and the requested sparsity.

A mask can be used on other grids and by other systems than the run that drew it. Every stage derives the kind and the
sparsity of the mask from the whole file, so all stages decide alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from suite.core.errors import InvalidRequest
from suite.core.protocols import MaskMethod
from suite.pruning.mask import Indices, Key, View, check_model, density, load


@dataclass(frozen=True)
class Saved(MaskMethod):
    """The mask in the file `path`, which suite.pruning.mask.save wrote and every rank can read.

    A mask of channels has entries for batch norms and their convolutions only. Any other mask has an entry for every
    prunable weight.
    """

    path: str

    def draws_after(self, batches: int) -> bool:
        return batches == 0

    def draw(self, view: View) -> Indices:
        """The mask of this stage. Raises InvalidRequest for a file without a mask and for another model or sparsity."""
        indices, entries = load(Path(self.path))
        numbers = {number for number, _ in view.layers}
        own_indices = {key: index for key, index in indices.items() if key[0] in numbers}
        last = max(numbers, default=-1)
        if view.stage == view.stages - 1 and any(number > last for number, _ in indices):
            most = max(number for number, _ in indices)
            what = f"{self.path} prunes layer {most}, and the last layer is {last}"
            raise InvalidRequest(what, rule="a mask of this model")
        scales = channels(indices)
        expected = set(own_indices) if scales else set(own_indices) | set(view.keys)
        parameter_names = {(number, name) for number, layer in view.layers for name, _ in layer.named_parameters()}
        for number, name in sorted(expected - parameter_names):
            raise InvalidRequest(
                f"{self.path} prunes {name} of layer {number}, which has no such weight", rule="a mask of this model"
            )
        check_model(self.path, entries, {key: view.weight(key).numel() for key in sorted(expected)})
        check_share(self.path, {key: indices[key] for key in scales} or indices, entries, view.sparsity)
        return {key: own_indices[key].to(view.weight(key).device) for key in sorted(expected)}


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
