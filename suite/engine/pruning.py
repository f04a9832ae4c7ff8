"""Pruning settings of an engine, and the state of a search for a mask."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.core.errors import InvalidRequest
from suite.core.members import missing_members
from suite.core.protocols import MaskMethod
from suite.core.values import format_value
from suite.pruning.validation import WHAT, check_sparsity, check_what

_CRITERION = "asked"  # entry of a search's state: sparsity and scope (its name stands in checkpoints)


class Pruning:
    """Pruning method of an engine and its criterion.

    Attributes:
        method: Draws the mask.
        sparsity: Share of the prunable weights that is removed, from 0 to below 1.
        what: Prunable weights: "weights" (matrices and kernels) or "all".
    """

    def __init__(self, method: MaskMethod, sparsity: float, what: str = "weights") -> None:
        if isinstance(method, type) or (missing := missing_members(method, MaskMethod)):
            rule = "an object of a class" if isinstance(method, type) else f"an object with {' and '.join(missing)}"
            raise InvalidRequest(
                f"Pruning(method={format_value(method)})", rule=rule, legal="Pruning(Magnitude(), sparsity=0.9)"
            )
        check_what(what)
        self.method, self.sparsity, self.what = method, check_sparsity(sparsity), what

    def search_state(self) -> dict[str, torch.Tensor]:
        """State from which another process continues a search; empty for a method without a search."""
        if not self.method.searches:
            return {}
        criterion = torch.tensor([self.sparsity, WHAT.index(self.what)], dtype=torch.float64)
        return {**self.method.state_dict(), _CRITERION: criterion}

    def check_search_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raises InvalidRequest for a search with another criterion or method. Changes nothing."""
        sparsity, scope = state[_CRITERION].tolist()
        if (sparsity, WHAT[int(scope)]) != (self.sparsity, self.what) or not self.method.searches:
            saved = f"sparsity={sparsity} and what={WHAT[int(scope)]}"
            ours = f"sparsity={self.sparsity} and what={self.what} by {type(self.method).__name__}"
            raise InvalidRequest(
                f"the checkpoint's search for a mask has {saved}, this engine's has {ours}",
                rule="a resumed search keeps its method, sparsity and what",
                legal=saved,
            )
        self.method.check(_without_criterion(state))

    def restore_search(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continue from a saved state that `check_search_state` has accepted."""
        self.method.load_state_dict(_without_criterion(state))


def _without_criterion(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The method's own entries of a search's state."""
    return {name: tensor for name, tensor in state.items() if name != _CRITERION}
