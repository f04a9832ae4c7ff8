"""Config groups that only full-graph runs have."""

from __future__ import annotations

from typing import TypeVar

from suite.config.graphs import ExchangeConfig, GraphConfig, PartitionerConfig
from suite.config.network import Model
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, Unsupported
from suite.workload.gcn import GCN

Group = TypeVar("Group", GraphConfig, PartitionerConfig, ExchangeConfig)


def graph_settings(config: RunConfig) -> GraphConfig:
    return _require("graph", config.graph)


def partitioner_settings(config: RunConfig) -> PartitionerConfig:
    return _require("partitioner", config.partitioner)


def exchange_settings(config: RunConfig) -> ExchangeConfig:
    return _require("exchange", config.exchange)


def _require(name: str, group: Group | None) -> Group:
    """The group. Raises InvalidRequest where the run's executor reads no graph, so that the group is None."""
    if group is None:
        raise InvalidRequest(
            f"a run without {name}", rule="its executor trains a whole graph", legal="executor=full_graph"
        )
    return group


def shape_of(model: Model) -> GCN:
    """The network's shape. Raises Unsupported unless its layers are graph convolutions."""
    shape = model.shape.build()
    if not isinstance(shape, GCN):
        raise Unsupported(f"model={model.name} on a whole graph", rule="graph convolutions", legal="model=gcn")
    return shape
