"""Ring collectives of ranks without torch move the parts of an all-reduce."""

from __future__ import annotations

from pathlib import Path

from tests.support.ranks import run_ranks


def test_ring_all_reduce_moves_every_slice() -> None:
    out = run_ranks(4, Path(__file__).with_name("program_ring.py"), deadline=60)
    assert f"{5 * (2 + 3 + 4)} rings" in out
