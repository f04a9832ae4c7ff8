"""The calibrated constant of the GNN efficiency: it solves one equation, ours = one cell of the paper.

The share of a node's adapters that a broadcast's ring uses follows from the count at which the paper sees no gain in
sending less. The result stands in conf/stack/gnn.yaml; a test keeps both equal.

    suite claims fit
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from suite.papers.common.calibrate import find_root
from suite.papers.sparse_gnn.cluster_runs import GraphLab
from suite.papers.sparse_gnn.figures import AWARE, CAGNET, ratio
from suite.simulate.cost.efficiency import Stack

FITTED = {"network": "sparse_gnn.fig3.amazon_p16_no_gain"}  # the constant, and the cell that it was fitted to


def fitted(lab: GraphLab, published: Mapping[str, float]) -> Stack:
    """The stack with its constant the root of ours = the cell that FITTED names, whose words are: about equal."""

    def wrong(network: float) -> float:
        return ratio(lab.on(replace(lab.stack, network=network)), "amazon", 16, AWARE, CAGNET) - 1

    return replace(lab.stack, network=find_root("network", wrong, 0.02, 1.0))
