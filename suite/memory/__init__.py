"""Model states: form, place and bytes per rank.

No tensors.
"""

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
