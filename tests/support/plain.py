"""A training script in plain PyTorch, and the same one on an engine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from suite import Engine, Grid
from suite.core.errors import InvalidRequest, MissingDependency

GRIDS = (Grid(), Grid(inter=2), Grid(data=2), Grid(inter=2, data=2))
Weights = dict[str, torch.Tensor]
LARGEST = 100.0  # loss of a script that does not diverge
ROUNDED = 1e-7  # of weights: a step of Adam divides by the root of a gradient that may be rounding alone


def mean_square(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output, target)


def sgd(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights.parameters(), lr=0.05, momentum=0.9)


def rows(count: int = 4, size: int = 8, width: int = 4, seed: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of random inputs and targets in float64."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(size, width, generator=generator, dtype=torch.float64)  # noqa: E731
    return [(draw(), draw()) for _ in range(count)]


@dataclass(frozen=True)
class Script:
    """What a training script passes to an engine, and does between two batches.

    Attributes:
        make: Makes the model, always with the same weights.
        between: Called with the model, the number of the next batch and a list of past losses.
        options: Further arguments of the engine.
    """

    make: Callable[[], nn.Module]
    loss: Callable[..., Any] = mean_square
    optimizer: Callable[[Any], torch.optim.Optimizer] = sgd
    batches: Sequence[tuple[Any, Any]] = field(default_factory=rows)
    microbatch: int = 2
    between: Callable[[nn.Module, int], None] = lambda model, number: None
    options: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> tuple[list[float], Weights]:
        """Losses and weights of a plain loop over microbatches."""
        model = self.make()
        optimizer, losses = self.optimizer(model), []
        for number, (inputs, targets) in enumerate(copy.deepcopy(self.batches)):
            self.between(model, number)
            optimizer.zero_grad()
            parts = list(zip(inputs.split(self.microbatch), targets.split(self.microbatch), strict=True))
            total = 0.0
            for part, target in parts:
                loss = self.loss(model(part), target) / len(parts)
                loss.backward()
                total += loss.item()
            optimizer.step()
            losses.append(total)
        return losses, {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    def engine(self, grid: Grid) -> tuple[list[float], Weights] | str:
        """Losses and weights of an engine, or its refusal."""
        model = self.make()
        try:
            options = {"microbatch": self.microbatch, "grid": grid, **self.options}
            with Engine(model, loss=self.loss, optimizer=self.optimizer, **options) as engine:
                losses = []
                for number, batch in enumerate(copy.deepcopy(self.batches)):
                    self.between(model, number)
                    losses.append(engine.train_batch(batch))
                return losses, {name: tensor.clone() for name, tensor in engine.state_dict().items()}
        except (InvalidRequest, MissingDependency) as refusal:
            return str(refusal)

    @cached_property
    def right(self) -> tuple[list[float], Weights] | str:
        """Losses and weights of the plain loop, or why it is no script."""
        try:
            losses, weights = self.plain()
        except (RuntimeError, ValueError) as error:
            return f"no script: {error}"
        return (losses, weights) if max(losses) < LARGEST else "no script: it diverges"

    def verdict(self, grid: Grid, tolerance: float = 1e-11) -> str:
        """Equal, refused with the sentence, different with the first difference, or what a plain loop raises."""
        if isinstance(self.right, str):
            return self.right
        (expected, of_model), found = self.right, self.engine(grid)
        if isinstance(found, str):
            return f"refused: {found}"
        losses, weights = found
        for number, (one, other) in enumerate(zip(losses, expected, strict=True)):
            if not abs(one - other) <= tolerance * max(1.0, abs(other)):
                return f"different: loss {number} is {one!r}, plain {other!r}"
        if not weights:  # of another rank than the first
            return "equal"
        if weights.keys() != of_model.keys():
            return f"different: keys {sorted(weights.keys() ^ of_model.keys())[:4]}"
        for name, tensor in of_model.items():
            if tensor.is_floating_point() and not torch.allclose(weights[name], tensor, ROUNDED, ROUNDED):
                return f"different: weight {name} by {(weights[name] - tensor).abs().max():.2e}"
        return "equal"
