"""Law 8 over MPI."""

from __future__ import annotations

from pathlib import Path

from ranks import run_ranks


def test_two_ranks_resume_where_they_stopped(tmp_path: Path) -> None:
    out = run_ranks(2, Path(__file__).with_name("program_resume.py"), str(tmp_path))
    assert "MpiWorld: " in out
    assert len([*tmp_path.iterdir()]) == 4
