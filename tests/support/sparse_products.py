"""Sparse weights of unusual shapes, and a sparse layer compared with dense products with explicit zeros."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import nn

from baselines.sputnik.linear import SparseLinear

Tensor = torch.Tensor
# tolerance relative to the largest value: reordered sums and, for 16-bit types, one rounding of the result
ALLOWED = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


class Case(NamedTuple):
    """A weight (outputs, inputs) and m rows of activations; `lengths` are the entries kept per row, cyclically."""

    outputs: int
    inputs: int
    m: int
    lengths: tuple[int, ...]


CASES = {
    "square": Case(16, 16, 16, (3,)),
    "odd": Case(7, 13, 5, (5, 2, 11)),
    "empty rows": Case(9, 14, 5, (0, 4, 0, 0, 14)),
    "one row": Case(1, 45, 7, (20,)),
    "one column": Case(11, 1, 3, (1, 0)),
    "one value": Case(6, 7, 4, (0, 0, 0, 1, 0, 0)),
    "one sample": Case(8, 12, 1, (6, 1)),
    "uneven rows": Case(4, 70, 67, (70, 0, 33, 32)),
    "all kept": Case(6, 5, 8, (5,)),
}


def index_of(case: Case) -> Tensor:
    """Flat indices of the kept entries: int32, ascending."""
    draw = torch.Generator().manual_seed(7)
    rows = [
        row * case.inputs + torch.randperm(case.inputs, generator=draw)[: case.lengths[row % len(case.lengths)]]
        for row in range(case.outputs)
    ]
    return torch.cat(rows).sort().values.int()


def tensor(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def layer_of(case: Case, dtype: torch.dtype, *, bias: bool = False) -> tuple[nn.Linear, SparseLinear]:
    """A dense layer whose pruned weights are zeros, and the sparse layer of its kept weights."""
    dense = nn.Linear(case.inputs, case.outputs, bias=bias).to(dtype)
    kept = torch.zeros(case.outputs * case.inputs, dtype=dtype).index_fill(0, index_of(case).long(), 1)
    dense.weight.data = tensor(case.outputs, case.inputs, dtype=dtype, seed=1) * kept.view_as(dense.weight)
    return dense, SparseLinear(dense, index_of(case))


def errors_of(case: Case, dtype: torch.dtype, device: str = "cpu") -> dict[str, float]:
    """Errors of the output and of both gradients of a sparse layer, against dense products in float64 on the CPU."""
    dense, sparse = layer_of(case, dtype)
    if device != "cpu":
        sparse = SparseLinear(copy.deepcopy(dense).to(device), index_of(case).to(device))
    x = tensor(case.m, case.inputs, dtype=dtype, seed=2).to(device).requires_grad_()
    grad = tensor(case.m, case.outputs, dtype=dtype, seed=3)
    output = sparse(x)
    output.backward(grad.to(device))
    assert output.is_contiguous()
    assert x.grad is not None
    assert sparse.values.grad is not None
    assert x.grad.dtype == sparse.values.grad.dtype == output.dtype == dtype
    weight, left, right = dense.weight.detach().double(), x.detach().cpu().double(), grad.double()
    return {
        "forward": error(output, left @ weight.t()),
        "input": error(x.grad, right @ weight),
        "weight": error(sparse.values.grad, (right.t() @ left).flatten()[index_of(case).long()]),
    }


def error(output: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest expected value; infinite for another shape or nonfinite values."""
    if output.shape != expected.shape or not bool(output.isfinite().all()):
        return float("inf")
    return float((output.detach().cpu().double() - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
