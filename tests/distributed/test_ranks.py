"""Lasting ranks of the tests: arguments per function, error reports, and recovery after a fault."""

from __future__ import annotations

import sys
import time

import pytest

from suite.core.protocols import World
from tests.support.ranks import on_ranks


def act(world: World, how: str) -> tuple[int, str]:
    if how == "raise" and world.rank == 1:
        print("before", file=sys.stderr, flush=True)
        raise ValueError("a deliberate fault")
    if how == "hang":
        time.sleep(600)
    return world.rank, how


@pytest.mark.slow("three ranks are started three times")
def test_functions_share_ranks_until_a_fault() -> None:
    """Three ranks: no other test that runs before uses as many."""
    assert on_ranks(3, act, "a b") == [(rank, "a b") for rank in range(3)]
    with pytest.raises(AssertionError, match=r"(?s)3 ranks of act ended early\n.*before.*a deliberate fault"):
        on_ranks(3, act, "raise")
    assert on_ranks(3, act, "after all") == [(rank, "after all") for rank in range(3)]
    with pytest.raises(AssertionError, match="were not done in 1 s"):
        on_ranks(3, act, "hang", deadline=1)
