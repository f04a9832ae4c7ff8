"""Test models for the laws: functions that make layers, a loss, and batches of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn

from suite.config.run import RunConfig
from suite.engine.system import network, tensors

Layers = list[Callable[[], nn.Module]]
SAMPLES = 1000  # batches of a data source, of which a generator names one


@dataclass(frozen=True, eq=False)
class Case:
    """A model as functions that make its layers, its loss, and batches of so many microbatches per replica. One case is
    itself alone, so that what is right of one is found once."""

    name: str
    layers: Layers
    loss: Callable[..., torch.Tensor]
    sample: Callable[[torch.Generator, int], tuple[Any, Any]]
    microbatch: int = 2
    ties: list[tuple[int, str, int, str]] = field(default_factory=list)

    def batch(self, number: int, microbatches: int, replicas: int) -> tuple[Any, Any]:
        generator = torch.Generator().manual_seed(1000 + number)
        return self.sample(generator, microbatches * replicas * self.microbatch)


def case_of(config: RunConfig, layers: Sequence[Any]) -> Case:
    """The model of a config, made of a system's layers, on batches of its data."""
    model, built = config.model, network(config)
    shape, data = model.shape.build(), config.data.source.build()

    @cache
    def drawn(number: int, samples: int) -> Any:
        return tensors(data.batch(number, size=samples, seed=config.seed, shape=shape))

    def sample(generator: torch.Generator, samples: int) -> tuple[Any, Any]:
        inputs, targets = drawn(int(torch.randint(0, SAMPLES, (1,), generator=generator)), samples)
        return inputs, targets

    return Case(model.name, list(layers), built.loss, sample, config.batch.microbatch, list(built.ties(shape)))
