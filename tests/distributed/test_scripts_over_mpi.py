"""Kinds of training scripts on ranks of their own equal the plain script; see tests/laws/test_scripts.py."""

from __future__ import annotations

import json

import pytest

from tests.support.drawn import few
from tests.support.persistent_ranks import run_persistent
from tests.support.ranks import ROOT
from tests.support.tools import needs
from tests.support.user_scripts import KINDS

PROGRAM = ROOT / "tests" / "distributed" / "program_scripts.py"


@pytest.mark.ranks
def test_kinds_over_mpi() -> None:
    """Kinds that are refused there are left out, as they would end the other rank."""
    needs("mpiexec")
    kinds = few([kind for kind in KINDS if kind != "buffer of two stages"], 8)
    lines = run_persistent(2, PROGRAM, *kinds).splitlines()
    assert lines
    assert [line for line in lines if json.loads(line)[2] != "equal"] == []
