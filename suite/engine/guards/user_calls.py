"""Calls of layers, losses and scores, whose errors name the layer or the function.

Where the arguments cannot fit the function, where weights and inputs are on different devices and where they have
different dtypes, the engine raises InvalidRequest. Any other error of user code is raised as it is, with a note on
the arguments. A check runs only after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.core.protocols import Value
from suite.engine.callables import binding_error, callable_name
from suite.engine.torch_api.model_layer import ModelLayer
from suite.engine.torch_api.structure import OutputStructure, Targets, call_on_outputs

_LAYER_RULE = "a layer takes the tensors that the layer before it returns, and the first layer the inputs of a batch"
_LAYER_LEGAL = "train_batch((inputs, targets)), or predict(inputs)"
_LOSS_RULE = (
    "a list of layers calls {0}(*outputs, *targets), another module {0}(output, *targets); targets in a dict are "
    "keyword arguments"
)


def call_layer(layer: nn.Module, number: int, value: Value) -> Value:
    """Output of layer `number`, as a tuple of tensors.

    Raises InvalidRequest for inputs that do not fit the layer, and for an output of another kind."""
    try:
        output = layer(*value)
    except Exception as error:
        if refusal := _layer_refusal(layer, number, value, error):
            raise refusal from error
        error.add_note(f"in {_layer_name(layer, number)}, of inputs {_listed(value)}")
        raise
    tensors = (output,) if isinstance(output, torch.Tensor) else output
    if not isinstance(tensors, tuple | list) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise InvalidRequest(
            f"{_layer_name(layer, number)}, returns {_described(output)}",
            rule="a layer returns a tensor, or a tuple of tensors",
            legal="a module that returns the tensors which the next layer takes",
        )
    return tuple(tensors)


def call_loss(
    argument: str, function: Callable[..., Any], outputs: Value, targets: Targets, structure: OutputStructure | None
) -> Any:
    """Result of the user's loss or scores; see structure.call_on_outputs.

    Args:
        argument: Name of the engine's argument, loss or scores.

    Raises InvalidRequest for a function that does not take the outputs and the targets."""
    try:
        return call_on_outputs(function, outputs, targets, structure)
    except Exception as error:
        name = f"{argument}={callable_name(function)}"
        by_name = targets if isinstance(targets, dict) else {}
        by_position = (1 if structure is not None else len(outputs)) + len(targets) - len(by_name)
        if isinstance(error, TypeError) and binding_error(function, *range(by_position), **by_name):
            raise InvalidRequest(
                f"{name} fails: {error}",
                rule=_LOSS_RULE.format(argument),
                legal=f"{argument}=lambda output, target: torch.nn.functional.cross_entropy(output, target)",
            ) from error
        values = tuple(targets.values()) if isinstance(targets, dict) else targets
        error.add_note(f"in {name}, of outputs {_listed(outputs)} and targets {_listed(values)}")
        raise


def _layer_refusal(layer: nn.Module, number: int, value: Value, error: Exception) -> InvalidRequest | None:
    """The refusal of inputs that cannot fit the layer; None if the error has another reason."""
    name, weights = _layer_name(layer, number), [*layer.parameters(), *layer.buffers()]
    if isinstance(error, TypeError) and binding_error(layer, *value):
        return InvalidRequest(f"{name}, gets {len(value)} tensors: {error}", rule=_LAYER_RULE, legal=_LAYER_LEGAL)
    if type(error) in (RuntimeError, NotImplementedError):
        for of_weights, of_inputs, legal in (
            (_devices(weights), _devices(value), "model.to(device)"),
            (_dtypes(weights), _dtypes(value), "model.to(inputs.dtype)"),
        ):
            if of_weights and of_inputs and not of_weights & of_inputs:
                return InvalidRequest(
                    f"{name}, has weights {_joined(of_weights)} and inputs {_joined(of_inputs)}",
                    rule="weights and inputs have one device and one dtype, which stay the same while an engine trains",
                    legal=f"{legal} before the engine is made, or other inputs",
                )
    return None


def _joined(words: set[str]) -> str:
    return " and ".join(sorted(words))


def _devices(tensors: Iterable[torch.Tensor]) -> set[str]:
    return {f"on {tensor.device}" for tensor in tensors}


def _dtypes(tensors: Iterable[torch.Tensor]) -> set[str]:
    return {f"in {_dtype(tensor)}" for tensor in tensors if tensor.is_floating_point()}


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _layer_name(layer: nn.Module, number: int) -> str:
    if isinstance(layer, ModelLayer):
        return f"layer {number}, which begins at {layer.model_part.begins}"
    return f"layer {number}, {type(layer).__name__}"


def _described(output: Any) -> str:
    """Kinds of an output's parts."""
    if isinstance(output, tuple | list):
        return f"({', '.join(type(part).__name__ for part in output)})"
    return type(output).__name__


def _listed(tensors: Iterable[torch.Tensor]) -> str:
    """Shape and dtype of each tensor."""
    return ", ".join(f"{tuple(tensor.shape)} {_dtype(tensor)}" for tensor in tensors) or "none"
