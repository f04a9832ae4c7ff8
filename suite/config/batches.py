"""Keys of batches: their ranks, messages, measurement, and the checkpoints between them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from suite.config.base import Count, Duration, Name, Ranks, Settings
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

    size: Count = 16
    """Samples per batch, over all replicas."""
    microbatch: Count = 2
    """Samples per microbatch."""


class Comm(Settings):
    """Messages between ranks."""

    transport: Literal["auto", "mpi", "gloo", "nccl"] = "auto"
    """mpi, gloo or nccl; auto: mpi under mpiexec, under torchrun gloo (cpu) or nccl (cuda)."""
    order: Literal["any", "static"] = "any"
    """any: ops run as their messages arrive; static: ops run in the checker's order, always so with nccl."""
    eager_bytes: Annotated[int, Field(ge=256, le=2**30)] = 16_384
    """Largest value in bytes that is sent with its header in one message; larger values follow tensor by tensor."""
    pair_exchange: bool = True
    """Whether groups of two ranks all-reduce by an exchange over MPI; false: over gloo, like larger groups."""


Checkpoints = Count | Literal["auto"] | None


NonNegativeCount = Annotated[int, Field(ge=0, le=1_000_000)]
PositiveCount = Annotated[int, Field(ge=1, le=1_000_000)]


class Measure(Settings):
    """Batches, their order in time, and validation."""

    warm_up: NonNegativeCount = 1
    """Batches before the first sample."""
    rounds: PositiveCount = 5
    """Rounds of each system. The rounds of an experiment's systems are interleaved, A B A B. An asynchronous system
    trains without draining during a round, and drains at the end of the round."""
    discard_first: NonNegativeCount = 1
    """Batches at the start of a round that are not timed, because the caches hold another system's data."""
    batches: PositiveCount = 2
    """Samples per round."""
    eval_batches: NonNegativeCount = 2
    """Validation batches at the end; 0 for none."""
    validate_when: Annotated[Literal["end", "every_round"], Field(alias="validate")] = "end"
    """end: after the last round; every_round: after every round too."""
    deadline: Duration = 120
    """Seconds for one round, or more where batches before it took long: five times as long as these."""


class Checkpoint(Settings):
    """Checkpoints, from which the same command continues an interrupted run."""

    folder: Name | None = None
    """Folder with a folder of checkpoints for each run; null: no checkpoints."""
    every: Count = 50
    """Batches between checkpoints."""
    keep: Count = 2
    """Number of the newest checkpoints to keep."""
