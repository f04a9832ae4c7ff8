"""Magnitude pruning: keep the largest weights, per weight tensor or over the whole model.

Over the whole model a threshold must be one and the same on every grid, though a stage sees its own layers and sums
over stages alone. A finite |w| orders as its bits do: the threshold is searched bit by bit, by counts over all stages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.protocols import MaskMethod
from suite.pruning.mask import Indices, Key, View, check_entries, kept, on_all, told
from suite.pruning.validation import check_sparsity

SCOPES = ("global", "layer")


@dataclass(frozen=True)
class Magnitude(MaskMethod):
    """The largest |weights| stay, as they are before the first batch.

    scope: of the threshold; `layer` keeps the same share of every weight, `global` of all of them together
    """

    scope: str = "layer"

    def __post_init__(self) -> None:
        check_scope(self.scope)

    def due(self, batches: int) -> bool:
        return batches == 0

    def draw(self, view: View) -> Indices:
        """Raises InvalidRequest where nothing of a weight would stay."""
        return check_kept(ranked(view, self.scope), view)


def check_scope(scope: str) -> None:
    if scope not in SCOPES:
        raise UnknownName("scope", scope, SCOPES)


def check_kept(indices: Indices, view: View) -> Indices:
    """Raises InvalidRequest where a global threshold is above all of a weight."""
    for key, index in indices.items():
        if not index.numel():
            what = f"{told(key)} of {view.weight(key).numel()} entries, all below the threshold at {view.sparsity}"
            raise InvalidRequest(what, rule="something stays", legal="a scope of layer, or a smaller sparsity")
    return indices


def ranked(view: View, scope: str) -> Indices:
    """The places of the largest |weights| of every key; with `global` possibly none of one."""
    if scope == "layer":
        return on_all(view, lambda: _each(view))
    entries = int(view.total(on_all(view, lambda: _entries(view))))
    keep = round((1 - check_sparsity(view.sparsity)) * entries)
    if entries and not keep:
        raise InvalidRequest(f"{entries} entries at sparsity {view.sparsity}", rule="something stays")
    return largest(view, keep)


def _each(view: View) -> Indices:
    indices: Indices = {}
    for key in view.keys:
        alone = replace(view, keys=(key,), total=float, stage=0, stages=1)
        indices |= largest(alone, kept(key, view.weight(key).numel(), view.sparsity))
    return indices


def _entries(view: View) -> int:
    """Of all keys of this stage."""
    sizes = {key: view.weight(key).numel() for key in view.keys}
    for key, size in sizes.items():
        check_entries(key, size)
    return sum(sizes.values())


def largest(view: View, keep: int) -> Indices:
    """The places of the `keep` largest |weights| of all keys on all stages; of equal ones those of the earlier (layer,
    name, place). Every stage takes as many sums as every other."""
    keys = sorted(view.keys)
    wide = view.total(any(view.weight(key).dtype == torch.float64 for key in keys)) > 0

    def bits(key: Key) -> torch.Tensor:
        size = view.weight(key).detach().reshape(-1).abs()
        return size.double().view(torch.int64) if wide else size.float().view(torch.int32)

    threshold = 0  # the largest that `keep` entries or more reach
    for bit in reversed(range(63 if wide else 31)):
        tried = threshold | 1 << bit
        if view.total(sum(int((bits(key) >= tried).sum()) for key in keys)) >= keep:
            threshold = tried
    above = view.total(sum(int((bits(key) > threshold).sum()) for key in keys))
    equal = {key: int((bits(key) == threshold).sum()) for key in keys}
    on_stage = [int(view.total(sum(equal.values()) if stage == view.stage else 0)) for stage in range(view.stages)]
    spare = keep - int(above) - sum(on_stage[: view.stage])  # of the equal ones, what earlier stages have left
    indices: Indices = {}
    for key in keys:
        size, count = bits(key), max(0, min(spare, equal[key]))
        stays = size > threshold
        stays[(size == threshold).nonzero().flatten()[:count]] = True
        indices[key] = stays.nonzero().flatten().to(torch.int32)
        spare -= equal[key]
    return {key: indices[key] for key in view.keys}
