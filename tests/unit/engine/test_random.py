"""Random numbers of layers depend on run, layer and sample only."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from suite.comm.p2p import threads
from suite.core.grid import Grid
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
from suite.engine.random_state import drawing, initial, seed_of, undisturbed


def test_seeds_are_distinct_over_a_cube() -> None:
    numbers = [*range(12), (1 << 32) - 1]
    seeds = {seed_of(*point) for point in product(numbers, repeat=3)}
    assert len(seeds) == len(numbers) ** 3
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_seeds_are_stable_between_releases() -> None:
    """Resumed runs and committed records depend on these values, which are therefore part of the format."""
    assert seed_of(0, 0, 0) == 1279368494785126216
    assert seed_of(1, 2, 3) == 3851293329796251419
    assert seed_of(3, 2, 1) == 7716143592125757362
    assert seed_of(5, 7, (1 << 32) - 1) == 9201095345306388727


def test_drawing_reproduces() -> None:
    def draw(*point: int) -> torch.Tensor:
        with drawing(*point):
            return torch.rand(5)

    assert torch.equal(draw(1, 2, 3), draw(1, 2, 3))
    assert initial(1, 2) == (1, 2, 2**32 - 1)  # a sample number that no sample has
    others = [draw(1, 2, 4), draw(1, 3, 3), draw(2, 2, 3), draw(*initial(1, 2))]
    assert not any(torch.equal(draw(1, 2, 3), other) for other in others)


@pytest.mark.parametrize("fails", [False, True])
def test_undisturbed_restores_generator_state(fails: bool) -> None:
    torch.manual_seed(11)
    state = torch.get_rng_state()
    with suppress(ValueError), undisturbed(), drawing(0, 1, 2):
        torch.rand(100)
        if fails:
            raise ValueError
    assert torch.equal(torch.get_rng_state(), state)
    with drawing(0, 0, 0):  # would wait without end if the lock were not released
        assert torch.rand(1).numel() == 1


def test_initial_weights_are_equal_on_every_split() -> None:
    def weights_on(grid: Grid) -> dict[tuple[int, int], torch.Tensor]:
        """Weights by layer and number in the layer."""

        def rank(world: threads.LoopbackWorld) -> dict[tuple[int, int], torch.Tensor]:
            layers: list[Any] = [lambda: torch.nn.Linear(3, 3) for _ in range(4)]
            more: dict[str, Any] = {"loss": mse_loss, "optimizer": SGD(0.1), "microbatch": 1, "seed": 9}
            with Engine(layers, grid=grid, world=world, **more) as engine:
                return {
                    (layer, number): weight.detach().clone()
                    for layer, module in engine.state.numbered_layers()
                    for number, weight in enumerate(module.parameters())
                }

        merged: dict[tuple[int, int], torch.Tensor] = {}
        for weights in threads.run(grid.size, rank):
            assert all(torch.equal(merged.setdefault(place, weight), weight) for place, weight in weights.items())
        return merged

    one = weights_on(Grid())
    assert len(one) == 8
    assert not torch.equal(one[0, 0], one[1, 0])
    for grid in (Grid(inter=2), Grid(inter=3), Grid(data=2, inter=2)):
        other = weights_on(grid)
        assert all(torch.equal(other[place], weight) for place, weight in one.items()), str(grid)
