"""Order of a stage's weights in its flat states: the kept entries of pruned weights first, then all other weights.

So whatever is indexed stands together, and any piece of the order has its indexed part first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.engine.states.offload import Shuttle
from suite.memory.layout import Layout, ModelStateSpec

LayoutOf = Callable[..., Layout]


class Order:
    """The flat order.

    Attributes:
        kept: The places that stay of pruned weights, by their ids.
        order: The weights in it.
        at: Where each lies, by its id.
        entries: Of all.
        indexed: Of those that are pruned.
        of: Entries of the pruned weights before.
        whole: Entries of all weights.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], kept: Mapping[int, torch.Tensor]) -> None:
        pruned = [parameter for parameter in parameters if id(parameter) in kept]
        self.kept = {id(parameter): kept[id(parameter)] for parameter in pruned}
        self.order = [*pruned, *(parameter for parameter in parameters if id(parameter) not in kept)]
        self.at: dict[int, slice] = {}
        self.entries = 0
        for parameter in self.order:
            start, self.entries = self.entries, self.entries + self.kept.get(id(parameter), parameter).numel()
            self.at[id(parameter)] = slice(start, self.entries)
        self.indexed = sum(places.numel() for places in self.kept.values())
        self.of = sum(parameter.numel() for parameter in pruned)
        self.whole = sum(parameter.numel() for parameter in parameters)

    def pieces(self, at: slice) -> Iterator[tuple[nn.Parameter, slice, slice]]:
        """The weights that a piece of the order covers, of each which of its kept entries, and where in the piece
        those lie."""
        for parameter in self.order:
            offset = self.at[id(parameter)]
            first, last = max(offset.start, at.start), min(offset.stop, at.stop)
            if first < last:
                yield (
                    parameter,
                    slice(first - offset.start, last - offset.start),
                    slice(first - at.start, last - at.start),
                )


def layout_of(
    layout: LayoutOf, order: Order, moments: Sequence[str], dtype: torch.dtype, half: torch.dtype | None
) -> Layout:
    """The layout of weights in that order. Raises InvalidRequest for a layout that keeps every entry where weights
    are pruned.
    """
    copies = str(half).removeprefix("torch.") if half else None
    of = {"kept": order.indexed, "of": order.of} if order.of else {}
    name = str(dtype).removeprefix("torch.")
    return layout(entries=order.whole, moments=tuple(moments), dtype=name, half=copies, **of)


def copied(layout: Layout, order: Order) -> ModelStateSpec | None:
    """The state that a step expands from, where weights are pruned."""
    names = {state.name for state in layout}
    return layout["half_copy" if "half" in names else "master_copy"] if order.indexed else None


def check_buckets(layout: Layout, order: Order, bucket: int | None, device: torch.device) -> Shuttle | None:
    """The offloader of states to the host, None where all are on the device. Raises InvalidRequest where a
    layout does not fetch, or expand, what a step takes at a time.
    """
    bucket = min(bucket or order.entries, order.entries)
    copy = copied(layout, order)
    if copy is not None and copy.entries < (needed := min(bucket, order.indexed)):
        raise InvalidRequest(
            f"steps of {needed} entries in a layout that expands {copy.entries} at a time",
            rule="a step expands what it has stepped",
            legal="memory=partial(compressed, bucket=bucket)",
        )
    fetched = [state for state in layout if state.life == "bucket" and state is not copy]
    return Shuttle(fetched, bucket, device) if fetched else None
