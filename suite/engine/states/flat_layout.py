"""Flat order of a stage's weights: kept entries of pruned weights first, then all other weights.

All indexed entries are consecutive, and any slice of the order has its indexed part first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.engine.states.offload import HostOffloader
from suite.memory.layout import Layout, ModelStateSpec

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


def make_layout(
    factory: LayoutFactory, flat: FlatLayout, moments: Sequence[str], dtype: torch.dtype, half: torch.dtype | None
) -> Layout:
    """The memory layout of weights in flat order. Raises InvalidRequest for pruned weights in a layout that keeps every
    entry."""
    half_name = str(half).removeprefix("torch.") if half else None
    pruned = {"kept": flat.indexed, "of": flat.pruned_numel} if flat.pruned_numel else {}
    name = str(dtype).removeprefix("torch.")
    return factory(entries=flat.numel, moments=tuple(moments), dtype=name, half=half_name, **pruned)


def expansion_buffer(layout: Layout, flat: FlatLayout) -> ModelStateSpec | None:
    """The state from which an optimizer step expands pruned weights; None for unpruned weights."""
    names = {state.name for state in layout}
    return layout["half_copy" if "half" in names else "master_copy"] if flat.indexed else None


def make_offloader(
    layout: Layout, flat: FlatLayout, bucket_numel: int | None, device: torch.device
) -> HostOffloader | None:
    """The offloader of states between host and device; None if all states are on the device.

    Raises InvalidRequest for a layout that fetches or expands other amounts than a bucket."""
    bucket_numel = min(bucket_numel or flat.entries, flat.entries)
    expansion = expansion_buffer(layout, flat)
    if expansion is not None and expansion.entries < (needed := min(bucket_numel, flat.indexed)):
        raise InvalidRequest(
            f"optimizer steps of {needed} entries with a layout that expands {expansion.entries} entries at a time",
            rule="a step expands all entries of its bucket at once",
            legal="memory=partial(compressed, bucket=bucket_numel)",
        )
    fetched = [state for state in layout if state.life == "bucket" and state is not expansion]
    return HostOffloader(fetched, bucket_numel, device) if fetched else None
