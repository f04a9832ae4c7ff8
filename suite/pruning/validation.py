"""Validation of pruning settings: sparsity, scope, size of a weight.

This module does not load torch, so the process that starts ranks applies the same rules as a rank.
"""

from __future__ import annotations

from suite.core.errors import InvalidRequest, UnknownName

PRUNED_SCOPES = ("weights", "all")
LARGEST = 2**31  # a pruned weight has fewer entries, because its indices are int32
REACHED = "fewer than 2^31 entries, the range of a 32-bit index (SAMO III-B)"


def check_sparsity(sparsity: float) -> None:
    """Raise InvalidRequest unless the sparsity is at least 0 and below 1."""
    number = isinstance(sparsity, int | float) and not isinstance(sparsity, bool)
    if not number or not 0 <= sparsity < 1:
        raise InvalidRequest(f"sparsity={sparsity}", rule="at least 0 and below 1", legal="sparsity=0.9")


def check_pruned_scope(scope: str) -> None:
    if scope not in PRUNED_SCOPES:
        raise UnknownName("scope", str(scope), PRUNED_SCOPES)
