"""Decides which flat states an optimizer's config means, without the rule itself, which is made of torch.

Budgets and simulations are made in processes that load no torch; a test holds this to what the rules say themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def states_of(optimizer: Mapping[str, Any], *, predicts: bool) -> tuple[str, ...]:
    """The flat states of a rule, by its config alone: what suite.engine.optimizer.states_of says of the rule itself,
    which is made of torch. predicts: whether its drift is asked for, which may need the last gradient."""
    kind, momentum = optimizer["_target_"].rpartition(".")[2], float(optimizer.get("momentum") or 0.0)
    last = ("gradient_last",)
    if "Adam" in kind:
        return ("moment_1", "moment_2")
    if kind == "RMSprop":
        own: tuple[str, ...] = ("square", "velocity") if momentum else ("square",)
        return own + (last if predicts and not momentum else ())
    looks_on = optimizer.get("nesterov") or (momentum and optimizer.get("direction") == "next")
    return ("velocity", *(last if predicts and looks_on else ()))
