"""Decides what model states exist, in which form and where, and how many bytes a rank needs. No tensors here."""

from suite.memory.budget import Budget
from suite.memory.layout import (
    Layout,
    State,
    Transform,
    compressed,
    dense,
    mixed,
    mixed_precision,
    offload,
    offloaded,
    pruned,
    resident,
    samo,
    sparse,
    zero_1,
)

__all__ = [
    "Budget",
    "Layout",
    "State",
    "Transform",
    "compressed",
    "dense",
    "mixed",
    "mixed_precision",
    "offload",
    "offloaded",
    "pruned",
    "resident",
    "samo",
    "sparse",
    "zero_1",
]
