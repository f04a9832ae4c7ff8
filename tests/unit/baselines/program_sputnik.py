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
    made = structure_of(index, outputs=case.outputs, inputs=case.inputs)
    weight = drawn(case.outputs, case.inputs, dtype=dtype, seed=1)
    values = weight.flatten()[index.long()]
    x, grad = (drawn(case.m, size, dtype=dtype, seed=2) for size in (case.inputs, case.outputs))
    turned, back = x.t().contiguous(), grad.t().contiguous()
    found = (
        cuda.spmm(made.weight, values, turned).t(),
        cuda.spmm(made.transposed, values[made.order], back).t(),
        cuda.sddmm(made.weight, back, turned),
    )
    wanted = products(weight, index, x, grad)
    return {
        product: error(ours, theirs)
        for product, ours, theirs in zip(("forward", "input", "weight"), found, wanted, strict=True)
    }


def layer() -> dict[str, float]:
    """A whole layer whose device says CUDA: forward, and both gradients."""
    from baselines.sputnik import cuda

    asked = []

    def instead(device: torch.device) -> object:
        asked.append(device)
        return cuda

    linear.kernels_of = instead  # type: ignore[assignment]
    case, index = CASES["odd"], index_of(CASES["odd"])
    dense = torch.nn.Linear(case.inputs, case.outputs, bias=False)
    sparse = linear.SparseLinear(dense, index)
    x, grad = (drawn(case.m, size, dtype=torch.float32, seed=2) for size in (case.inputs, case.outputs))
    found = sparse(x.requires_grad_())
    found.backward(grad)
    assert len(asked) == 2
    assert x.grad is not None
    assert sparse.values.grad is not None
    wanted = products(dense.weight.detach(), index, x.detach(), grad)
    ours = (found, x.grad, sparse.values.grad)
    return {
        product: error(one, other)
        for product, one, other in zip(("forward", "input", "weight"), ours, wanted, strict=True)
    }


def main() -> None:
    assert os.environ["TRITON_INTERPRET"] == "1"
    found = {f"{name}, {dtype}": kernels(name, dtype) for name, dtype in INTERPRETED}
    json.dump({**found, "layer": layer()}, sys.stdout)


if __name__ == "__main__":
    main()
