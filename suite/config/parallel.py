"""Keys of how one batch is spread over ranks: grid, batch, messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from suite.config.base import Count, Ranks, Settings, rule_error
from suite.core.grid import Grid as RankGrid


class GridConfig(Settings):
    """Ranks in each direction."""

    data: Ranks = 1
    """Data-parallel replicas (G_data)."""
    inter: Ranks = 1
    """Pipeline stages (G_inter)."""
    tensor: Ranks = 1
    """Ranks that share each layer (G_intra)."""

    def build(self) -> RankGrid:
        """The grid that ranks are placed on."""
        return RankGrid(data=self.data, inter=self.inter, tensor=self.tensor)

    @property
    def typed(self) -> str:
        """The keys of the grid as they are typed on a command line."""
        tensor = f" grid.tensor={self.tensor}" if self.tensor > 1 else ""
        return f"grid.inter={self.inter} grid.data={self.data}{tensor}"


class BatchConfig(Settings):
    """Samples of a batch."""

    size: Annotated[Count, Field(examples=[16])] = 16
    """Samples per batch, over all replicas."""
    microbatch: Count = 2
    """Samples per microbatch."""


class Comm(Settings):
    """Messages between ranks."""

    transport: Annotated[Literal["auto", "mpi", "gloo", "nccl"], Field(examples=["auto"])] = "auto"
    """mpi, gloo or nccl; auto: mpi under mpiexec, under torchrun gloo (cpu) or nccl (cuda)."""
    order: Annotated[Literal["any", "static"], Field(examples=["any"])] = "any"
    """any: ops run as their messages arrive; static: ops run in the checker's order, always so with nccl."""
    eager_bytes: Annotated[int, Field(ge=256, le=2**30, examples=[16_384])] = 16_384
    """Largest value in bytes that is sent with its header in one message; larger values follow tensor by tensor."""
    pair_exchange: bool = True
    """Whether groups of two ranks all-reduce by an exchange over MPI; false: over gloo, like larger groups."""


def _checkpoints(value: Any) -> Any:
    if value is None or value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise rule_error("a whole number of blocks, auto, or null")


Checkpoints = Annotated[Any, BeforeValidator(_checkpoints), Field(examples=[None])]
