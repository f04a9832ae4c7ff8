"""Magnitude pruning: keep the largest weights, per weight tensor or over the whole model.

A global threshold must be the same on every grid, although a stage holds only its own layers and the stages exchange
only sums. The bit patterns of finite |w|, read as integers, have the order of |w|. The threshold is therefore searched
bit by bit: for each bit, the stages add up their counts of larger weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.protocols import MaskMethod
from suite.pruning.mask import Indices, Key, View, check_entries, describe_weight, kept_count, on_all

SCOPES = ("global", "layer")


@dataclass(frozen=True)
class Magnitude(MaskMethod):
    """Keep the largest |weights| of the initial weights.

    Attributes:
        scope: `layer` keeps the same share of every weight. `global` keeps a share of all weights together.
    """

    scope: str = "layer"

    def __post_init__(self) -> None:
        check_scope(self.scope)

    def draws_after(self, batches: int) -> bool:
        return batches == 0

    def draw(self, view: View) -> Indices:
        """The mask. Raises InvalidRequest if a weight would keep no entry."""
        return check_kept(ranked(view, self.scope), view)


def check_scope(scope: str) -> None:
    if scope not in SCOPES:
        raise UnknownName("scope", scope, SCOPES)


def check_kept(indices: Indices, view: View) -> Indices:
    """Raise InvalidRequest if a global threshold prunes all entries of a weight."""
    for key, index in indices.items():
        if not index.numel():
            size = view.weight(key).numel()
            what = f"{describe_weight(key)} has {size} entries, all below the global threshold at {view.sparsity}"
            raise InvalidRequest(
                what,
                rule="each weight keeps at least one entry",
                legal='Magnitude(scope="layer"), or a smaller sparsity',
            )
    return indices


def ranked(view: View, scope: str) -> Indices:
    """Indices of the largest |weights| of every key; with scope `global` a weight may have none."""
    if scope == "layer":
        return on_all(view, lambda: _each(view))
    entries = int(view.total(on_all(view, lambda: _entries(view))))
    return largest(view, round((1 - view.sparsity) * entries))


def _each(view: View) -> Indices:
    indices: Indices = {}
    for key in view.keys:
        alone = replace(view, keys=(key,), total=float, stage=0, stages=1)
        indices |= largest(alone, kept_count(key, view.weight(key).numel(), view.sparsity))
    return indices


def _entries(view: View) -> int:
    """Number of entries of all keys of this stage."""
    sizes = {key: view.weight(key).numel() for key in view.keys}
    for key, size in sizes.items():
        check_entries(key, size)
    return sum(sizes.values())


def largest(view: View, keep: int) -> Indices:
    """Indices of the `keep` largest |weights| of all keys on all stages.

    Of equal weights, those with the smallest (layer, name, index) are kept. Every stage makes the same number of sums.
    """
    keys = sorted(view.keys)
    wide = view.total(any(view.weight(key).dtype == torch.float64 for key in keys)) > 0

    def bits(key: Key) -> torch.Tensor:
        size = view.weight(key).detach().reshape(-1).abs()
        return size.double().view(torch.int64) if wide else size.float().view(torch.int32)

    threshold = 0  # the largest threshold that at least `keep` entries reach
    for bit in reversed(range(63 if wide else 31)):
        tried = threshold | 1 << bit
        if view.total(sum(int((bits(key) >= tried).sum()) for key in keys)) >= keep:
            threshold = tried
    above = view.total(sum(int((bits(key) > threshold).sum()) for key in keys))
    equal = {key: int((bits(key) == threshold).sum()) for key in keys}
    on_stage = [int(view.total(sum(equal.values()) if stage == view.stage else 0)) for stage in range(view.stages)]
    spare = (
        keep - int(above) - sum(on_stage[: view.stage])
    )  # kept entries equal to the threshold that remain for this stage after earlier stages
    indices: Indices = {}
    for key in keys:
        size, count = bits(key), max(0, min(spare, equal[key]))
        stays = size > threshold
        stays[(size == threshold).nonzero().flatten()[:count]] = True
        indices[key] = stays.nonzero().flatten().to(torch.int32)
        spare -= equal[key]
    return {key: indices[key] for key in view.keys}
