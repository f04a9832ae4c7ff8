"""Ends of users' scripts on two ranks: each exits promptly with its status, and no rank aborts or hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.drawn import drawn
from tests.support.ranks import run_ranks

PROGRAM = Path(__file__).parent / "program_ends.py"
WORLDS = (("torchrun", "gloo"), ("mpiexec", "mpi"), ("mpiexec", "gloo"))
WELL = ("nothing", "close", "two", "destroy", "slow")
BADLY = ("raise", "exit3", "exit0", "interrupt", "collective")
EARLY = (  # one rank has fewer batches than the other
    *("calls,inter,3,5", "calls,data,3,5", "calls,data,5,3", "calls,inter,3,4", "calls,inter,2,3"),
    *("loop,inter,3,9", "loop,data,9,3"),
)
DIFFERENT = ("sizes,inter", "sizes,data", "other,inter", "other,data")  # rank 1 has another batch or call


ROWS = [(how, *world) for how in WELL + BADLY + EARLY + DIFFERENT for world in WORLDS]


@pytest.mark.parametrize(("how", "launcher", "transport"), drawn(ROWS, n=1))
def test_every_rank_ends_with_its_status(how: str, launcher: str, transport: str) -> None:
    try:
        output, succeeded = run_ranks(2, PROGRAM, how, transport, launcher=launcher, deadline=60), True
    except AssertionError as error:
        output, succeeded = str(error), False
    assert succeeded == (how in WELL), output
    if succeeded:
        assert "".join(output.split()) == "endedended", "two ranks may write into one line"
    for word in ("were not done", "terminate called", "SIGABRT"):
        assert word not in output
    assert ("a deliberate fault" in output) == (how in ("raise", "collective"))
    assert how != "exit0" or "rank 1 has ended after 1 batch" in output
    if how in EARLY:
        counts = [int(count) for count in how.split(",")[2:]]
        fewest = min(counts)
        early = f"rank {counts.index(fewest)} has ended after {fewest} batches; this rank is at batch {fewest + 1}"
        assert early in output
    if how in DIFFERENT:
        assert ("other sizes or types" if how.startswith("sizes") else "is at an evaluation") in output
