"""Decides how one stage computes an op: its layers forward, their backward, and what is kept in between.

A value is a tuple of tensors. Every floating tensor of a forward's value has one gradient in the backward's (zeros
where the stage does not use it); integers pass forward only. Loss divisors are the caller's: the stage scales as told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from suite.core.errors import Refused
from suite.core.protocols import Read, Value
from suite.engine.random import Stream, generators


class _Open(NamedTuple):
    """What one forward pass left for its backward pass."""

    inputs: Value
    outputs: Value | None  # None: recompute
    targets: Value
    sample: int
    scale: float


def as_value(item: torch.Tensor | Sequence[torch.Tensor]) -> Value:
    return (item,) if isinstance(item, torch.Tensor) else tuple(item)


class Stage:
    """Consecutive layers of the model, numbered from `first_layer`; the last stage has a `loss`."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        *,
        first_layer: int = 0,
        seed: int = 0,
        loss: Callable[..., torch.Tensor] | None = None,
    ) -> None:
        self.layers = nn.ModuleList(layers)
        # a layer may say that it draws no random numbers (`draws = False`), which spares seeding before each pass
        self.streams = [
            Stream(seed, number) if getattr(layer, "draws", True) else None
            for number, layer in enumerate(self.layers, first_layer)
        ]
        self.loss = loss
        self.writes = bool(layers) and any(getattr(module, "inplace", False) for module in layers[0].modules())
        self.open: dict[int, _Open] = {}

    def _through(self, inputs: Value, sample: int | None) -> Value:
        training = sample is not None
        if self.layers.training != training:
            self.layers.train(training)
        value = inputs
        if self.writes:  # a first layer such as ReLU(inplace=True): no leaf, kept message or user's batch is its own
            value = tuple(tensor.clone() for tensor in inputs)
        if sample is None:
            for layer in self.layers:
                value = as_value(layer(*value))
            return value
        with generators:
            for layer, stream in zip(self.layers, self.streams, strict=True):
                if stream is not None:
                    stream.stand_at(sample)
                value = as_value(layer(*value))
        return value

    def _outputs(self, inputs: Value, targets: Value, sample: int | None, scale: float) -> Value:
        value = self._through(inputs, sample)
        if self.loss is None:
            return value
        loss = self.loss(*value, *targets)
        if loss.numel() != 1:
            raise Refused(f"a loss of shape {tuple(loss.shape)}", rule="one number, the mean over the microbatch")
        return (loss * scale if scale != 1.0 else loss,)

    def forward(
        self, index: int, inputs: Value, *, targets: Value = (), sample: int, scale: float = 1.0, read: Read
    ) -> Value:
        """The output of microbatch `index`; on the last stage the loss times `scale`."""
        inputs = tuple(_leaf(tensor) if tensor.is_floating_point() else tensor for tensor in inputs)
        if read.graph == "recompute":
            with torch.no_grad():
                outputs = self._outputs(inputs, targets, sample, scale)
            self.open[index] = _Open(inputs, None, targets, sample, scale)
        else:
            outputs = self._outputs(inputs, targets, sample, scale)
            self.open[index] = _Open(inputs, outputs, targets, sample, scale)
        return tuple(tensor.detach() for tensor in outputs)

    def backward(self, index: int, gradients: Value) -> Value:
        """The gradients of microbatch `index`'s inputs; weights add theirs to `.grad`. None given on the last stage."""
        inputs, outputs, targets, sample, scale = self.open.pop(index)
        statistics = []
        if outputs is None:
            statistics = [(buffer, buffer.clone()) for buffer in self.layers.buffers()]
            outputs = self._outputs(inputs, targets, sample, scale)
        floating = [tensor for tensor in outputs if tensor.is_floating_point()]
        if self.loss is not None:
            torch.autograd.backward(floating[0])
        else:
            paired = [(o, g) for o, g in zip(floating, gradients, strict=True) if o.requires_grad]
            torch.autograd.backward([o for o, _ in paired], [g for _, g in paired])
        for buffer, before in statistics:
            buffer.copy_(before)  # running statistics count a forward pass once
        return tuple(
            torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            for tensor in inputs
            if tensor.is_floating_point()
        )

    @torch.no_grad()
    def evaluate(self, inputs: Value, targets: Value = ()) -> Value:
        """The output, or on the last stage the loss, changing nothing."""
        return self._outputs(inputs, targets, None, 1.0)


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()
