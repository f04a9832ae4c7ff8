"""Digests of batches, which ranks compare as numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

SAMPLE = 1024  # elements per tensor that are compared; of the first batch all are
EVERY = 64  # the content of at least one batch in so many is compared
_BYTES = 6  # a double holds a digest of this size exactly


def digest(*parts: Any) -> float:
    """A positive whole number, exact as a double."""
    hashed = hashlib.blake2b(digest_size=_BYTES)
    for part in parts:
        hashed.update(part)
    return float(1 + int.from_bytes(hashed.digest(), "big"))


def sizes_of(value: Any) -> Any:
    """Sizes and dtypes of the tensors of a batch, or of a list of batches."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    if isinstance(value, list | tuple):
        return list(map(sizes_of, value))
    if isinstance(value, Mapping):
        return [(name, sizes_of(value[name])) for name in sorted(value, key=str)]
    return type(value).__name__


def content_of(batch: Any, number: int, *, first: bool = False) -> float:
    """Digest of the content of a batch; 0 if its content is not compared.

    Args:
        number: Number of the batch in its engine, from 1. All elements of batch 1 are compared, a sample of others.
        first: Whether it is the first batch of its call, which is always compared.
    """
    if number & (number - 1) and number % EVERY and not first:
        return 0.0
    return digest(*(_elements(tensor, number) for tensor in _tensors(batch)))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, Mapping):  # ranks may make it in another order
        for name in sorted(value, key=str):
            yield from _tensors(value[name])


@torch.no_grad()
def _elements(tensor: torch.Tensor, number: int) -> Any:
    """Bytes of all elements of batch 1, and of evenly spaced elements of other batches."""
    if tensor.is_meta:  # the slicer refuses it, on every rank
        return b""
    tensor = (tensor if tensor.layout is torch.strided else tensor.to_dense()).detach()
    flat = tensor.resolve_conj().resolve_neg().reshape(-1)
    step = 1 if number == 1 else -(-flat.numel() // SAMPLE)
    if step > 1:
        flat = flat[number % step :: step]
    return flat.contiguous().cpu().view(torch.uint8).numpy()
