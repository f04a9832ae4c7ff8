"""Decides the two constants of the gnn stack: each is the root of one equation, ours = one cell of the paper.

What messages between pairs reach of an adapter follows from the largest printed ratio, what a broadcast's ring reaches
from the count at which the paper sees no gain. The results stand in conf/stack/gnn.yaml; a test keeps both equal.

    python -m suite.clusters
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from suite.clusters.calibrate import root
from suite.clusters.graph_lab import GraphLab
from suite.clusters.sparse_gnn import AWARE, CAGNET, GVB, ratio
from suite.simulate.stack import Stack

FITTED = {  # a constant of the stack, and the cell that it was fitted to
    "pairs": "sparse_gnn.sec7.1.1.gvb_over_sa.protein",
    "network": "sparse_gnn.fig3.amazon_p16_no_gain",
}
ROUNDS = 3  # the constants move each other a little


def fitted(lab: GraphLab, published: Mapping[str, float]) -> Stack:
    """The stack with each constant the root of one equation, ours = the cell that FITTED names."""

    def wrong_pairs(stack: Stack) -> float:
        return ratio(lab.on(stack), "protein", 256, AWARE, GVB) - published[FITTED["pairs"]]

    def wrong_network(stack: Stack) -> float:
        return ratio(lab.on(stack), "amazon", 16, AWARE, CAGNET) - 1  # the cell has words: about equal

    stack = lab.stack
    for _ in range(ROUNDS):
        before = stack
        stack = replace(stack, pairs=root("pairs", lambda v: wrong_pairs(replace(before, pairs=v)), 0.02, 1.0))  # noqa: B023
        now = stack
        stack = replace(stack, network=root("network", lambda v: wrong_network(replace(now, network=v)), 0.02, 1.0))  # noqa: B023
    return stack
