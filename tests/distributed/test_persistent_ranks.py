"""Persistent test ranks: arguments per program, error reports, and recovery after a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.persistent_ranks import run_persistent

PROGRAM = """
import sys, time
from suite.comm.rendezvous.launcher_env import launch_info

if sys.argv[1] == "raise" and launch_info().rank == 1:
    print("before", file=sys.stderr, flush=True)
    raise ValueError("a deliberate fault")
if sys.argv[1] == "hang":
    time.sleep(600)
print(launch_info().rank, __name__, *sys.argv[1:])
leftover = "of one program"
"""


@pytest.mark.slow("three ranks are started three times")
def test_programs_share_ranks_until_a_fault(tmp_path: Path) -> None:
    """Three programs that no other test uses: their ranks continue."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    output = "0 __main__ {0}\n1 __main__ {0}\n2 __main__ {0}\n"
    assert run_persistent(3, program, "a b") == output.format("a b")
    program.write_text(f"assert 'leftover' not in globals()\n{PROGRAM}")
    assert run_persistent(3, program, "again") == output.format("again")
    with pytest.raises(AssertionError, match=r"(?s)3 ranks of program.py ended early\n.*before.*a deliberate fault"):
        run_persistent(3, program, "raise")
    assert run_persistent(3, program, "after all") == output.format("after all")
    with pytest.raises(AssertionError, match="were not done in 1 s"):
        run_persistent(3, program, "hang", deadline=1)
