"""Sparse products on a CPU: torch's kernels over compressed rows.

Which types torch 2.13 has them for: a sparse matrix times a dense one in float64, float32, bfloat16 and float16 (16-bit
types add in float32); the sampled product in float64 and float32 alone, so that 16-bit gradients are widened to float32
for it and its result is rounded. `torch.sparse.mm` with a reduction is used, not the plain one, which goes to MKL where
torch was built with it: that one refuses 16-bit types, and takes longer at the sizes of SAMO's Figure 1.
"""

from __future__ import annotations

import torch

from baselines.sputnik.structure import Side

Tensor = torch.Tensor
NAME = "torch's CSR products"
SAMPLED = (torch.float32, torch.float64)  # types that torch samples a product in


def matrix(side: Side, values: Tensor) -> Tensor:
    """torch's own sparse tensor over these values, which it does not copy."""
    return torch.sparse_csr_tensor(side.offsets, side.columns, values, (side.rows, side.width), check_invariants=False)


def spmm(side: Side, values: Tensor, dense: Tensor) -> Tensor:
    """The sparse [rows, width] matrix with `values` [kept] times `dense` [width, m], contiguous: [rows, m]."""
    product: Tensor = torch.sparse.mm(matrix(side, values), dense, "sum")
    return product


def sddmm(side: Side, left: Tensor, right: Tensor) -> Tensor:
    """Of left [rows, m] times the transpose of right [width, m] what stands at the side's places: [kept]."""
    if left.dtype not in SAMPLED:
        return sddmm(side, left.float(), right.float()).to(left.dtype)
    nothing = matrix(side, left.new_zeros(side.kept))
    product: Tensor = torch.sparse.sampled_addmm(nothing, left, right.t(), beta=0.0).values()
    return product
