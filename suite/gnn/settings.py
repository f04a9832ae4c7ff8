"""Config groups that only full-graph runs have."""

from __future__ import annotations

from typing import TypeVar

from suite.config.network import Model
from suite.core.errors import Unsupported
from suite.workload.gcn import GCN

Group = TypeVar("Group")


def required(group: Group | None) -> Group:
    """A group that only runs on a whole graph have, such as config.graph, or a key that the parent process sets."""
    assert group is not None, "a rule of the config gives a run on a graph an executor that reads one"
    return group


def shape_of(model: Model) -> GCN:
    """The network's shape. Raises Unsupported unless its layers are graph convolutions."""
    shape = model.shape.build()
    if not isinstance(shape, GCN):
        raise Unsupported(f"model={model.name} on a whole graph", rule="graph convolutions", legal="model=gcn")
    return shape
