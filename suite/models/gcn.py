"""Graph convolution on a distributed sparse product: forward and backward pass, in either order of products.

The sparse product is an argument; the graph convolution does not depend on the number of processes or their
messages. `A^T` multiplies forward and `A` backward (Section 2.1); of a symmetric graph they are one."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from suite.core.trace import GEMM
from suite.workload.gcn import DENSE_FIRST, GCN, KEPT, PRINTED

Product = Callable[[torch.Tensor], torch.Tensor]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: torch.Tensor, weight: torch.Tensor, layer: GraphConvolution) -> torch.Tensor:
        mode, gemm = layer.mode, layer.gemm
        if mode == DENSE_FIRST:
            saved, z = h, layer.product(gemm(h, weight))
        else:
            t = layer.once(h) if mode == KEPT else layer.product(h)
            saved, z = (h if mode == PRINTED else t), gemm(t, weight)
        ctx.layer = layer
        ctx.save_for_backward(saved, weight)
        return z

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor, None]:
        (g,), layer, (saved, weight) = gradients, ctx.layer, ctx.saved_tensors
        mode, gemm, needed = layer.mode, layer.gemm, ctx.needs_input_grad[0]
        if mode in (PRINTED, DENSE_FIRST):
            s = layer.back(g)
            return (gemm(s, weight.t()) if needed else None), gemm(saved.t(), s), None
        ours = gemm(saved.t(), g)
        return (layer.back(gemm(g, weight.t())) if needed else None), ours, None


class GraphConvolution(nn.Module):
    """Graph convolution Z = (A^T H) W, for the rows H (n_i, inputs) of this process's vertices. It has no bias.

    Attributes:
        product, back: H -> A^T H and G -> A G, on rows of this process.
        gemm: Dense products, which a caller may time.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        mode: str,
        product: Product,
        back: Product,
        gemm: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.mode, self.product, self.back, self.gemm = mode, product, back, gemm
        self.cached_product: tuple[torch.Tensor, torch.Tensor] | None = None
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        bound = math.sqrt(6 / (inputs + outputs))  # Glorot and Bengio's initialisation, as in Kipf and Welling
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)

    def once(self, h: torch.Tensor) -> torch.Tensor:
        """A^T H, computed anew only for another H."""
        if self.cached_product is None or self.cached_product[0] is not h:
            self.cached_product = h, self.product(h)
        return self.cached_product[1]

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = _Convolution.apply(h, self.weight, self)  # type: ignore[no-untyped-call]
        return output


def layers(
    shape: GCN, features: int, classes: int, *, product: Product, back: Product, watch: Any, seed: int
) -> nn.ModuleList:
    """The convolutions of a network. Their weights are drawn from `seed`, alike on every process."""

    def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with watch.span(GEMM):
            return a @ b

    # a generator per process, as threads of one process share torch's
    generator = torch.Generator().manual_seed(seed)
    return nn.ModuleList(
        GraphConvolution(
            before,
            after,
            mode=shape.mode(at, before, after),
            product=product,
            back=back,
            gemm=gemm,
            generator=generator,
        )
        for at, (before, after) in enumerate(pairwise(shape.widths(features, classes)))
    )
