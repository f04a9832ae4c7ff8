"""Sparse products on a CPU: torch's kernels on compressed rows.

torch 2.13 multiplies a sparse matrix with a dense one in float64, float32, bfloat16 and float16 (16-bit dtypes
accumulate in float32). Its sampled product supports only float64 and float32, so that 16-bit gradients are widened to
float32 for it and its result is rounded. `torch.sparse.mm` is called with a reduction: the plain call uses MKL where
torch was built with it, which refuses 16-bit dtypes and takes longer at the sizes of SAMO's Figure 1.
"""

from __future__ import annotations

import torch

from baselines.sputnik.structure import Side

Tensor = torch.Tensor
NAME = "torch's CSR products"
SAMPLED = (torch.float32, torch.float64)  # dtypes of torch's sampled product


def matrix(side: Side, values: Tensor) -> Tensor:
    """torch's sparse tensor over these values, without a copy."""
    return torch.sparse_csr_tensor(side.offsets, side.columns, values, (side.rows, side.width), check_invariants=False)


def spmm(side: Side, values: Tensor, dense: Tensor) -> Tensor:
    """Product (rows, m) of a sparse matrix (rows, width) with `values` (kept,) and `dense` (width, m), contiguous."""
    product: Tensor = torch.sparse.mm(matrix(side, values), dense, "sum")
    return product


def sddmm(side: Side, left: Tensor, right: Tensor) -> Tensor:
    """The kept entries of left (rows, m) times the transpose of right (width, m): (kept,)."""
    if left.dtype not in SAMPLED:
        return sddmm(side, left.float(), right.float()).to(left.dtype)
    zeros = matrix(side, left.new_zeros(side.kept))
    product: Tensor = torch.sparse.sampled_addmm(zeros, left, right.t(), beta=0.0).values()
    return product
