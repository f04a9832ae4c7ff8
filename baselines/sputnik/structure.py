"""Sparsity structure of a weight: compressed rows of the weight and of its transpose.

The forward product and the weight gradient read the rows of the weight; the input gradient reads its columns. Both
sides are built once, because a mask never changes. The values are stored once, and a permutation gives their order in
the transpose (Gale et al. 2020, section V). Each side also lists its rows by falling length (the row swizzle of Gale et
al.), which balances the load of neighbouring thread blocks.
"""

from __future__ import annotations

import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.pruning.validation import LARGEST

Tensor = torch.Tensor


class Side(nn.Module):
    """A sparse matrix (rows, width) without its values.

    Attributes:
        offsets: int32 (rows + 1,), start of each row's values.
        columns: int32 (kept,), column of each value.
        swizzle: int32 (rows,), the rows in order of falling length.
        longest: Number of values in the longest row.
    """

    offsets: Tensor
    columns: Tensor
    swizzle: Tensor

    def __init__(self, rows: Tensor, columns: Tensor, height: int, width: int) -> None:
        super().__init__()
        self.rows, self.width, lengths = height, width, torch.bincount(rows, minlength=height)
        self.register_buffer("offsets", torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int())
        self.register_buffer("columns", columns.int())
        self.register_buffer("swizzle", torch.argsort(lengths, descending=True, stable=True).int())
        self.refresh()

    def refresh(self) -> None:
        """Count the longest row anew, after the buffers were written."""
        self.longest = int(self.offsets.diff().max())

    @property
    def kept(self) -> int:
        return self.columns.numel()


class Structure(nn.Module):
    """Both sides of a weight (outputs, inputs) whose kept flat indices are `index`, in rising order.

    Raises InvalidRequest for an invalid index, and for a weight too large for int32 indices.

    Attributes:
        weight: The side (outputs, inputs), in whose order the values are stored.
        transposed: The side (inputs, outputs).
        order: int32 (kept,); values[order] are the values of the transpose.
    """

    order: Tensor

    def __init__(self, index: Tensor, *, outputs: int, inputs: int) -> None:
        super().__init__()
        if outputs * inputs >= LARGEST:
            raise InvalidRequest(
                f"a weight of {outputs} x {inputs} entries", rule="fewer than 2^31 entries, the range of a 32-bit index"
            )
        flat, size = index.long(), outputs * inputs
        if not flat.numel() or int(flat[0]) < 0 or int(flat[-1]) >= size or not bool((flat.diff() > 0).all()):
            raise InvalidRequest(
                f"an index of {flat.numel()} entries for a weight of {outputs} x {inputs}",
                rule="at least one entry, in strictly rising order, inside the weight",
            )
        rows, columns = flat // inputs, flat % inputs
        order = torch.argsort(columns, stable=True)  # a stable sort keeps the rows of a column in order
        self.weight = Side(rows, columns, outputs, inputs)
        self.transposed = Side(columns[order], rows[order], inputs, outputs)
        self.register_buffer("order", order.int())

    @property
    def bytes(self) -> int:
        """Bytes of all indices."""
        return sum(buffer.nbytes for buffer in self.buffers())
