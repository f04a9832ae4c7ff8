"""Shape of a graph convolution network (Kipf and Welling), and the sparse products of an epoch.

A product exchanges rows of the matrix that it multiplies. The volume of an epoch is therefore the sum of the products'
widths times the rows of a plan. Matrices: H is the input of a layer, G the gradient of its output Z, W its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from suite.workload.transformer import check_counts

# how a layer multiplies: forward; backward
PRINTED = "printed"  # Z = (A^T H) W; S = A G, dW = H^T S, dH = S W^T (Section 2.1)
DENSE_FIRST = "dense first"  # Z = A^T (H W); as printed
DENSE_LAST = "dense last"  # T = A^T H, Z = T W; dW = T^T G, dH = A (G W^T)
KEPT = "kept"  # T = A^T H of the first epoch, which never changes; dW = T^T G


class SparseProduct(NamedTuple):
    """One sparse product of an epoch; `width` is the columns of the matrix that is multiplied and sent."""

    backward: bool
    width: int


@dataclass(frozen=True, slots=True)
class GCN:
    """Network of `layers` graph convolutions with `width` hidden units (Section 6.2: 3 and 16).

    Attributes:
        order: "paper" as printed; "auto" multiplies the matrix with fewer columns.
        epoch: "paper" for 2 L sparse products with order="paper"; "lean" caches the first layer's product, 2 (L - 1)
            products, as the paper's introduction counts them (inconsistency G4).
    """

    layers: int = 3
    width: int = 16
    order: Literal["paper", "auto"] = "paper"
    epoch: Literal["paper", "lean"] = "paper"

    def __post_init__(self) -> None:
        check_counts(self)

    def widths(self, features: int, classes: int) -> tuple[int, ...]:
        """Columns of H^0 to H^L."""
        return (features, *[self.width] * (self.layers - 1), classes)

    def parameters(self, features: int, classes: int) -> int:
        widths = self.widths(features, classes)
        return sum(a * b for a, b in pairwise(widths))

    def mode(self, layer: int, before: int, after: int) -> str:
        """Order in which a layer with `before` x `after` weights multiplies."""
        if layer == 0 and self.epoch == "lean":
            return KEPT
        if self.order == "paper":
            return PRINTED
        return DENSE_FIRST if after < before else DENSE_LAST

    def products(self, features: int, classes: int) -> Sequence[SparseProduct]:
        """Sparse products of one epoch after the first, in order."""
        forward, backward = [], []
        for layer, (before, after) in enumerate(pairwise(self.widths(features, classes))):
            mode = self.mode(layer, before, after)
            if mode != KEPT:
                forward.append(SparseProduct(False, after if mode == DENSE_FIRST else before))
            if mode in (PRINTED, DENSE_FIRST):
                backward.append(SparseProduct(True, after))
            elif layer:
                backward.append(SparseProduct(True, before))
        return [*forward, *reversed(backward)]

    def flops(self, features: int, classes: int, *, vertices: int, entries: int) -> int:
        """Multiplications and additions of an epoch: sparse products, and three dense products per layer.

        The first layer has two dense products, because the gradient of its input is not needed.
        """
        sparse = sum(2 * entries * one.width for one in self.products(features, classes))
        dense = [2 * vertices * a * b for a, b in pairwise(self.widths(features, classes))]
        return sparse + 3 * sum(dense) - dense[0]
