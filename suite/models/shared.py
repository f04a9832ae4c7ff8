"""What networks share: their loss, factories of layers in one type, and the mark of a loss without random numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import RLock
from types import SimpleNamespace
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import nn

Make = Callable[[], nn.Module]
Function = TypeVar("Function", bound=Callable[..., object])
_LOCK = RLock()
_COMPILER = SimpleNamespace(disable=lambda kernel, *_, **__: kernel, set_stance=lambda *_, **__: nullcontext())


def draws_nothing(function: Function) -> Function:
    """State with `draws` that a loss uses no random numbers, so that the engine seeds and restores no generator."""
    function.draws = False  # type: ignore[attr-defined]  # of a function
    return function


@draws_nothing
def cross_entropy(logits: torch.Tensor, targets: torch.Tensor, *, ignored: int = -100) -> torch.Tensor:
    """Mean cross entropy in nats, at least in single precision; targets `ignored` do not count.

    logits: (n, classes); targets: (n,)
    """
    return F.cross_entropy(logits.float() if logits.dtype.itemsize < 4 else logits, targets, ignore_index=ignored)


def factories(makers: Iterable[Make], dtype: str) -> list[Make]:
    """Makers of layers of a type. Weights are drawn in single precision, so that every type has the same numbers."""
    return [partial(_converted, make, dtype) for make in makers]


@contextmanager
def on_meta() -> Iterator[None]:
    """Make tensors on the meta device.

    Its kernels import torch's compiler, only to exclude themselves from it: 1.7 s in every rank. A stand-in of two
    functions takes its place meanwhile; ranks that are threads wait for each other.
    """
    with _LOCK, torch.device("meta"):
        absent = "torch._dynamo" not in sys.modules
        if absent:
            sys.modules["torch._dynamo"] = torch._dynamo = _COMPILER  # type: ignore[assignment]
        try:
            yield
        finally:
            if absent:
                del sys.modules["torch._dynamo"], torch._dynamo


def _converted(make: Make, dtype: str) -> nn.Module:
    return make().to(getattr(torch, dtype))
