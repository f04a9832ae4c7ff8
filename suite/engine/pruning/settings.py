"""Pruning settings of an engine, and the checkpoint state of a search for a mask."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.core.errors import InvalidRequest
from suite.core.members import missing_members
from suite.core.protocols import MaskMethod
from suite.core.values import format_value
from suite.pruning.validation import PRUNED_SCOPES, check_pruned_scope, check_sparsity

_CRITERION = "asked"  # entry for sparsity and scope in a search's state; the name is part of the checkpoint format


class Pruning:
    """Pruning method of an engine, with the sparsity and the scope of its mask.

    Attributes:
        method: Method that draws the mask.
        sparsity: Fraction of the prunable weights that is removed; at least 0 and below 1.
        scope: Scope of the mask: "weights" (matrices and kernels) or "all".
    """

    def __init__(self, method: MaskMethod, sparsity: float, scope: str = "weights") -> None:
        if isinstance(method, type) or (missing := missing_members(method, MaskMethod)):
            rule = "an object of a class" if isinstance(method, type) else f"an object with {' and '.join(missing)}"
            raise InvalidRequest(
                f"Pruning(method={format_value(method)})", rule=rule, legal="Pruning(Magnitude(), sparsity=0.9)"
            )
        check_pruned_scope(scope)
        self.method, self.sparsity, self.scope = method, check_sparsity(sparsity), scope

    def search_state(self) -> dict[str, torch.Tensor]:
        """State with which another process continues a search; empty for a method without a search."""
        if not self.method.searches:
            return {}
        criterion = torch.tensor([self.sparsity, PRUNED_SCOPES.index(self.scope)], dtype=torch.float64)
        return {**self.method.state_dict(), _CRITERION: criterion}

    def check_search_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raises InvalidRequest for a search with another sparsity, scope or method. Changes nothing."""
        sparsity, place = state[_CRITERION].tolist()
        if (sparsity, PRUNED_SCOPES[int(place)]) != (self.sparsity, self.scope) or not self.method.searches:
            saved = f"sparsity={sparsity} and scope={PRUNED_SCOPES[int(place)]}"
            ours = f"sparsity={self.sparsity} and scope={self.scope} by {type(self.method).__name__}"
            raise InvalidRequest(
                f"the checkpoint's search for a mask has {saved}, this engine's has {ours}",
                rule="a resumed search has the method, sparsity and scope of its start",
                legal=saved,
            )
        self.method.check(_without_criterion(state))

    def restore_search(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continue from a saved state that `check_search_state` has accepted."""
        self.method.load_state_dict(_without_criterion(state))


def _without_criterion(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The entries of a search's state that the method itself wrote."""
    return {name: tensor for name, tensor in state.items() if name != _CRITERION}
