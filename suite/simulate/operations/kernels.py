"""Seconds of kernels on a device: matrix products, attention and element-wise kernels.

A kernel takes its flops over the reached flop/s or its bytes over the reached bandwidth, whichever is longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from suite.simulate.network.machine import Machine
from suite.simulate.operations.generation import SoftwareGeneration

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.94), (128, 64, 0.8), (64, 64, 0.65))
"""Rows and columns of the tiles of matrix products, and the share of the largest tile's rate that each reaches. Smaller
tiles load more bytes per flop. A library chooses the fastest."""
ALIGNED = 8
"""Matrix units of 16-bit types read rows of a multiple of this many entries. Products of other sizes, such as those of
heads of 108 entries, run on the vector units in single precision."""
OPERAND_BYTES = {"tensorfloat32": 4.0, "float16": 2.0, "bfloat16": 2.0, "float8": 1.0, "float4": 0.5625}
"""Bytes of an operand by type. FP4 has a scale for every 16 entries."""


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """`count` products of a `rows` x `depth` and a `depth` x `columns` matrix.

    Attributes:
        result_bytes: Bytes per entry of the result that are read and written, at least those of an operand.
        precision: Type of the operands; None for that of the setup.
    """

    rows: float
    columns: float
    depth: float
    count: float = 1.0
    result_bytes: float = 2.0
    precision: str | None = None

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.columns * self.depth * self.count


@lru_cache(maxsize=65536)
def tile_share(rows: float, columns: float, depth: float, count: float, units: int, start: float) -> float:
    """Share of the rate of a very large product that one of this shape reaches.

    The tiles of a product are computed in waves, one tile for each compute unit. A part of a wave takes as long as a
    full one.
    """
    best = 0.0
    for height, width, rate in TILES:
        tiles = ceil(rows / height) * ceil(columns / width) * count
        filled = rows * columns * count / (tiles * height * width)
        waves = tiles / units if units else tiles
        best = max(best, rate * filled * waves / ceil(waves))
    return best * depth / (depth + start)


class DeviceRates:
    """Rates of a device with software of one generation."""

    def __init__(self, machine: Machine, generation: SoftwareGeneration, share: float = 0.0) -> None:
        """`share`: constant of the products, in place of that of the generation; 0 for none."""
        self.machine, self.generation = machine, generation
        self.share = (share or generation.share(machine.family)) * machine.sustained
        self.traffic = machine.memory_bandwidth * generation.traffic

    def product(self, product: MatrixProduct, precision: str) -> float:
        """Seconds of a matrix product."""
        kind = product.precision or precision
        units = self.machine.compute_units
        start = self.generation.start
        rate = self.machine.peak_of(kind)
        if any(round(side) % ALIGNED for side in (product.columns, product.depth)):
            rate = self.machine.peak.get("float32", rate)
        else:
            rate *= tile_share(product.rows, product.columns, product.depth, product.count, units, start)
        operand = OPERAND_BYTES[kind]
        entries = (product.rows + product.columns) * product.depth * operand
        moved = product.count * (entries + product.rows * product.columns * max(product.result_bytes, operand))
        return max(product.flops / (self.share * rate), moved / self.traffic) + self.generation.pause

    def attention(self, flops: float, kernel: str, *, backward: bool) -> float:
        """Seconds of a flash attention kernel, which computes in 16 bits."""
        by_family = self.generation.flash[kernel]
        share = by_family.get(self.machine.family, by_family["other"])[backward] * self.share
        return flops / (share * self.machine.peak_of("float16")) + self.generation.pause

    def elementwise(self, moved: float, kernels: float = 1.0) -> float:
        """Seconds of kernels that move `moved` bytes."""
        return moved / self.traffic + kernels * self.generation.pause
