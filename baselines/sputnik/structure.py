"""Sparsity structure of a weight: compressed rows of the weight and of its transpose.

The forward product and the weight gradient read the rows of the weight; the input gradient reads its columns. Both
sides are built once, because a mask never changes. The values are stored once, and a permutation gives their order in
the transpose (Gale et al. 2020, section V). Each side also lists its rows by falling length (the row swizzle of Gale et
al.), which balances the load of neighbouring thread blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from suite.core.errors import InvalidRequest
from suite.pruning.validation import LARGEST

Tensor = torch.Tensor


@dataclass(frozen=True)
class Side:
    """A sparse matrix (rows, columns) without its values.

    Attributes:
        offsets: int32 (rows + 1,), start of each row's values.
        columns: int32 (kept,), column of each value.
        swizzle: int32 (rows,), the rows in order of falling length.
        longest: Number of values in the longest row.
    """

    rows: int
    width: int
    offsets: Tensor
    columns: Tensor
    swizzle: Tensor
    longest: int

    @property
    def kept(self) -> int:
        return self.columns.numel()


@dataclass(frozen=True)
class Structure:
    """Both sides of a weight.

    Attributes:
        weight: The side (outputs, inputs), in whose order the values are stored.
        transposed: The side (inputs, outputs).
        order: int32 (kept,); values[order] are the values of the transpose.
    """

    weight: Side
    transposed: Side
    order: Tensor

    @property
    def bytes(self) -> int:
        """Bytes of all indices."""
        sides = [getattr(side, name) for side in (self.weight, self.transposed) for name in NAMES]
        return sum(tensor.numel() * tensor.element_size() for tensor in (*sides, self.order))


NAMES = ("offsets", "columns", "swizzle")  # tensors of a side


def structure_of(index: Tensor, *, outputs: int, inputs: int) -> Structure:
    """The structure of a weight (outputs, inputs) whose kept flat indices are `index`, in rising order.

    Raises InvalidRequest for an invalid index, and for a weight too large for int32 indices.
    """
    if outputs * inputs >= LARGEST:
        raise InvalidRequest(
            f"a weight of {outputs} x {inputs} entries", rule="fewer than 2^31 entries, the range of a 32-bit index"
        )
    flat = index.long()
    if not flat.numel() or int(flat[0]) < 0 or int(flat[-1]) >= outputs * inputs or not bool((flat.diff() > 0).all()):
        raise InvalidRequest(
            f"an index of {flat.numel()} entries for a weight of {outputs} x {inputs}",
            rule="at least one entry, in strictly rising order, inside the weight",
        )
    rows, columns = flat // inputs, flat % inputs
    order = torch.argsort(columns, stable=True)  # a stable sort keeps the rows of a column in order
    return Structure(
        weight=_side(rows, columns, outputs, inputs),
        transposed=_side(columns[order], rows[order], inputs, outputs),
        order=order.int(),
    )


def longest_row(offsets: Tensor) -> int:
    """Number of values in the longest row."""
    return int(offsets.diff().max())


def _side(rows: Tensor, columns: Tensor, height: int, width: int) -> Side:
    lengths = torch.bincount(rows, minlength=height)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
    swizzle = torch.argsort(lengths, descending=True, stable=True).int()
    return Side(height, width, offsets, columns.int(), swizzle, longest_row(offsets))
