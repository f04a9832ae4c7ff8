"""The list of rules: none is forgotten, and each says what it requires."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from suite.config.validate import LAUNCH, RANKS, TRAINING, Rule, batch, executor, launch, order, stream, training

ENTRIES = ("check_order", "nodes_have_places")  # called by others with more than a configuration
LISTED = {*RANKS, *TRAINING, *LAUNCH}


def rules(module: ModuleType) -> list[Rule]:
    """The public functions of a module that return nothing: they can only raise."""
    functions = [
        each for _, each in inspect.getmembers(module, inspect.isfunction) if each.__module__ == module.__name__
    ]
    return [
        each
        for each in functions
        if not each.__name__.startswith("_")
        and each.__name__ not in ENTRIES
        and inspect.signature(each).return_annotation == "None"
    ]


@pytest.mark.parametrize("module", [batch, executor, launch, order, stream, training])
def test_every_rule_is_applied_and_has_a_docstring(module: ModuleType) -> None:
    assert [each.__name__ for each in rules(module) if each not in LISTED] == []
    assert [each.__name__ for each in rules(module) if not each.__doc__] == []
    assert rules(module)
