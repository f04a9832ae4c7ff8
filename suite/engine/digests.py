"""Digests of batches, which ranks compare as numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch

SAMPLE = 1024  # elements of each tensor, of all batches that are compared but the first
EVERY = 64  # batches, of which at least one is compared
_BYTES = 6  # of a digest: a double holds it exactly


def digest(*parts: Any) -> float:
    """A positive whole number, exact as a double."""
    hashed = hashlib.blake2b(digest_size=_BYTES)
    for part in parts:
        hashed.update(part)
    return float(1 + int.from_bytes(hashed.digest(), "big"))


def sizes_of(value: Any) -> Any:
    """Sizes and types of the tensors of a batch, or of several."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    if isinstance(value, list | tuple):
        return list(map(sizes_of, value))
    return type(value).__name__


def content_of(batch: Any, number: int, *, first: bool = False) -> float:
    """The digest of batch `number` of an engine, from 1: of all elements, of some, or 0 where it is not compared.

    first: whether it is the first of its call, and compared in any case"""
    if number & (number - 1) and number % EVERY and not first:
        return 0.0
    return digest(*(_elements(tensor, number) for tensor in _tensors(batch)))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


@torch.no_grad()
def _elements(tensor: torch.Tensor, number: int) -> Any:
    """The bytes of all elements for batch 1, of evenly spaced ones for others."""
    tensor = (tensor if tensor.layout is torch.strided else tensor.to_dense()).detach()
    flat = tensor.resolve_conj().resolve_neg().reshape(-1)
    step = 1 if number == 1 else -(-flat.numel() // SAMPLE)
    if step > 1:
        flat = flat[number % step :: step]
    return flat.contiguous().cpu().view(torch.uint8).numpy()
