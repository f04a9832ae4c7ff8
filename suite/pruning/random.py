"""Random pruning: a mask that ignores the weights.

Against it the other methods are measured. The random numbers depend on (run seed, layer in the whole model, name),
so every grid draws the same mask."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from suite.core.protocols import MaskMethod
from suite.pruning.mask import Indices, Key, View, kept


@dataclass(frozen=True)
class RandomMask(MaskMethod):
    """As many places of each weight as `kept` says, drawn before the first batch."""

    def due(self, batches: int) -> bool:
        return batches == 0

    def draw(self, view: View) -> Indices:
        """Raises InvalidRequest where nothing of a weight would stay."""
        indices: Indices = {}
        for key in view.keys:
            weight = view.weight(key)
            keep = kept(key, weight.numel(), view.sparsity)
            chance = torch.Generator().manual_seed(seed_of(view.seed, key))
            order = torch.randperm(weight.numel(), generator=chance, dtype=torch.int32)
            chosen = order[:keep].sort().values
            indices[key] = chosen.to(weight.device)
        return indices


def seed_of(run: int, key: Key) -> int:
    """32 well mixed bits, which are all that torch's generator of the processor takes."""
    return int.from_bytes(hashlib.blake2b(f"{run}/{key[0]}/{key[1]}".encode(), digest_size=4).digest(), "big")
