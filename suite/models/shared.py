"""What networks share: their loss and accuracy, factories of layers in one type, and the mark `draws_nothing`."""

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
# of a classifier, next to its loss and in percent as the paper prints them (PipeOptim V-B, Figures 2 and 3)
SCORES = ("top_1", "top_5")


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


def top(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Percent of samples whose class has the largest logit, and one of the five largest logits: shape (2,).

    With fewer than five classes all count. The result has the dtype of the logits, but at least single precision, as
    the loss has. Among equal logits any may count. A row with NaN counts for nothing.

    Args:
        logits: (batch, classes).
        targets: (batch,).
    """
    five = min(5, logits.shape[-1])
    places = logits.topk(five, dim=-1).indices
    right = (places == targets.unsqueeze(-1)) & logits.isfinite().all(dim=-1, keepdim=True)
    hits = torch.stack([right[:, :1].any(-1), right.any(-1)])
    return hits.to(torch.promote_types(logits.dtype, torch.float32)).mean(dim=1) * 100


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
