"""Counting tools for small runs of the real engine: flops of a batch, bytes of reductions, tensors of an object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from suite.core.members import attributes
from suite.core.protocols import Group, Handle


class Flops(TorchDispatchMode):
    """Flops of every product that torch dispatches, by torch's own formulas."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As LiveBytes has it: nothing is compiled here, and torch's compiler stays out of the process."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=output)
        return output


class ReducedBytes:
    """A group that counts the bytes that are reduced on it."""

    def __init__(self, group: Group) -> None:
        self.group, self.ranks, self.bytes = group, group.ranks, 0

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Handle:
        self.bytes += tensor.numel() * tensor.element_size()
        return self.group.all_reduce(tensor, op)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Handle:
        return self.group.broadcast(tensor, root)


def tensors_of(item: Any, *, gradients: bool = False, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Every tensor that can be reached from `item` without leaving the suite's own objects, each once.

    Args:
        item: a tensor, a list, tuple or dictionary, or an object of the suite
        gradients: whether the gradient of a tensor follows it
        seen: ids of objects that are left out; grows with those that were reached
    """
    seen = set() if seen is None else seen
    if id(item) in seen:
        return
    seen.add(id(item))
    if isinstance(item, torch.Tensor):
        yield item
        if gradients and item.grad is not None:
            yield item.grad
        return
    attributes_of_item = attributes(item) if type(item).__module__.startswith("suite.") else {}
    parts = (
        item.values()
        if isinstance(item, dict)
        else item
        if isinstance(item, list | tuple)
        else attributes_of_item.values()
    )
    for part in parts:
        yield from tensors_of(part, gradients=gradients, seen=seen)
