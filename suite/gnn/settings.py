"""Keys that only whole-graph runs have."""

from __future__ import annotations

from typing import TypeVar

from suite.config.graphs import ExchangeConfig, GraphConfig, PartitionerConfig
from suite.config.network import Model
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, Unsupported
from suite.workload.gcn import GCN

Group = TypeVar("Group", GraphConfig, PartitionerConfig, ExchangeConfig)


def graph_settings(config: RunConfig) -> GraphConfig:
    return _given("graph", config.graph)


def partitioner_settings(config: RunConfig) -> PartitionerConfig:
    return _given("partitioner", config.partitioner)


def exchange_settings(config: RunConfig) -> ExchangeConfig:
    return _given("exchange", config.exchange)


def _given(name: str, group: Group | None) -> Group:
    """A run has these groups where its executor reads them. Raises InvalidRequest where it does not."""
    if group is None:
        raise InvalidRequest(
            f"a run without {name}", rule="its executor trains a whole graph", legal="executor=full_graph"
        )
    return group


def shape_of(model: Model) -> GCN:
    """Raises Unsupported for a network whose layers are no graph convolutions."""
    shape = model.shape.build()
    if not isinstance(shape, GCN):
        raise Unsupported(f"model={model.name} on a whole graph", rule="graph convolutions", legal="model=gcn")
    return shape


def ways(model: Model) -> tuple[str, str]:
    """model.order and model.epoch: order of a layer's products, and products of an epoch (suite.workload.gcn.how)."""
    return model.order, model.epoch
