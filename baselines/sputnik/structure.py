"""Sparsity structure of a weight: compressed rows of the weight and of its transpose.

The forward product and the sampled weight gradient walk the weight's rows, the input gradient its columns. Both sides
are made once, as a ticket never changes; of the values there is one copy, and a permutation leads from it to the
transpose's order (Gale et al. 2020, section V: the cost of transposing is paid once). Each side also lists its rows by
falling length, so that neighbouring programs of a device have equally much to do (their row swizzle).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from suite.core.errors import InvalidRequest
from suite.pruning.validation import LARGEST

Tensor = torch.Tensor


@dataclass(frozen=True)
class Side:
    """A sparse [rows, columns] matrix without its values.

    Attributes:
        offsets: int32 [rows + 1], where each row's values begin.
        columns: int32 [kept], each value's.
        swizzle: int32 [rows], the rows by falling length.
        longest: Values of the longest row.
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
    """weight: the side [outputs, inputs] in whose order values are kept; transposed: [inputs, outputs]
    order: int32 [kept], values[order] are the transpose's"""

    weight: Side
    transposed: Side
    order: Tensor

    @property
    def bytes(self) -> int:
        """Of all its indices."""
        sides = [getattr(side, name) for side in (self.weight, self.transposed) for name in NAMES]
        return sum(tensor.numel() * tensor.element_size() for tensor in (*sides, self.order))


NAMES = ("offsets", "columns", "swizzle")  # the tensors of a side


def structure_of(index: Tensor, *, outputs: int, inputs: int) -> Structure:
    """The structure of a [outputs, inputs] weight of which the flat places `index` stay.

    index: whole numbers, rising. Raises InvalidRequest for a place that is none or a weight that int32 does not
    reach."""
    if outputs * inputs >= LARGEST:
        raise InvalidRequest(
            f"a weight of {outputs} x {inputs} entries", rule="below 2^31, which a 32-bit index reaches"
        )
    flat = index.long()
    if not flat.numel() or int(flat[0]) < 0 or int(flat[-1]) >= outputs * inputs or not bool((flat.diff() > 0).all()):
        raise InvalidRequest(
            f"{flat.numel()} places of a weight of {outputs} x {inputs}", rule="rising, at least one, within the weight"
        )
    rows, columns = flat // inputs, flat % inputs
    order = torch.argsort(columns, stable=True)  # within a column the rows keep rising
    return Structure(
        weight=_side(rows, columns, outputs, inputs),
        transposed=_side(columns[order], rows[order], inputs, outputs),
        order=order.int(),
    )


def longest_row(offsets: Tensor) -> int:
    """Values of the longest row."""
    return int(offsets.diff().max())


def _side(rows: Tensor, columns: Tensor, height: int, width: int) -> Side:
    lengths = torch.bincount(rows, minlength=height)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
    swizzle = torch.argsort(lengths, descending=True, stable=True).int()
    return Side(height, width, offsets, columns.int(), swizzle, longest_row(offsets))
