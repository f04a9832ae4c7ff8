"""Model states of a rank: form, place and bytes, without tensors."""

from suite.memory.budget import Budget
from suite.memory.layout import (
    Layout,
    ModelStateSpec,
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
    "ModelStateSpec",
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
