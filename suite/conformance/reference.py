"""Reference gradients of one process without the engine, summed in the order of the grid.

The order is: microbatches within a replica, by index unless an order is given, then replicas by rank, then the ends of
a tied weight in the order of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import nn

from suite.conformance.fixtures import Case
from suite.engine.random_state import drawing, initial

SEED = 5


def as_tuple(value: Any) -> tuple[Any, ...]:
    """A tensor as a tuple of one."""
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


class Reference:
    """Plain modules, called layer by layer; a tie is several weights with one gradient.

    Args:
        case: Model and loss.
        replicas: Number of data-parallel replicas.
        half: Type of the passes; `masters` holds the initial weights in full precision.
    """

    def __init__(self, case: Case, replicas: int, half: torch.dtype | None = None) -> None:
        self.case, self.replicas, self.half = case, replicas, half
        self.layers: list[nn.Module] = []
        for number, make in enumerate(case.layers):
            with drawing(*initial(SEED, number)):
                self.layers.append(make())
        self.ties = [[self.layers[layer].get_parameter(name) for layer, name in ends] for ends in case.tied_ends]
        for first, *others in self.ties:
            for weight in others:
                weight.data.copy_(first.data)
        self.masters = [p.detach().clone() for p in self.parameters()]
        if half:
            for layer in self.layers:
                layer.to(half)

    def parameters(self, stage: range | None = None) -> list[nn.Parameter]:
        """Weights of the layers of a stage; by default of all layers."""
        layers = self.layers if stage is None else [self.layers[number] for number in stage]
        return [parameter for layer in layers for parameter in layer.parameters()]

    def _loss(self, rows: slice, batch: tuple[Any, Any], sample: int | None) -> torch.Tensor:
        value = tuple(part[rows].clone() for part in as_tuple(batch[0]))
        if self.half:
            value = tuple(part.to(self.half) if part.is_floating_point() else part for part in value)
        for number, layer in enumerate(self.layers):
            layer.train(sample is not None)
            if sample is None:
                value = as_tuple(layer(*value))
            else:
                with drawing(SEED, number, sample):
                    value = as_tuple(layer(*value))
        return self.case.loss(*value, *(part[rows] for part in as_tuple(batch[1])))

    def gradients(
        self, batch: tuple[Any, Any], first: int, scale: float = 1.0, order: Sequence[int] | None = None
    ) -> tuple[float, list[torch.Tensor]]:
        """Mean loss and gradients of a batch, both multiplied by `scale`.

        Each replica has its own running statistics; the reference keeps the statistics of replica 0.

        Args:
            batch: Inputs and targets.
            first: Number of the first microbatch.
            scale: Loss scale.
            order: Indices of a replica's microbatches in the order in which their gradients are added; None: by index.
        """
        size = self.case.microbatch
        count = as_tuple(batch[0])[0].shape[0] // (size * self.replicas)
        buffers = [b.clone() for layer in self.layers for b in layer.buffers()]
        saved_buffers = buffers
        total: list[torch.Tensor] | None = None
        loss_sum = self.largest = 0.0  # largest: the largest entry of any replica's sum
        for replica in range(self.replicas):
            for buffer, before in zip((b for la in self.layers for b in la.buffers()), buffers, strict=True):
                buffer.copy_(before)
            by_index: list[list[torch.Tensor]] = []
            for index in range(count):
                chunk = index * self.replicas + replica
                loss = self._loss(
                    slice(chunk * size, (chunk + 1) * size), batch, (first + index) * self.replicas + replica
                )
                factor = scale / (count * self.replicas)
                scaled = loss * factor if factor != 1.0 else loss
                grads = torch.autograd.grad(scaled, self.parameters(), allow_unused=True)
                by_index.append(
                    [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters(), grads, strict=True)]
                )
                loss_sum += float(scaled.detach().double())
            summed, *further = [by_index[index] for index in (range(count) if order is None else order)]
            for filled in further:
                summed = [a + b for a, b in zip(summed, filled, strict=True)]
            self.largest = max([self.largest, *(float(g.abs().max()) for g in summed if g.numel())])
            total = summed if total is None else [a + b for a, b in zip(total, summed, strict=True)]
            if replica == 0:
                saved_buffers = [b.clone() for layer in self.layers for b in layer.buffers()]
        assert total is not None
        for buffer, value in zip((b for la in self.layers for b in la.buffers()), saved_buffers, strict=True):
            buffer.copy_(value)
        index_of = {id(p): i for i, p in enumerate(self.parameters())}
        for tie in self.ties:
            indices = [index_of[id(weight)] for weight in tie]
            tied_sum = reduce(torch.add, [total[index] for index in indices])
            for index in indices:
                total[index] = tied_sum
        return loss_sum, total

    @torch.no_grad()
    def evaluate(self, batch: tuple[Any, Any]) -> float:
        """Mean loss of a validation batch."""
        size = self.case.microbatch
        count = as_tuple(batch[0])[0].shape[0] // size
        losses = [float(self._loss(slice(i * size, (i + 1) * size), batch, None)) for i in range(count)]
        return float(sum(losses) / count)
