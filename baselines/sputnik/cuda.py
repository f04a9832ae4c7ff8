"""Sparse products on CUDA: Triton kernels after Gale et al., "Sparse GPU Kernels for Deep Learning" (2020).

Their kernels are in CUDA; these take over the partitioning of the work. One-dimensional tiling: a program computes one
row of the sparse matrix and a tile of the dense matrix's columns (SpMM), or a strip of one row's values (SDDMM). Row
swizzle: programs get rows in order of falling length, so that concurrent programs end at about the same time. Vector
loads: the dense matrices are row-major, so that a program loads neighbouring entries, 16 bytes per thread where rows
are multiples of 16 entries. Sums are in float32, and in float64 for float64.

The module is imported only where its kernels are called: it requires Triton, which requires the names of a kernel at
the top of its module.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from baselines.sputnik.structure import Side

Tensor = torch.Tensor
NAME = "Triton kernels"
VALUES = 32  # values of a row that a program loads at a time
TILES = (64, 32, 16)  # columns of the dense matrix per program: the first of these that divides their number


@triton.jit  # type: ignore[untyped-decorator]
def _spmm(  # type: ignore[no-untyped-def]
    offsets, columns, swizzle, values, dense, out, width, SUM: tl.constexpr, VALUES: tl.constexpr, TILE: tl.constexpr
):
    row = tl.load(swizzle + tl.program_id(0))
    start = tl.load(offsets + row)
    end = tl.load(offsets + row + 1)
    tile = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = tile < width
    total = tl.zeros((VALUES, TILE), dtype=SUM)
    for first in range(start, end, VALUES):
        at = first + tl.arange(0, VALUES)
        mask = at < end
        column = tl.load(columns + at, mask=mask, other=0).to(tl.int64)
        value = tl.load(values + at, mask=mask, other=0.0).to(SUM)
        place = dense + column[:, None] * width + tile[None, :]
        block = tl.load(place, mask=mask[:, None] & inside[None, :], other=0.0).to(SUM)
        total += value[:, None] * block
    total_sum = tl.sum(total, axis=0)
    tl.store(out + row.to(tl.int64) * width + tile, total_sum.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _sddmm(  # type: ignore[no-untyped-def]
    offsets, columns, swizzle, left, right, out, width, SUM: tl.constexpr, VALUES: tl.constexpr, TILE: tl.constexpr
):
    row = tl.load(swizzle + tl.program_id(0))
    first = tl.load(offsets + row) + tl.program_id(1) * VALUES
    end = tl.load(offsets + row + 1)
    if first < end:  # shorter rows have fewer strips than the longest, for which programs are started
        at = first + tl.arange(0, VALUES)
        mask = at < end
        column = tl.load(columns + at, mask=mask, other=0).to(tl.int64)
        mine = left + row.to(tl.int64) * width
        total = tl.zeros((VALUES, TILE), dtype=SUM)
        for begin in range(0, width, TILE):
            tile = begin + tl.arange(0, TILE)
            inside = tile < width
            factor = tl.load(mine + tile, mask=inside, other=0.0).to(SUM)
            place = right + column[:, None] * width + tile[None, :]
            block = tl.load(place, mask=mask[:, None] & inside[None, :], other=0.0).to(SUM)
            total += factor[None, :] * block
        tl.store(out + at, tl.sum(total, axis=1).to(out.dtype.element_ty), mask=mask)


def spmm(side: Side, values: Tensor, dense: Tensor) -> Tensor:
    """Product (rows, m) of a sparse matrix (rows, width) with `values` (kept,) and `dense` (width, m), contiguous."""
    count = dense.shape[1]
    out = dense.new_empty(side.rows, count)
    tile = _tile(count)
    _spmm[(side.rows, triton.cdiv(count, tile))](
        side.offsets, side.columns, side.swizzle, values, dense, out, count, _sum(dense), VALUES, tile
    )
    return out


def sddmm(side: Side, left: Tensor, right: Tensor) -> Tensor:
    """The kept entries of left (rows, m) times the transpose of right (width, m), both contiguous: (kept,)."""
    count = left.shape[1]
    out = left.new_empty(side.kept)
    _sddmm[(side.rows, triton.cdiv(side.longest, VALUES))](
        side.offsets, side.columns, side.swizzle, left, right, out, count, _sum(left), VALUES, _tile(count)
    )
    return out


def _tile(count: int) -> int:
    return next((tile for tile in TILES if count % tile == 0), TILES[0])


def _sum(tensor: Tensor) -> Any:
    return tl.float64 if tensor.dtype == torch.float64 else tl.float32
