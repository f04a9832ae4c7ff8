"""Models and batches for tests over every grid, schedule and transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from suite.conformance.fixtures import Case, Layers
from suite.conformance.reference import SEED
from suite.core.grid import Grid
from suite.core.protocols import World
from suite.engine.engine import Engine
from suite.models import gnmt, gpt, recurrent
from suite.workload import GNMT, ResidualLSTM, Transformer

__all__ = ["Case", "Layers", "all_cases", "engine_of", "gpt_case", "odd_case", "recurrent_cases", "shared_case", "text"]


class WithMask(nn.Module):
    """Passes on a float and an integer tensor: values in channels are tuples of several dtypes."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 5).to(dtype)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x)
        return y, (y > 0).long()


class UseMask(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3).to(dtype)

    def forward(self, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.linear(y * mask.to(y.dtype))


class TwoFloats(nn.Module):
    """Sends two floating tensors. The next layer does not use the second, whose gradient is therefore zero."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(x), x * 2


class FirstOnly(nn.Module):
    def forward(self, x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        return x


def text(shape: Transformer) -> Callable[[torch.Generator, int], tuple[torch.Tensor, torch.Tensor]]:
    def sample(generator: torch.Generator, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(0, shape.vocabulary, (samples, shape.sequence + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return sample


@cache
def gpt_case(name: str, dtype: str, *, tied: bool = True, dropout: float = 0.0, layers: int = 3) -> Case:
    shape = Transformer(layers, 16, 2, 6, 11, tied=tied, attention_bias=False)
    makers = gpt.layers(shape, dropout=dropout, dtype=dtype)
    return Case(f"{name}-{dtype}", makers, gpt.loss, text(shape), ties=gpt.ties(shape))


@cache
def shared_case(dtype: str) -> Case:
    """A GPT of six blocks with four ties: of both ends, of three blocks, and of two pairs that cross each other."""
    case = gpt_case("shared", dtype, layers=6)
    matrix, bias = "qkv.weight", "norm_1.bias"
    pairs = [(1, matrix, 3, matrix), (6, matrix, 3, matrix), (1, bias, 4, bias), (2, bias, 6, bias)]
    return replace(case, ties=[*case.ties, *pairs])


@cache
def odd_case(dtype: torch.dtype) -> Case:
    """Odd widths, tuples, an integer, an unused float, in-place activation, running statistics."""

    def sample(generator: torch.Generator, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            torch.randn(samples, 7, generator=generator, dtype=torch.float64).to(dtype),
            torch.randint(0, 3, (samples,), generator=generator),
        )

    layers: Layers = [
        lambda: nn.BatchNorm1d(7).to(dtype),
        lambda: WithMask(dtype),
        lambda: UseMask(dtype),
        lambda: nn.ReLU(inplace=True),
        TwoFloats,
        FirstOnly,
        lambda: nn.Linear(3, 3, bias=False).to(dtype),
    ]
    return Case(f"odd-{dtype}".replace("torch.", ""), layers, F.cross_entropy, sample, microbatch=3)


LSTM, TRANSLATION = ResidualLSTM(3, 5, 6, sequence=4, vocabulary=9, classes=3), GNMT(3, 2, 4, sequence=5, vocabulary=9)


def classified(generator: torch.Generator, samples: int) -> tuple[Any, Any]:
    return torch.randint(0, 9, (samples, 4), generator=generator), torch.randint(0, 3, (samples,), generator=generator)


def translated(generator: torch.Generator, samples: int) -> tuple[Any, Any]:
    """Sources and targets of one to four words."""
    rows = torch.randint(4, 9, (3, samples, 5), generator=generator)
    rows[:, :, 4] = 0
    rows[:, ::2, 2:] = 0
    return (rows[0], rows[1]), rows[2]


def recurrent_cases() -> list[Case]:
    """Networks of LSTMs: tuples with integers, and weights that torch flattens."""
    lstm, pairs = (
        (recurrent.layers(LSTM, dropout=0.3, dtype="float32"), recurrent.loss, classified),
        (gnmt.layers(TRANSLATION, dropout=0.3, dtype="float64"), gnmt.loss, translated),
    )
    return [Case("lstm-float32", *lstm), Case("gnmt-float64", *pairs)]


def engine_of(case: Case, world: World, grid: Grid, **more: Any) -> Engine:
    """An engine of a case's model on this rank, with the seed of the reference."""
    return Engine(
        case.layers,
        loss=case.loss,
        check_loss=0,  # the references average microbatches, also those of padded sentences
        grid=grid,
        world=world,
        **{"microbatch": case.microbatch, "tied": case.ties, "seed": SEED, **more},
    )


def all_cases() -> list[Case]:
    return [
        gpt_case("tied", "float64"),
        gpt_case("untied", "float64", tied=False),
        gpt_case("dropout", "float64", dropout=0.3),
        gpt_case("tied", "float32"),
        odd_case(torch.float64),
        odd_case(torch.float32),
    ]
