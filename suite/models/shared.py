"""What networks share: their loss, factories of layers in one type, and the mark of a loss without random numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import RLock
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

Make = Callable[[], nn.Module]
Function = TypeVar("Function", bound=Callable[..., object])
_LOCK = RLock()


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
    functions takes its place meanwhile; ranks that are threads wait for each other. A kernel keeps what `disable`
    returns; that of the stand-in is taken away at the end, so that a compiler that is loaded later excludes the kernel.
    """
    kernels: list[Any] = []

    def disable(kernel: Any, *_: object, **__: object) -> Any:
        kernels.append(kernel)
        return kernel

    with _LOCK, torch.device("meta"):
        if "torch._dynamo" in sys.modules:
            yield
            return
        stand_in: Any = SimpleNamespace(disable=disable, set_stance=lambda *_, **__: nullcontext())
        sys.modules["torch._dynamo"] = torch._dynamo = stand_in
        try:
            yield
        finally:
            del sys.modules["torch._dynamo"], torch._dynamo
            for kernel in kernels:
                vars(kernel).pop("__dynamo_disable", None)


def _converted(make: Make, dtype: str) -> nn.Module:
    return make().to(getattr(torch, dtype))
