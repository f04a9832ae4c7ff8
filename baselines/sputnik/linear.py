"""Linear layer over unpruned weights only: y = x W^T + b, and both gradients.

Activations have the shape (..., features), as in every layer of the suite. The kernels need features first (a row of
the dense matrix is one feature over the batch). So inputs and gradients are transposed once each, the backward pass
stores the transposed input, and outputs are transposed back. These transposes are costs of the layer and are timed with
it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import nn

from baselines.sputnik import cpu
from baselines.sputnik.structure import Structure
from suite import accelerator
from suite.core.errors import InvalidRequest, MissingDependency

Tensor = torch.Tensor


def kernels_of(device: torch.device) -> ModuleType:
    """The module whose `spmm` and `sddmm` multiply on this device.

    Raises MissingDependency without Triton on CUDA."""
    if accelerator.on_host(device):
        return cpu
    try:
        from baselines.sputnik import cuda
    except ModuleNotFoundError as error:
        raise MissingDependency("triton", "pip install triton for sparse products on CUDA") from error
    return cuda


class Product(torch.autograd.Function):
    """Sparse product x W^T with its gradients.

    Forward maps x (m, inputs) and values (kept,) to (m, outputs). Backward maps g (m, outputs) to g W and to the kept
    entries of g^T x.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, structure: Structure) -> Tensor:
        turned = x.t().contiguous()  # [inputs, m]
        ctx.save_for_backward(turned, values)
        ctx.structure = structure
        out: Tensor = kernels_of(x.device).spmm(structure.weight, values, turned)  # [outputs, m]
        return out.t().contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        turned, values = ctx.saved_tensors
        structure: Structure = ctx.structure
        kernels, grad = kernels_of(turned.device), grads[0].t().contiguous()  # [outputs, m]
        into = weight = None
        if ctx.needs_input_grad[0]:
            into = kernels.spmm(structure.transposed, values.index_select(0, structure.order), grad).t().contiguous()
        if ctx.needs_input_grad[1]:
            weight = kernels.sddmm(structure.weight, grad, turned)
        return into, weight, None


class SparseLinear(nn.Module):
    """A linear layer with the kept flat positions `index`: `values` (kept,), and a dense `bias`.

    It maps (..., inputs) to (..., outputs).
    """

    def __init__(self, linear: nn.Linear, index: Tensor) -> None:
        """Copy the kept weights of `linear`, and share its bias.

        Raises InvalidRequest for an index that does not fit the weight.
        """
        super().__init__()
        self.inputs, self.outputs = linear.in_features, linear.out_features
        weight = linear.weight.detach().reshape(-1)
        self.values = nn.Parameter(weight[index.to(weight.device).long()].clone())
        self.bias = linear.bias
        self.structure = Structure(index, outputs=self.outputs, inputs=self.inputs).to(weight.device)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.inputs:
            raise InvalidRequest(
                f"activations with {x.shape[-1]} features in a layer with {self.inputs} input features",
                rule="the last dimension of the input is the number of input features",
            )
        output: Tensor = Product.apply(x.reshape(-1, self.inputs), self.values, self.structure)  # type: ignore[no-untyped-call]
        if self.bias is not None:
            output = output + self.bias
        return output.view(*x.shape[:-1], self.outputs)
