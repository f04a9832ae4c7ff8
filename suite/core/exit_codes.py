"""Exit status of every command.

A script can tell a slower system from a missing number.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from suite.core.record import CANNOT, Outcome, Record


class Exit(IntEnum):
    """Exit status of the commands of the suite. A process that a signal ended has 128 + its number, as in a shell."""

    OK = 0
    SOME_FAILED = 1  # some runs did not go well: each left a record with its outcome
    NOTHING = 2  # nothing was measured: the request was refused, or no run went well
    STOPPED = 3  # on_error=stop: a run failed, and those after it were not made
    REGRESSION = 4  # a metric got worse (suite.regression)
    NOT_COMPARABLE = 5  # nothing could be compared, or everything that could be is undecided for want of samples
    FAULT = 70  # a fault of the suite itself, whose traceback is printed; as in sysexits.h


def exit_code(records: Sequence[Record], on_error: str = "record") -> Exit:
    """Exit status of a command that leaves these records."""
    if on_error == "stop" and any(record.outcome not in (Outcome.OK, *CANNOT) for record in records):
        return Exit.STOPPED
    if not any(record.outcome is Outcome.OK for record in records):
        return Exit.NOTHING
    return Exit.OK if all(record.outcome is Outcome.OK for record in records) else Exit.SOME_FAILED
