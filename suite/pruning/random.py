"""Random pruning: a mask that ignores the weights.

Other methods are compared with random pruning. The random numbers depend on the seed of the run, the layer number in
the whole model and the name of the weight, so every grid draws the same mask.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from suite.core.protocols import MaskMethod
from suite.pruning.mask import Indices, Key, View, kept_count


@dataclass(frozen=True)
class RandomMask(MaskMethod):
    """Keep random entries of each weight. The mask is drawn before the first batch.

    Attributes:
        draws_on: Device that draws it: the CPU, or a GPU, which is quicker and draws other numbers.
    """

    draws_on: str = "cpu"

    def draws_after(self, batches: int) -> bool:
        return batches == 0

    def draw(self, view: View) -> Indices:
        """The mask. Raises InvalidRequest if a weight would keep no entry."""
        indices: Indices = {}
        for key in view.keys:
            weight = view.weight(key)
            keep = kept_count(key, weight.numel(), view.sparsity)
            chance = torch.Generator(self.draws_on).manual_seed(seed_of(view.seed, key))
            order = torch.randperm(weight.numel(), generator=chance, dtype=torch.int32, device=self.draws_on)
            chosen = order[:keep].sort().values
            indices[key] = chosen.to(weight.device)
        return indices


def seed_of(run: int, key: Key) -> int:
    """Seed of 32 well mixed bits, as torch's CPU generator uses only 32 bits of a seed."""
    return int.from_bytes(hashlib.blake2b(f"{run}/{key[0]}/{key[1]}".encode(), digest_size=4).digest(), "big")
