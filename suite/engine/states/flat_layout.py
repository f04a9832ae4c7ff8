"""Flat order of a stage's weights: kept entries of pruned weights first, then all other weights.

All indexed entries are consecutive, and any slice of the order has its indexed part first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import nn

from suite.engine.states.offload import HostOffloader
from suite.memory.layout import Layout

LayoutFactory = Callable[..., Layout]


class FlatLayout:
    """Flat order of a stage's weights.

    Attributes:
        kept: Kept indices of each pruned weight, by the id of the weight.
        order: Weights in flat order.
        spans: Slice of each weight in the flat order, by the id of the weight.
        entries: Entries of the flat order.
        indexed: Entries of pruned weights in the flat order.
        pruned_numel: Entries of the pruned weights before pruning.
        numel: Entries of all weights before pruning.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], kept: Mapping[int, torch.Tensor]) -> None:
        pruned = [parameter for parameter in parameters if id(parameter) in kept]
        self.kept = {id(parameter): kept[id(parameter)] for parameter in pruned}
        self.order = [*pruned, *(parameter for parameter in parameters if id(parameter) not in kept)]
        self.spans: dict[int, slice] = {}
        self.entries = 0
        for parameter in self.order:
            start, self.entries = self.entries, self.entries + self.kept.get(id(parameter), parameter).numel()
            self.spans[id(parameter)] = slice(start, self.entries)
        self.indexed = sum(indices.numel() for indices in self.kept.values())
        self.pruned_numel = sum(parameter.numel() for parameter in pruned)
        self.numel = sum(parameter.numel() for parameter in parameters)

    def bucket_numel(self, wanted: int | None) -> int:
        """Entries per optimizer step: those `wanted`, at most all; all for None."""
        return min(wanted or self.entries, self.entries)

    def overlaps(self, span: slice) -> Iterator[tuple[nn.Parameter, slice, slice]]:
        """The weights that overlap `span`, each with two slices of the overlap: within the weight, and within the
        span."""
        for parameter in self.order:
            weight = self.spans[id(parameter)]
            start, stop = max(weight.start, span.start), min(weight.stop, span.stop)
            if start < stop:
                yield (
                    parameter,
                    slice(start - weight.start, stop - weight.start),
                    slice(start - span.start, stop - span.start),
                )


def plan_states(
    factory: LayoutFactory,
    flat: FlatLayout,
    moments: Sequence[str],
    dtype: torch.dtype,
    half: torch.dtype | None,
    bucket_numel: int,
    device: torch.device,
) -> tuple[Layout, HostOffloader | None]:
    """The memory layout of weights in flat order, and the offloader of its states in host memory, if it has any.

    Raises InvalidRequest for pruned weights in a layout that keeps every entry, and for a layout that fetches other
    amounts than a bucket."""
    name, half_name = (str(each).removeprefix("torch.") if each else None for each in (dtype, half))
    pruned = {"kept": flat.indexed, "of": flat.pruned_numel} if flat.pruned_numel else {}
    layout = factory(entries=flat.numel, moments=tuple(moments), dtype=name, half=half_name, **pruned)
    # a copy from which pruned weights are expanded is made in a step and never fetched
    fetched = [state for state in layout if state.life == "bucket" and not state.name.endswith("_copy")]
    return layout, HostOffloader(fetched, bucket_numel, device) if fetched else None
