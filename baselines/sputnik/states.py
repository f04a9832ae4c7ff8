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
    """All states on the device, of `entries` of which a mask keeps `kept` of `of`.

    Raises Unsupported for a mask of another system, whose layers store pruned entries as zeros.
    """
    if of and system != SYSTEM:
        what = f"memory=sparse under system={system}"
        raise Unsupported(what, rule="its layers are dense, and keep zeros", legal="memory=samo")
    return resident(entries - of + kept, moments, dtype, half=half)
