"""Flat states of an optimizer, from its configuration.

Budgets and simulations run without torch. A test compares this table with the update rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from suite.core.values import Json


def states_of(rule: str, arguments: Mapping[str, Json], *, predicts: bool) -> tuple[str, ...]:
    """Names of the flat states of an optimizer. suite.engine.optim.optimizer.states_of returns the same for an object.

    Args:
        rule: Class path of the update rule.
        arguments: Arguments of the update rule.
        predicts: Whether weights are predicted. The drift may need the last gradient.
    """
    kind, momentum = rule.rpartition(".")[2], bool(arguments.get("momentum"))
    last = ("gradient_last",)
    if "Adam" in kind:
        return ("moment_1", "moment_2")
    if kind == "RMSprop":
        names: tuple[str, ...] = ("square", "velocity") if momentum else ("square",)
        return names + (last if predicts and not momentum else ())
    looks_on = arguments.get("nesterov") or (momentum and arguments.get("direction") == "next")
    return ("velocity", *(last if predicts and looks_on else ()))
