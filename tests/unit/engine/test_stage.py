"""Stage: values, gradients and recomputation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite.core.protocols import Read
from suite.engine.random_state import drawing
from suite.engine.stage import Stage
from tests.support.cases import TwoFloats
from tests.support.drawn import cells

KEEP, RECOMPUTE = Read(0, 0, "keep"), Read(0, 0, "recompute")
DOUBLE = torch.float64


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def make_stage(*kinds: Callable[[], nn.Module], **more: Any) -> Stage:
    layers = []
    for number, kind in enumerate(kinds):
        with drawing(1, number, 0):
            layers.append(kind().to(DOUBLE))
    return Stage(layers, seed=1, **more)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values: torch.Tensor) -> Any:
        return self.function(*values)


def test_gradients_of_unused_inputs_and_constant_outputs() -> None:
    ones = torch.ones(2, 3, dtype=DOUBLE)
    stage = make_stage(lambda: Function(lambda used, unused, count: used * 3))
    stage.forward(0, (noise(2, 3), noise(5), torch.arange(4)), sample=0, read=KEEP)
    used, unused = stage.backward(0, (ones,))
    assert torch.equal(used, 3 * ones)
    assert torch.equal(unused, torch.zeros(5, dtype=DOUBLE))

    stage = make_stage(lambda: Function(lambda x: (x * 2, torch.ones(3, dtype=DOUBLE))))
    stage.forward(0, (noise(2, 3),), sample=0, read=KEEP)
    (gradient,) = stage.backward(0, (ones, torch.full((3,), 9.0, dtype=DOUBLE)))
    assert torch.equal(gradient, 2 * ones)

    stage = make_stage(TwoFloats)
    stage.forward(0, (noise(2, 3),), sample=0, read=KEEP)
    with pytest.raises(ValueError, match="shorter"):
        stage.backward(0, (noise(2, 3),))


# -- activation checkpoints ------------------------------------------------------------------------------------------


class End(nn.Linear):
    """Layer that is not recomputed."""

    checkpointed = False


def chain(interval: int | None, *, last: bool = False) -> Stage:
    kinds: list[Callable[[], nn.Module]] = [
        lambda: End(5, 6),
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.4)),
        lambda: nn.BatchNorm1d(6),
        lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6)),
        nn.Tanh,
        lambda: End(6, 2),
    ]
    return make_stage(*kinds, loss=F.cross_entropy if last else None, checkpoint_interval=interval)


@pytest.mark.parametrize(("interval", "read", "last"), cells([1, 2, 4], [KEEP, RECOMPUTE], [False, True], n=5))
def test_activation_checkpointing_is_bit_identical(interval: int, read: Read, last: bool) -> None:
    """Two microbatches in flight, with backward passes in reverse order, dropout, statistics and an in-place layer."""
    targets = (torch.tensor([0, 1, 1, 0]),) if last else ()

    def run(stage: Stage, read: Read) -> list[torch.Tensor]:
        outputs = [stage.forward(i, (noise(4, 5, seed=i),), targets=targets, sample=i, read=read)[0] for i in (0, 1)]
        statistics = [b.clone() for b in stage.layers.buffers()]
        into = [stage.backward(i, () if last else (noise(4, 2, seed=9 + i),))[0] for i in (1, 0)]
        assert all(torch.equal(a, b) for a, b in zip(stage.layers.buffers(), statistics, strict=True))
        assert not stage.open
        return [*outputs, *into, *(p.grad for p in stage.layers.parameters()), *statistics]

    plain, checkpointed = run(chain(None, last=last), KEEP), run(chain(interval, last=last), read)
    assert len(plain) == len(checkpointed)
    assert all(torch.equal(a, b) for a, b in zip(plain, checkpointed, strict=True))
