"""Random configurations without ranks: refused by name, run to an outcome, or a fault of the suite.

Faults are tracebacks (as an error or as a reason), reasons of several lines, and records that do not read back. A run
of more than LIMIT seconds is a fault too, or STUDY seconds for a published figure.
"""

from __future__ import annotations

import io
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType

from suite.core.errors import SuiteError
from suite.core.record import Outcome, Record
from suite.runner.interleave import measure
from suite.runner.progress import Progress
from suite.runner.runs import expand, unread_overrides
from tests.soak.endings import Ending

LIMIT = 20  # seconds of a core for one config, composing included; on a clock six times as long, as others have it too
STUDY = 120  # of a published figure whose experiment expects at most a minute (tests.soak.configs draws no other)


class TooSlow(BaseException):  # no executor takes it for an error of its own
    """A config took longer than LIMIT."""


@contextmanager
def limited(limit: int) -> Iterator[None]:
    """Raises TooSlow where the block takes longer."""

    def late(_: int, frame: FrameType | None) -> None:
        raise TooSlow("".join(traceback.format_stack(frame)[-6:]))

    signal.signal(signal.SIGALRM, late)
    signal.signal(signal.SIGPROF, late)
    signal.alarm(6 * limit)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def where(error: BaseException) -> str:
    """The kind of a fault: the error and the innermost line of the suite's that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if "/suite/" in f.filename or "/baselines/" in f.filename] or list(frames)
    return f"{type(error).__name__} at {'/'.join(Path(inside[-1].filename).parts[-2:])}:{inside[-1].lineno}"


def carried_out(overrides: Sequence[str], folder: Path) -> list[Record]:
    """The records of a command line whose runs start no rank; a run that would start some is composed alone. Overrides
    that change nothing, of which most random configs have some, are left out."""
    arguments = [*overrides, f"reports={folder}"] if not any(o.startswith("reports=") for o in overrides) else overrides
    unread = unread_overrides(arguments)
    runs = expand([override for override in arguments if override not in unread])
    runs = [run for run in runs if run.refusal is not None or not run.config.executor.starts_ranks]
    return measure(runs, Progress(1.0, io.StringIO()))


def endings(overrides: list[str], folder: Path) -> Iterator[Ending]:
    """How one config ends: one ending for each record, or for all of it."""
    try:
        with (
            limited(STUDY if "executor=published" in overrides else LIMIT),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            records = carried_out(overrides, folder)
    except SuiteError as error:
        if "\n" in str(error).strip():
            yield Ending(f"several lines: {type(error).__name__}", overrides, str(error))
        else:
            yield Ending("refused: nothing composes", overrides)
    except TooSlow as error:
        yield Ending(f"slow: {str(error).strip().splitlines()[-2].strip()}", overrides, str(error))
    except (Exception, SystemExit) as error:
        yield Ending(where(error), overrides, "".join(traceback.format_exception(error)[-8:]))
    else:
        if not records:
            yield Ending("composes: ranks would start", overrides)
        yield from (Ending(judge(record), overrides, fault_of(record)) for record in records)


def fault_of(record: Record) -> str:
    """The reason of a record that must not have it; empty for a good one."""
    several = record.outcome is not Outcome.OK and "\n" in record.reason
    same = Record.from_json(record.to_json()).reason == record.reason
    return "" if same and not several and "Traceback" not in record.reason else record.reason or "another reason"


def judge(record: Record) -> str:
    """The outcome of a record, or the kind of its fault."""
    if not fault_of(record):
        return record.outcome.value
    lines = [line.strip() for line in record.reason.splitlines() if 'File "' in line]
    project_lines = [line for line in lines if "/suite/" in line or "/baselines/" in line] or lines or [""]
    last = record.reason.strip().splitlines()[-1].partition(":")[0]
    return f"{record.outcome.value} with {last} at {project_lines[-1].partition('/suite/')[2]}"
