"""Flat states of an optimizer, from its configuration and without torch.

Budgets and simulations run in processes that load no torch. A test compares this table with the rules themselves."""

from __future__ import annotations

from collections.abc import Mapping

from suite.core.values import Json


def states_of(rule: str, arguments: Mapping[str, Json], *, predicts: bool) -> tuple[str, ...]:
    """The flat states of an optimizer, by the class path and the arguments of its rule.

    suite.engine.optim.optimizer.states_of gives the same for the rule itself, which is made of torch. predicts:
    whether the rule's drift is asked for, which may need the last gradient."""
    kind, momentum = rule.rpartition(".")[2], bool(arguments.get("momentum"))
    last = ("gradient_last",)
    if "Adam" in kind:
        return ("moment_1", "moment_2")
    if kind == "RMSprop":
        names: tuple[str, ...] = ("square", "velocity") if momentum else ("square",)
        return names + (last if predicts and not momentum else ())
    looks_on = arguments.get("nesterov") or (momentum and arguments.get("direction") == "next")
    return ("velocity", *(last if predicts and looks_on else ()))
