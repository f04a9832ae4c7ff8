"""Pruning settings of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from suite.core.errors import InvalidRequest
from suite.core.members import missing_members
from suite.core.protocols import MaskMethod
from suite.core.values import format_value
from suite.pruning.validation import check_pruned_scope, check_sparsity


@dataclass(frozen=True)
class Pruning:
    """Pruning method of an engine, with the sparsity and the scope of its mask.

    Attributes:
        method: Method that draws the mask.
        sparsity: Fraction of the prunable weights that is removed; at least 0 and below 1.
        scope: Scope of the mask: "weights" (matrices and kernels) or "all".
    """

    method: MaskMethod
    sparsity: float
    scope: str = "weights"

    def __post_init__(self) -> None:
        is_class = isinstance(self.method, type)
        if is_class or (missing := missing_members(self.method, MaskMethod)):
            rule = "an object of a class" if is_class else f"an object with {' and '.join(missing)}"
            raise InvalidRequest(
                f"Pruning(method={format_value(self.method)})", rule=rule, legal="Pruning(Magnitude(), sparsity=0.9)"
            )
        check_pruned_scope(self.scope)
        check_sparsity(self.sparsity)
