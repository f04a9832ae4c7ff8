"""Calls of layers, losses and scores, whose errors name the layer or the function in a note."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.core.protocols import Value
from suite.engine.callables import callable_name
from suite.engine.torch_api.model_layer import ModelLayer
from suite.engine.torch_api.structure import OutputStructure, Targets, call_on_outputs


def layer_note(layer: nn.Module, number: int, value: Value) -> str:
    """Note on an error of layer `number`."""
    return f"in {_layer_name(layer, number)}, of inputs {_listed(value)}"


def output_tensors(layer: nn.Module, number: int, output: Any) -> Value:
    """Output of layer `number`, as a tuple of tensors. Raises InvalidRequest for an output of another kind."""
    parts = output if isinstance(output, tuple | list) else [output]
    if not all(isinstance(part, torch.Tensor) for part in parts):
        raise InvalidRequest(
            f"{_layer_name(layer, number)}, returns ({', '.join(type(part).__name__ for part in parts)})",
            rule="a layer returns a tensor, or a tuple of tensors",
            legal="a module that returns the tensors which the next layer takes",
        )
    return tuple(parts)


def _layer_name(layer: nn.Module, number: int) -> str:
    begins = f"which begins at {layer.model_part.begins}" if isinstance(layer, ModelLayer) else type(layer).__name__
    return f"layer {number}, {begins}"


def call_loss(
    argument: str, function: Callable[..., Any], outputs: Value, targets: Targets, structure: OutputStructure | None
) -> Any:
    """Result of the user's loss or scores; see structure.call_on_outputs.

    Args:
        argument: Name of the engine's argument, loss or scores.
    """
    try:
        return call_on_outputs(function, outputs, targets, structure)
    except Exception as error:
        values = tuple(targets.values()) if isinstance(targets, dict) else targets
        error.add_note(
            f"in {argument}={callable_name(function)}, of outputs {_listed(outputs)} and targets {_listed(values)}: "
            f"{argument}(*outputs, *targets) of a list of layers, {argument}(output, *targets) of another module; "
            "targets in a dict are keyword arguments"
        )
        raise


def _listed(tensors: Iterable[torch.Tensor]) -> str:
    """Shape and dtype of each tensor."""
    return ", ".join(f"{tuple(each.shape)} {str(each.dtype).removeprefix('torch.')}" for each in tensors) or "none"
