"""Calibration of the GNN software efficiency: one constant from one published result.

The share of a node's adapters that a broadcast ring uses follows from the GPU count at which sparsity-awareness gains
nothing in the paper. The constant is in conf/efficiency/gnn.yaml; a test keeps both equal.

    suite claims fit
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from suite.papers.samo.calibrate import find_root
from suite.papers.sparse_gnn.cluster_runs import GraphLab
from suite.papers.sparse_gnn.figures import AWARE, CAGNET, ratio
from suite.simulate.cost.efficiency import Efficiency

FITTED = {"network": "sparse_gnn.fig3.amazon_p16_no_gain"}  # the constant, and the claim to which it is fitted


def fitted(lab: GraphLab, published: Mapping[str, float]) -> Efficiency:
    """The efficiency with the constant that makes SA and CAGNET equally fast in the claim that FITTED names."""

    def excess(network: float) -> float:
        return ratio(lab.with_efficiency(replace(lab.efficiency, network=network)), "amazon", 16, AWARE, CAGNET) - 1

    return replace(lab.efficiency, network=find_root("network", excess, 0.02, 1.0))
