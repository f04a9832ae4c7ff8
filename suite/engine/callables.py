"""Functions and classes of the user: their names, and whether they take some arguments."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from torch import nn


def callable_name(function: Any) -> str:
    """The name of a function, or the class name of any other object."""
    while isinstance(function, partial):
        function = function.func
    is_named = isinstance(function, type) or inspect.isroutine(function)
    return str(function.__name__ if is_named else type(function).__name__)


def binding_error(function: Any, *args: Any, **named: Any) -> TypeError | None:
    """The error of a call with these arguments; None if the function takes them, or does not show its signature."""
    try:
        inspect.signature(function.forward if isinstance(function, nn.Module) else function).bind(*args, **named)
    except TypeError as error:
        return error
    except ValueError:  # a builtin function has no signature
        return None
    return None
