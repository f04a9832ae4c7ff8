"""Memory tracker for a CPU: bytes of live tensors, counted at allocation.

Inside the context every tensor that torch makes is counted once, by its storage, until the storage dies.
Resident-set size would count allocator caches and libraries. Memory inside fused kernels is not counted. On CUDA
`torch.cuda.max_memory_allocated` is the measure."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """`live` and `peak` bytes allocated since the context began; `phase` names what they are at the peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.phase = self.peak_phase = "activations"
        self.known: dict[int, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would import its compiler into every rank to exclude it from the count: 1.7 s of a core, although
        nothing is compiled here.
        """
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        inputs = {_key(tensor) for tensor in _stored((args, kwargs))}
        for tensor in _stored(output):
            # an output that lives in an input's storage is a view or an in-place result, not an allocation
            if _key(tensor) not in inputs:
                self._count(tensor)
        return output

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.known:
            return
        size = storage.nbytes()
        self.known[key] = size
        self.live += size
        if self.live > self.peak:
            self.peak, self.peak_phase = self.live, self.phase
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.live -= self.known.pop(key, 0)


def _stored(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among `values` that have a storage of their own. A sparse one has none: its parts are counted where
    they are made or taken out."""
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            yield leaf


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
