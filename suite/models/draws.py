"""Mark of functions that use no random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


def draws_nothing(function: Function) -> Function:
    """State with `draws` that a loss uses no random numbers, so that the engine seeds and restores no generator."""
    function.draws = False  # type: ignore[attr-defined]  # of a function
    return function
