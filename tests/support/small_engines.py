"""Small networks, their batches, and plain training loops, with which tests compare an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from suite.comm.p2p.threads import Hub, LoopbackWorld
from suite.engine.random_state import undisturbed

Batch = tuple[torch.Tensor, torch.Tensor]


def mse_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean squared error in the precision of the target: torch 2.11 cannot differentiate one of two dtypes."""
    return functional.mse_loss(output.to(target.dtype), target)


def alone() -> LoopbackWorld:
    """The world of a single rank."""
    return LoopbackWorld(Hub(1), 0)


def linears(*widths: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[nn.Module]:
    """Linear layers from each width to the next."""
    with undisturbed():
        torch.manual_seed(seed)
        return [nn.Linear(wide, high, dtype=dtype) for wide, high in pairwise(widths)]


def normal_batches(
    count: int, samples: int, inputs: int, targets: int, dtype: torch.dtype = torch.float64, seed: int = 1
) -> list[Batch]:
    """Batches of normally distributed inputs and targets, whose numbers are drawn in float64."""
    data = torch.randn(
        count, samples, inputs + targets, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return [(rows[:, :inputs], rows[:, inputs:]) for rows in data.to(dtype)]


def train_plainly(
    model: Callable[..., Any],
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Any],
    loss: Callable[..., torch.Tensor] = mse_loss,
    before_step: Callable[[], object] = lambda: None,
    after_step: Callable[[], object] = lambda: None,
) -> list[float]:
    """Losses of a plain training loop of PyTorch on whole batches."""
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        error = loss(model(inputs), targets)
        error.backward()
        before_step()
        optimizer.step()
        after_step()
        losses.append(error.item())
    return losses
