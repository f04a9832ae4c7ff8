"""SAMO over MPI equals masked training, and sends dense bytes times the density."""

from __future__ import annotations

import json

import pytest

from tests.support.persistent_ranks import run_persistent
from tests.support.ranks import ROOT

PROGRAM = ROOT / "tests" / "distributed" / "program_samo.py"


@pytest.mark.ranks
@pytest.mark.parametrize("over", ["mpi", "gloo"])
def test_reduction_sends_only_kept_entries(over: str) -> None:
    """SAMO IV-A: 2 f phi bytes instead of 2 phi; unpruned weights send all bytes."""
    rows = json.loads(run_persistent(2, PROGRAM, over).splitlines()[-1])
    assert len(rows) == 12
    dense = {(half, chunks): size for half, chunks, _, sparsity, _, _, size in rows if sparsity == 0}
    for half, chunks, what, sparsity, kept_entries, whole, size in rows:
        width = 2 if half else 4
        assert size == width * (kept_entries + whole)
        assert (whole == 0) == (what == "all")
        if what == "all":
            everything = dense[half, chunks] // width
            assert size / dense[half, chunks] == kept_entries / everything == pytest.approx(1 - sparsity, abs=2e-3)
