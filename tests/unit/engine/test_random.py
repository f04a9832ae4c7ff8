"""Random numbers of layers depend on run, layer and sample only."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from suite.engine.random_state import LayerRandom, drawing, initial, undisturbed


def test_seeds_are_stable_between_releases() -> None:
    """Resumed runs and committed records depend on these values, which are therefore part of the format."""
    assert LayerRandom(0, 0).seed(0) == 1279368494785126216
    assert LayerRandom(1, 2).seed(3) == 3851293329796251419
    assert LayerRandom(3, 2).seed(1) == 7716143592125757362
    assert LayerRandom(5, 7).seed((1 << 32) - 1) == 9201095345306388727


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
