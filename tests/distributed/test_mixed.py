"""Mixed precision over MPI is bit-identical to a plain loop."""

from __future__ import annotations

import pytest

from tests.support.persistent_ranks import run_persistent
from tests.support.ranks import ROOT

PROGRAM = ROOT / "tests" / "distributed" / "program_mixed.py"


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_mixed_precision_over_mpi(ranks: int) -> None:
    run_persistent(ranks, PROGRAM)
