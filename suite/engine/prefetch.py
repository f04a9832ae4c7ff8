"""Batches that are read, and copied to the device, one ahead of their use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from suite import accelerator


class Prefetched:
    """An iterable of batches that holds the next batch on the device while one is in use.

    On CUDA the copies run on a stream of their own, from pinned memory, and the default stream waits for a batch
    before it is used. On a CPU the next batch is read ahead.
    """

    def __init__(self, batches: Iterable[Any], device: torch.device) -> None:
        self.batches, self.device = batches, device

    def __len__(self) -> int:
        """Number of batches. Raises TypeError for an iterable without a length."""
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        stream = accelerator.stream(self.device)
        ahead: list[Any] = []
        for batch in self.batches:
            ahead.append(_copied(batch, self.device, stream))
            if len(ahead) > 1:
                yield _ready(ahead.pop(0), stream)
        for batch in ahead:
            yield _ready(batch, stream)


def _copied(batch: Any, device: torch.device, stream: torch.Stream | None) -> Any:
    """A copy of the batch on the device, as a loader may use its tensors again; the copies may be under way."""
    if stream is None:
        return map_tensors(batch, torch.clone)
    with stream:
        return map_tensors(batch, lambda tensor: accelerator.to(tensor, device))


def _ready(batch: Any, stream: torch.Stream | None) -> Any:
    """The batch, for use on the current stream."""
    if stream is not None:
        current = torch.accelerator.current_stream(stream.device)
        current.wait_stream(stream)
        map_tensors(batch, lambda tensor: tensor.record_stream(current))
    return batch


def map_tensors(value: Any, function: Any) -> Any:
    """`function` of every tensor in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: map_tensors(element, function) for name, element in value.items()}
    if isinstance(value, list | tuple):
        parts = [map_tensors(element, function) for element in value]
        return type(value)(*parts) if "_fields" in vars(type(value)) else type(value)(parts)  # a named tuple
    return value
