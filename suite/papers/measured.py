"""Counters for small runs of the engine: flops of a batch, reduced bytes, reachable tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from suite.core.members import attributes
from suite.core.protocols import Group, Handle


class Flops(TorchDispatchMode):
    """Dispatch mode that sums the flops of matrix products by torch's own formulas."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, as in MemoryTracker: nothing is compiled, and torch's compiler is not imported."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=output)
        return output


class ReducedBytes:
    """Group that counts the bytes passed to its all-reduces."""

    def __init__(self, group: Group) -> None:
        self.group, self.ranks, self.bytes = group, group.ranks, 0

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Handle:
        if op == "sum":  # the flags of weights without a gradient are a maximum
            self.bytes += tensor.numel() * tensor.element_size()
        return self.group.all_reduce(tensor, op)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Handle:
        return self.group.broadcast(tensor, root)


def tensors_of(item: Any, *, gradients: bool = False, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Yield every tensor reachable from `item` once, through containers and objects of the suite only.

    Args:
        item: Tensor, list, tuple, dictionary or object of the suite.
        gradients: Yield the gradient of a tensor after it.
        seen: Ids of objects to skip. The ids of all visited objects are added.
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
    members: Iterable[Any] = ()
    if isinstance(item, dict):
        members = item.values()
    elif isinstance(item, list | tuple):
        members = item
    elif type(item).__module__.startswith("suite."):
        members = attributes(item).values()
    for member in members:
        yield from tensors_of(member, gradients=gradients, seen=seen)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one torch thread in the context, so that neither results nor times depend on the core count."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
