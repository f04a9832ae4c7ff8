"""Keys of runs on one whole graph."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from suite.config.base import READ_ONLY, Choice, Name, Ranks, Text
from suite.config.locate import TARGET
from suite.config.plugins import Plugin, build
from suite.config.protocols import GraphSource, PartitionMethod


class GraphConfig(Choice):
    """Graph on which a graph network is trained."""

    source: Plugin[GraphSource]
    """Generator or reader of the graph."""
    holdings: Annotated[Name | None, READ_ONLY] = None
    """Folder of the parts of the ranks, set by the process that starts them."""


class PartitionerConfig(Choice):
    """Partition of the vertices over the processes. Its class takes further keys."""

    model_config = ConfigDict(extra="allow")

    target: Annotated[Text, Field(alias="_target_")]

    def build(self) -> Any:
        """The partitioner, a PartitionMethod. Raises InvalidRequest for an argument that its class refuses."""
        return build({TARGET: self.target, **self.more}, "partitioner", PartitionMethod)


class ExchangeConfig(Choice):
    """Exchange of rows between the processes."""

    target: Annotated[Text, Field(alias="_target_")]
    oblivious: bool = False
    """Whether whole parts are sent, including rows that are not needed."""
    replication: Ranks = 1
    """c of a P/c x c grid; P is grid.data (1.5D)."""
    assignment: Literal["paper", "interleaved"] = "paper"
    """Assignment of blocks to the columns of the grid: paper, or interleaved, which spreads sends over the replicas."""
    form: Literal["fused", "staged"] = "fused"
    """fused: one all-to-all; staged: block row after block row, as Algorithm 2 prints it."""
    overlap: bool = False
    """Whether the product with local rows overlaps the exchange of the other rows."""
    barrier: bool = False
    """Whether a barrier precedes every exchange, so that waiting and sending are timed separately."""
