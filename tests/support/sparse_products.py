"""Sparse weights of unusual shapes, and masked dense products as the reference."""

from __future__ import annotations

from typing import NamedTuple

import torch

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
    "odd": Case(17, 29, 13, (5, 2, 11)),
    "empty rows": Case(9, 14, 5, (0, 4, 0, 0, 14)),
    "one row": Case(1, 45, 7, (20,)),
    "one column": Case(11, 1, 3, (1, 0)),
    "one value": Case(6, 7, 4, (0, 0, 0, 1, 0, 0)),
    "one sample": Case(8, 12, 1, (6, 1)),
    "uneven rows": Case(9, 70, 67, (70, 1, 0, 45, 2, 33, 32, 64, 3)),
    "all kept": Case(6, 5, 8, (5,)),
}
# cases for Triton's interpreter, which takes milliseconds per program
INTERPRETED = [(name, dtype) for name in CASES for dtype in ALLOWED if dtype == torch.float32 or name == "odd"]


def index_of(case: Case) -> Tensor:
    """Flat indices of the kept entries: int32, ascending."""
    draw = torch.Generator().manual_seed(7)
    rows = [
        row * case.inputs + torch.randperm(case.inputs, generator=draw)[: case.lengths[row % len(case.lengths)]]
        for row in range(case.outputs)
    ]
    return torch.cat(rows).sort().values.int()


def drawn(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def masked(weight: Tensor, index: Tensor) -> Tensor:
    """The weight with explicit zeros, in float64."""
    mask = torch.zeros(weight.numel(), dtype=torch.float64)
    mask[index.long()] = weight.detach().flatten()[index.long()].double()
    return mask.view_as(weight)


def products(weight: Tensor, index: Tensor, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output, input gradient and gradient of the kept weights, by dense float64 products with explicit zeros."""
    full, x, grad = masked(weight, index), x.double(), grad.double()
    return x @ full.t(), grad @ full, (grad.t() @ x).flatten()[index.long()]


def error(output: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest expected value; infinite for another shape or nonfinite values."""
    if output.shape != expected.shape or not bool(output.isfinite().all()):
        return float("inf")
    return float((output.detach().double() - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
