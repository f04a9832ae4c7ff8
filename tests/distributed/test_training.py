"""A user's training script over MPI and gloo equals plain PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.persistent_ranks import run_persistent
from tests.support.ranks import run_ranks

PROGRAM = Path(__file__).with_name("program_training.py")


def test_split_model_trains_and_gathers_over_mpi(tmp_path: Path) -> None:
    assert run_persistent(2, PROGRAM, str(tmp_path)).count("equal") == 4


@pytest.mark.exhaustive
def test_split_model_trains_and_gathers_over_gloo(tmp_path: Path) -> None:
    assert run_ranks(2, PROGRAM, str(tmp_path), launcher="torchrun").count("equal") == 4
