"""Random numbers of layers depend on run, layer and sample only."""

from __future__ import annotations

from suite.engine.random_state import LayerRandom


def test_seeds_are_stable_between_releases() -> None:
    """Resumed runs and committed records depend on these values, which are therefore part of the format."""
    assert LayerRandom(0, 0).seed(0) == 1279368494785126216
    assert LayerRandom(1, 2).seed(3) == 3851293329796251419
    assert LayerRandom(3, 2).seed(1) == 7716143592125757362
    assert LayerRandom(5, 7).seed((1 << 32) - 1) == 9201095345306388727
