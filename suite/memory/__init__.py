"""Decides what model states exist, in which form and where, and how many bytes a rank needs. No tensors here."""

from suite.memory.budget import Budget
from suite.memory.layout import Layout, State, Transform, dense, mixed_precision, offload, samo

__all__ = [
    "Budget",
    "Layout",
    "State",
    "Transform",
    "dense",
    "mixed_precision",
    "offload",
    "samo",
]
