"""Validation of pruning settings: sparsity, scope, size of a weight.

It loads no torch: a parent process refuses by the same rules as a rank.
"""

from __future__ import annotations

from suite.core.errors import InvalidRequest, UnknownName

WHAT = ("weights", "all")
LARGEST = 2**31  # entries of a weight, which a 32-bit index must reach
REACHED = "below 2^31, which a 32-bit index reaches (SAMO III-B)"


def check_sparsity(sparsity: float) -> float:
    """Raise InvalidRequest unless the sparsity is at least 0 and below 1."""
    number = isinstance(sparsity, int | float) and not isinstance(sparsity, bool)
    if not number or not 0 <= sparsity < 1:
        raise InvalidRequest(f"sparsity={sparsity}", rule="a share from 0 to below 1", legal="sparsity=0.9")
    return float(sparsity)


def check_what(what: str) -> None:
    if what not in WHAT:
        raise UnknownName("what", str(what), WHAT)
