"""Compress a tensor to its kept entries, and expand it again (SAMO III-B, III-C).

Indices stay 32 bits wide. Kernels that widen them internally work on pieces, which bounds their memory.
"""

from __future__ import annotations

import torch

from suite import accelerator

# entries of a piece: 1 MiB of 64-bit indices on a CPU, 128 MiB on a GPU, where calls cost more
_HOST_PIECE, _DEVICE_PIECE = 1 << 17, 1 << 24


@torch.no_grad()
def compress(dense: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Entries of the flat view of `dense` at `index`: a new tensor of shape (kept,) on the device of `dense`."""
    return torch.index_select(dense.reshape(-1), 0, index.to(dense.device))


@torch.no_grad()
def expand(values: torch.Tensor, index: torch.Tensor, dense: torch.Tensor) -> None:
    """Write `values` of shape (kept,) to the flat view of contiguous `dense` at `index`; other entries stay."""
    flat = dense.view(-1)
    size = _HOST_PIECE if accelerator.on_host(dense.device) else _DEVICE_PIECE
    for value_piece, index_piece in zip(values.split(size), index.split(size), strict=True):
        flat.index_put_((index_piece,), value_piece)


@torch.no_grad()
def mask(dense: torch.Tensor, index: torch.Tensor) -> None:
    """Set all entries of `dense` except those at `index` to zero."""
    values = compress(dense, index)
    dense.zero_()
    expand(values, index, dense)
