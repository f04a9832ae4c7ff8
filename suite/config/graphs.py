"""Keys of runs on one whole graph."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from suite.config.base import READ_ONLY, Name, Ranks, Settings, Text, name_like
from suite.config.plugins import Plugin
from suite.config.protocols import GraphSource


class GraphConfig(Settings):
    """The graph that a graph network learns from."""

    name: Name
    source: Plugin[GraphSource]
    """Generator or reader of the graph."""
    holdings: Annotated[Name | None, name_like(None), READ_ONLY] = None
    """Folder of the ranks' parts, which the process that starts them sets."""


class PartitionerConfig(Settings):
    """How vertices are shared out over the processes. Its class takes further keys."""

    model_config = ConfigDict(extra="allow")

    target: Annotated[Text, Field(alias="_target_")]
    name: Name


class ExchangeConfig(Settings):
    """How rows travel between the processes."""

    target: Annotated[Text, Field(alias="_target_")]
    name: Name
    oblivious: bool = False
    """Whole parts travel, needed or not."""
    replication: Ranks = 1
    """c of a P/c x c grid; P is grid.data (1.5D)."""
    assignment: Annotated[Name, name_like("interleaved")] = "paper"
    """Of blocks to the columns of the grid: paper, or interleaved, which spreads the sends over the replicas."""
    form: Annotated[Name, name_like("staged")] = "fused"
    """fused: one all-to-all; staged: block row after block row, as Algorithm 2 prints it."""
    overlap: bool = False
    """The product with own rows runs while the other rows travel."""
    barrier: bool = False
    """Ranks meet before every exchange, so that waiting is timed apart from sending."""
