"""Memory tracker for a CPU: bytes of live tensors, counted at allocation.

Inside the context every tensor that torch makes is counted once, by its storage, until the storage dies. Memory inside
fused kernels is not counted. The resident-set size would include allocator caches and libraries. On CUDA
`suite.accelerator.peaks` takes the place of this tracker.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Lock
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_LOCK = Lock()
_TRACKERS: set[MemoryTracker] = set()  # of ranks that are threads too: they share the compiler's stance
_EAGER = ExitStack()


class MemoryTracker(TorchDispatchMode):
    """Counts the bytes allocated since the context began.

    Attributes:
        live, peak: Bytes now, and at most.
        phase, peak_phase: Kind of the bytes now, and at the peak: activations or scratch.
        sizes: Bytes of each live storage, by its address.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.phase = self.peak_phase = "activations"
        self.sizes: dict[int, int] = {}

    def __enter__(self) -> Self:
        with _LOCK:
            _TRACKERS.add(self)
            if "torch._dynamo" in sys.modules:  # kernels of the compiler allocate past the tracker: layers run eagerly
                _EAGER.enter_context(torch.compiler.set_stance("force_eager"))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        with _LOCK:
            _TRACKERS.remove(self)
            if not _TRACKERS:  # each tracker restores what it found, so that all leave in the reverse order
                _EAGER.close()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, because torch would import its compiler into every rank to exclude it from the count: 1.7 s of a
        core, although nothing is compiled here.
        """
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        input_storages = {_storage_key(tensor) for tensor in _strided_tensors((args, kwargs))}
        for tensor in _strided_tensors(output):
            # an output in an input's storage is a view or an in-place result, not an allocation
            if _storage_key(tensor) not in input_storages:
                self._count(tensor)
        return output

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.sizes:
            return
        size = storage.nbytes()
        self.sizes[key] = size
        self.live += size
        if self.live > self.peak:
            self.peak, self.peak_phase = self.live, self.phase
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.live -= self.sizes.pop(key, 0)


def _strided_tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among `values` that have a storage. A sparse tensor has none: its parts are counted instead."""
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            yield leaf


def _storage_key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
