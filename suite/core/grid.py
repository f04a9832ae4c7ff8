"""Grid of ranks: replicas x pipeline stages x tensor-parallel ranks.

Ranks are numbered in a G_data x G_inter x G_intra grid in row-major order, as in AxoNN (III-A, Figure 2, and its code).
The tensor-parallel index varies fastest, then the stage, then the replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from suite.core.bounds import Count, check_bounds


class GridPosition(NamedTuple):
    """Coordinates of a rank: its replica, its rank in the pipeline, and its rank among the tensor-parallel ranks.

    They hold no stages: which stages a pipeline rank holds depends on the schedule (suite.schedule.placement).
    """

    data: int
    inter: int
    tensor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """data x inter x tensor ranks (`G_data`, `G_inter`, `G_intra`). Grid(inter=2, data=1) prints as 2x1."""

    data: Count = 1
    inter: Count = 1
    tensor: Count = 1

    def __post_init__(self) -> None:
        check_bounds(self)

    def __str__(self) -> str:
        """`inter x data`, as the papers write a grid, and the tensor axis if it is larger than 1."""
        return f"{self.inter}x{self.data}" + (f"x{self.tensor}" if self.tensor > 1 else "")

    @property
    def size(self) -> int:
        return self.data * self.inter * self.tensor

    def rank(self, *, data: int, inter: int, tensor: int = 0) -> int:
        return (data * self.inter + inter) * self.tensor + tensor

    def position(self, rank: int) -> GridPosition:
        """Inverse of `rank`."""
        pipelines, tensor = divmod(rank, self.tensor)
        return GridPosition(*divmod(pipelines, self.inter), tensor)

    def pipeline(self, rank: int) -> tuple[int, ...]:
        """The ranks of this rank's pipeline, by pipeline rank."""
        data, _, tensor = self.position(rank)
        return tuple(self.rank(data=data, inter=inter, tensor=tensor) for inter in range(self.inter))

    def data_parallel_group(self, rank: int) -> tuple[int, ...]:
        """The ranks that hold copies of this rank's stage: they all-reduce gradients (AxoNN Algorithm 1, line 13)."""
        _, inter, tensor = self.position(rank)
        return tuple(self.rank(data=data, inter=inter, tensor=tensor) for data in range(self.data))
