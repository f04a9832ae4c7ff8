"""Printed costs of a sparse product (Sections 4.1 and 4.2 of the sparsity-aware GNN paper).

alpha: seconds per message; beta: seconds per word; width: words per row.
"""

from __future__ import annotations

import math

import numpy as np

from suite.gnn.plan import Volumes
from suite.simulate.network.network import ring_volume


def bound_1d(volumes: Volumes, width: int, *, alpha: float, beta: float) -> float:
    """Section 4.1: P - 1 messages, each as long as the longest."""
    others = volumes.placement.processes - 1
    return alpha * others + others * volumes.max_pair * width * beta


def bound_1_5d(volumes: Volumes, width: int, *, alpha: float, beta: float) -> float:
    """Section 4.2 without the all-reduce (G2): s = P / c^2 stages of the longest message, s log s latencies."""
    stages = len(volumes.placement.stages(0))
    return alpha * stages * math.log(stages) + stages * volumes.max_pair * width * beta


def bound_sum(volumes: Volumes, width: int, *, beta: float) -> float:
    """The all-reduce that Section 4.2 leaves out (G2): 2 (c - 1) / c times the words of a block row."""
    return ring_volume(float(np.max(volumes.rows, initial=0)) * width, volumes.placement.replication) * beta
