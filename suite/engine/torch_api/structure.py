"""Structure of a model's output: nested tuples, lists, dicts and dataclasses of tensors.

Only tensors travel between stages. The last stage restores the structure before it calls the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch.fx import Proxy

from suite.core.protocols import Value

Targets = Value | dict[str, torch.Tensor]


@dataclass(slots=True)
class OutputStructure:
    """Structure of one value. Copies of a layer share it.

    Attributes:
        kind: Type of the value; None for a constant, torch.Tensor for a tensor.
        keys: Names of the parts: keys of a dict, fields of a dataclass. Empty for other types.
        parts: Structures of the parts, in order.
        constant: Value of a constant.
    """

    kind: type | None
    keys: tuple[Any, ...] = ()
    parts: tuple[OutputStructure, ...] = ()
    constant: Any = None

    def __deepcopy__(self, memo: Any) -> OutputStructure:
        return self

    def become(self, other: OutputStructure) -> None:
        """Take over the structure of another value."""
        self.kind, self.keys, self.parts, self.constant = other.kind, other.keys, other.parts, other.constant

    def restore(self, tensors: Iterator[torch.Tensor]) -> Any:
        """The value with the next of `tensors` in place of each tensor."""
        if self.kind is None:
            return self.constant
        if self.kind is torch.Tensor:
            return next(tensors)
        make: Callable[..., Any] = self.kind
        parts = [part.restore(tensors) for part in self.parts]
        if is_dataclass(self.kind):
            return make(**dict(zip(self.keys, parts, strict=True)))
        if issubclass(self.kind, Mapping):
            return make(zip(self.keys, parts, strict=True))
        return make(*parts) if "_fields" in vars(self.kind) else make(parts)  # a named tuple has _fields


def flatten(value: Any, leaves: list[Any]) -> OutputStructure:
    """The structure of a value; appends its tensors, or the proxies for them, to `leaves`."""
    kind = type(value)
    if isinstance(value, torch.Tensor | Proxy):
        leaves.append(value)
        return OutputStructure(torch.Tensor)
    if is_dataclass(value):  # a ModelOutput of transformers is a dataclass and a dict
        parts = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    elif isinstance(value, Mapping):
        parts = dict(value)
    elif isinstance(value, tuple | list):
        return OutputStructure(kind, (), tuple(flatten(part, leaves) for part in value))
    else:
        return OutputStructure(None, constant=value)
    return OutputStructure(kind, tuple(parts), tuple(flatten(part, leaves) for part in parts.values()))


def call_on_outputs(
    function: Callable[..., Any], outputs: Value, targets: Targets, structure: OutputStructure | None
) -> Any:
    """Call a loss or scores function: function(*outputs, *targets), and with a structure function(output, *targets).

    Targets by name are keyword arguments."""
    arguments = outputs if structure is None else (structure.restore(iter(outputs)),)
    return function(*arguments, **targets) if isinstance(targets, dict) else function(*arguments, *targets)
