"""Printed costs of a sparse product (Sections 4.1 and 4.2 of the sparsity-aware GNN paper).

alpha: seconds per message; beta: seconds per word; width: words per row.
"""

from __future__ import annotations

import math

from suite.gnn.plan import Volumes


def bound_1d(volumes: Volumes, width: int, *, alpha: float, beta: float) -> float:
    """Section 4.1: P - 1 messages, each as long as the longest."""
    others = volumes.placement.processes - 1
    return alpha * others + others * volumes.max_pair * width * beta


def bound_1_5d(volumes: Volumes, width: int, *, alpha: float, beta: float) -> float:
    """Section 4.2 without the all-reduce (G2): s = P / c^2 stages of the longest message, s log s latencies."""
    stages = len(volumes.placement.stages(0))
    return alpha * stages * math.log(stages) + stages * volumes.max_pair * width * beta
