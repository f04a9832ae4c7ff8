"""Exit status of every command.

The statuses distinguish a regression from a failed or missing measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from suite.core.record import CANNOT, Outcome, Record


class Exit(IntEnum):
    """Exit status of the commands of the suite. A process that a signal ended has 128 + its number, as in a shell."""

    OK = 0
    SOME_FAILED = 1  # some runs failed; each left a record with its outcome
    NOTHING = 2  # nothing was measured: the request was refused, or every run failed
    STOPPED = 3  # on_error=stop: a run failed, and later runs were not started
    REGRESSION = 4  # a metric got worse (suite.regression)
    NOT_COMPARABLE = 5  # nothing could be compared, or too few samples decide every comparison
    FAULT = 70  # an error in the suite itself, with its traceback; EX_SOFTWARE of sysexits.h


def exit_code(records: Sequence[Record], on_error: str = "record") -> Exit:
    """Exit status of a command that leaves these records."""
    if on_error == "stop" and any(record.outcome not in (Outcome.OK, *CANNOT) for record in records):
        return Exit.STOPPED
    if not any(record.outcome is Outcome.OK for record in records):
        return Exit.NOTHING
    return Exit.OK if all(record.outcome is Outcome.OK for record in records) else Exit.SOME_FAILED
