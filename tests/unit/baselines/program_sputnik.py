"""Program of test_sputnik_cuda.py in a separate process: the Triton kernels on a CPU, by Triton's interpreter.

Prints the errors by case, type and product as JSON. Triton asks for its interpreter when a kernel is defined.
"""

from __future__ import annotations

import json
import os
import sys

import torch

from baselines.sputnik import linear
from baselines.sputnik.structure import structure_of
from tests.support.sparse_products import CASES, INTERPRETED, drawn, error, index_of, products


def kernels(name: str, dtype: torch.dtype) -> dict[str, float]:
    """The kernels alone."""
    from baselines.sputnik import cuda

    case, index = CASES[name], index_of(CASES[name])
    structure = structure_of(index, outputs=case.outputs, inputs=case.inputs)
    weight = drawn(case.outputs, case.inputs, dtype=dtype, seed=1)
    values = weight.flatten()[index.long()]
    x, grad = (drawn(case.m, size, dtype=dtype, seed=2) for size in (case.inputs, case.outputs))
    turned, back = x.t().contiguous(), grad.t().contiguous()
    computed = (
        cuda.spmm(structure.weight, values, turned).t(),
        cuda.spmm(structure.transposed, values[structure.order], back).t(),
        cuda.sddmm(structure.weight, back, turned),
    )
    expected = products(weight, index, x, grad)
    return {
        product: error(ours, theirs)
        for product, ours, theirs in zip(("forward", "input", "weight"), computed, expected, strict=True)
    }


def layer() -> dict[str, float]:
    """A whole layer whose device says CUDA: forward, and both gradients."""
    from baselines.sputnik import cuda

    devices = []

    def instead(device: torch.device) -> object:
        devices.append(device)
        return cuda

    linear.kernels_of = instead  # type: ignore[assignment]
    case, index = CASES["odd"], index_of(CASES["odd"])
    dense = torch.nn.Linear(case.inputs, case.outputs, bias=False)
    sparse = linear.SparseLinear(dense, index)
    x, grad = (drawn(case.m, size, dtype=torch.float32, seed=2) for size in (case.inputs, case.outputs))
    output = sparse(x.requires_grad_())
    output.backward(grad)
    assert len(devices) == 2
    assert x.grad is not None
    assert sparse.values.grad is not None
    expected = products(dense.weight.detach(), index, x.detach(), grad)
    ours = (output, x.grad, sparse.values.grad)
    return {
        product: error(one, other)
        for product, one, other in zip(("forward", "input", "weight"), ours, expected, strict=True)
    }


def main() -> None:
    assert os.environ["TRITON_INTERPRET"] == "1"
    errors = {f"{name}, {dtype}": kernels(name, dtype) for name, dtype in INTERPRETED}
    json.dump({**errors, "layer": layer()}, sys.stdout)


if __name__ == "__main__":
    main()
