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


def cases(ways: tuple[str, ...]) -> list[object]:
    return drawn([(how, *world) for how in ways for world in WORLDS], n=1)


@pytest.mark.parametrize(("how", "launcher", "transport"), cases(WELL))
def test_successful_script_has_status_0(how: str, launcher: str, transport: str) -> None:
    output = run_ranks(2, PROGRAM, how, transport, launcher=launcher, deadline=60)
    assert "".join(output.split()) == "endedended", "two ranks may write into one line"


@pytest.mark.parametrize(("how", "launcher", "transport"), cases(BADLY + EARLY) + cases(DIFFERENT))
def test_leaving_rank_ends_all_ranks(how: str, launcher: str, transport: str) -> None:
    with pytest.raises(AssertionError) as caught:
        run_ranks(2, PROGRAM, how, transport, launcher=launcher, deadline=60)
    output = str(caught.value)
    assert "were not done" not in output
    assert "terminate called" not in output
    assert "SIGABRT" not in output
    assert ("a deliberate fault" in output) == (how in ("raise", "collective"))
    assert how != "exit0" or "rank 1 has ended after 1 batch" in output
    if how in EARLY:
        counts = [int(count) for count in how.split(",")[2:]]
        fewest = min(counts)
        early = f"rank {counts.index(fewest)} has ended after {fewest} batches; this rank is at batch {fewest + 1}"
        assert early in output
    if how in DIFFERENT:
        assert ("other sizes or types" if how.startswith("sizes") else "is at an evaluation") in output
