"""Model states of a network of sparse layers: the unpruned values only.

The indices are not included. Their size depends on the widths of the layers, and the record counts them.
"""

from __future__ import annotations

from collections.abc import Sequence

from suite.core.errors import Unsupported
from suite.memory.layout import Layout, resident

SYSTEM = "sputnik"


def sparse(
    *,
    entries: int,
    moments: Sequence[str],
    dtype: str = "float32",
    half: str | None = None,
    kept: int = 0,
    of: int = 0,
    system: str = SYSTEM,
) -> Layout:
    """All states in device memory.

    Args:
        entries: Entries of all weights.
        moments: Names of the optimizer moments.
        dtype: Type of the weights.
        half: Half-precision type of mixed precision; None without it.
        kept: Number of prunable entries that the mask keeps.
        of: Number of prunable entries; 0 without a mask.
        system: Name of the system.

    Raises:
        Unsupported: Another system has a mask. Its dense layers store pruned entries as zeros.
    """
    if of and system != SYSTEM:
        what = f"memory=sparse with system={system}"
        rule = f"only system={SYSTEM} has sparse layers; dense layers store pruned entries as zeros"
        raise Unsupported(what, rule=rule, legal="memory=samo")
    return resident(entries - of + kept, moments, dtype, half=half)
