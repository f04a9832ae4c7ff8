"""Test models for the laws: functions that make layers, a loss, and batches of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn

from suite.config.run import RunConfig
from suite.core.errors import Fault, SuiteError
from suite.core.reasons import format_traceback, headline, raised_in_user_code
from suite.engine.system import network, to_tensors
from suite.engine.ties import Ends, join_pairs

Layers = list[Callable[[], nn.Module]]
EPOCHS = (6, 4)  # batches from drain to drain: the second epoch begins with optimizer states
SAMPLES = 1000  # batches of a data source, among which a generator selects one


@dataclass(frozen=True, eq=False)
class Case:
    """A model with its loss and batches. Cases compare by identity, so that expected values are cached per case.

    Attributes:
        name: Name in messages.
        layers: Functions that make the layers, in order.
        loss: Mean loss of outputs and targets.
        sample: Inputs and targets of a number of samples, selected by a generator.
        microbatch: Samples per microbatch.
        ties: Tied weights, as pairs (layer, name, other layer, name).
    """

    name: str
    layers: Layers
    loss: Callable[..., torch.Tensor]
    sample: Callable[[torch.Generator, int], tuple[Any, Any]]
    microbatch: int = 2
    ties: list[tuple[int, str, int, str]] = field(default_factory=list)

    @property
    def tied_ends(self) -> tuple[Ends, ...]:
        """Ends of each tied weight, in the order of layers."""
        return join_pairs(((first, name), (other, other_name)) for first, name, other, other_name in self.ties)

    def batch(self, number: int, microbatches: int, replicas: int) -> tuple[Any, Any]:
        """The batch of a number, with this many microbatches per replica."""
        generator = torch.Generator().manual_seed(1000 + number)
        return self.sample(generator, microbatches * replicas * self.microbatch)


def case_of(config: RunConfig, layers: Sequence[Any]) -> Case:
    """The model of a config with the layers of a system, on batches of the config's data."""
    model, module = config.model, network(config)
    shape, data = model.shape.build(), config.data.source.build()

    @cache
    def batch(number: int, samples: int) -> Any:
        return to_tensors(data.batch(number, size=samples, seed=config.seed, shape=shape))

    def sample(generator: torch.Generator, samples: int) -> tuple[Any, Any]:
        inputs, targets = batch(int(torch.randint(0, SAMPLES, (1,), generator=generator)), samples)
        return inputs, targets

    return Case(model.name, list(layers), module.loss, sample, config.batch.microbatch, list(module.ties(shape)))


def reason_of(error: BaseException) -> str:
    """The error's message; for an unexpected error also its type, and its place in the user's file."""
    text = str(error).strip()
    if isinstance(error, Fault):
        return headline(text)
    if raised_in_user_code(error) and not isinstance(error, SuiteError | AssertionError):
        return headline(format_traceback(error))
    intended = isinstance(error, AssertionError) and text
    return text if intended else f"{type(error).__name__}: {text or 'no reason given'}"


def epochs_of(config: RunConfig) -> list[list[Any]]:
    """Batches of two epochs of the config's data."""
    data, shape = config.data.source.build(), config.model.shape.build()
    batches = iter(range(sum(EPOCHS)))
    return [
        [data.batch(next(batches), size=config.batch.size, seed=config.seed, shape=shape) for _ in range(count)]
        for count in EPOCHS
    ]
