"""Compress a tensor to the kept weights, and expand it again (SAMO III-B, III-C).

Indices stay 32 bits wide all the way: what a kernel widens inside itself is bounded by expanding in pieces.
"""

from __future__ import annotations

import torch

# entries of a piece: 1 MiB of 64-bit indices on a CPU, 128 MiB on a GPU, where calls cost more
_PIECE = {"cpu": 1 << 17, "cuda": 1 << 24}


@torch.no_grad()
def compress(dense: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The entries of `dense`, in its flat view, at the places `index`: [kept], a new tensor on `dense`'s device."""
    return torch.index_select(dense.reshape(-1), 0, index.to(dense.device))


@torch.no_grad()
def expand(values: torch.Tensor, index: torch.Tensor, dense: torch.Tensor) -> None:
    """Writes `values` [kept] to the places `index` of contiguous `dense`; what lies elsewhere stays as it is."""
    flat = dense.view(-1)
    piece = _PIECE.get(dense.device.type, _PIECE["cuda"])
    for some, places in zip(values.split(piece), index.split(piece), strict=True):
        flat.index_put_((places,), some)


@torch.no_grad()
def mask(dense: torch.Tensor, index: torch.Tensor) -> None:
    """Sets `dense` to zero at all places but `index`."""
    values = compress(dense, index)
    dense.zero_()
    expand(values, index, dense)
