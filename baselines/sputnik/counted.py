"""Decides how live bytes are counted where sparse tensors pass: theirs are those of the values that come out of them.

torch's sparse tensors have no storage to know them by. Those that enter a product here are made around values and
indices that are counted already; what is new is dense, or the values of a sampled product once they are taken out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from suite.engine.live import LiveBytes


class SparseBytes(LiveBytes):  # type: ignore[no-untyped-call]
    """LiveBytes among sparse tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        if all(map(_stored, given)) and "sparse" not in func.name():
            return super().__torch_dispatch__(func, types, args, kwargs)
        result = func(*args, **(kwargs or {}))
        known = {tensor.untyped_storage()._cdata for tensor in given if _stored(tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and _stored(tensor) and tensor.untyped_storage()._cdata not in known:
                self._count(tensor)
        return result


def _stored(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided
