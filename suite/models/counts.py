"""Parameters, flops and bytes of image networks, counted by running their layers on the meta device.

torch's automatic differentiation saves the tensors that are counted. A pass over many images costs nothing on the meta
device, and makes what does not grow with the images, such as the gradient of a weight, vanish in the mean per image.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from suite.config.modules import network_module
from suite.engine.memory_tracker import MemoryTracker
from suite.models.shared import on_meta
from suite.workload.transformer import LayerShape

NETWORK = "suite.models.convnet"  # builds the layers
MANY = 1 << 33  # images of a pass
PRODUCTS = (nn.Linear, nn.Conv2d)
TYPES = {2: "bfloat16", 4: "float32", 8: "float64"}


@cache
def layer_shapes(shape: Any, width: int) -> tuple[LayerShape, ...]:
    """Shape of every layer for one image. `width` is the bytes of one activation entry."""
    value = torch.empty(
        MANY, shape.colours, shape.image, shape.image, dtype=getattr(torch, TYPES[width]), device="meta"
    )
    modules, counted = _modules(shape, TYPES[width]), []
    for module in modules:
        value, layer = _counted(module, value, loss=max(4, width) if module is modules[-1] else 0)
        counted.append(layer)
    return tuple(counted)


@cache
def least_microbatch(shape: Any) -> int:
    """Smallest number of images that every batch norm accepts in training."""
    value = torch.empty(1, shape.colours, shape.image, shape.image, device="meta")
    try:
        with on_meta():
            nn.Sequential(*_modules(shape, "float32"))(value)
    except ValueError:  # of a batch norm that sees a single point
        return 2
    return 1


def _modules(shape: Any, dtype: str) -> list[nn.Module]:
    with on_meta():
        return [make() for make in network_module(NETWORK).layers(shape, dtype=dtype)]


def _counted(module: nn.Module, value: torch.Tensor, *, loss: int) -> tuple[torch.Tensor, LayerShape]:
    """The output of a layer and its shape. `loss` is the bytes of one log-probability after the last layer."""
    weights, width = [m.weight for m in module.modules() if isinstance(m, PRODUCTS)], value.element_size()
    saved: dict[int, int] = {}  # bytes by storage
    inputs_kept: dict[int, int] = {}  # entries of the inputs of products with a gradient, by storage
    flops = deferred = gradients = 0

    def product(layer: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        nonlocal flops, deferred, gradients
        count = 2 * layer.weight.numel() * output[0, 0].numel()
        flops += count
        if inputs[0].requires_grad:
            deferred += count
            gradients += output[0].numel()
            inputs_kept[_storage(inputs[0])] = inputs[0][0].numel()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[_storage(tensor)] = tensor.untyped_storage().nbytes() // MANY
        return tensor

    hooks = [m.register_forward_hook(product) for m in module.modules() if isinstance(m, PRODUCTS)]
    tracker = MemoryTracker()
    with tracker, on_meta(), saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(value)
        end, edge = tracker.live, get_gradient_edge(output)
    for hook in hooks:
        hook.remove()
    saved |= {_storage(value): value.untyped_storage().nbytes() // MANY}
    saved.pop(_storage(output), None)  # it belongs to the next layer, or to the end of a stage
    with tracker, on_meta():
        gradient = torch.empty_like(output, requires_grad=False)  # the caller holds it
        del output
        tracker.peak = tracker.live
        torch.autograd.backward(edge, gradient)
    entered, kept = value[0].numel() * width, sum(saved.values())
    classes = gradient.shape[-1] * loss
    return torch.empty_like(gradient, requires_grad=True), LayerShape(
        name=type(module).__name__,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        flops=flops,
        saved=kept + classes,
        output=gradient[0].numel() * width,
        working=max(2 * classes, max(end, tracker.peak) // MANY + entered - kept),
        weight_working=max(weight.numel() for weight in weights) * width,
        prunable=tuple(weight.numel() for weight in weights),
        deferred=deferred,
        owed=(sum(inputs_kept.values()) + gradients) * width,
    )


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
