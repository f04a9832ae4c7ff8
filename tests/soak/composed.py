"""Random configurations without ranks: refused by name, run to an outcome, or a fault of the suite.

Faults are tracebacks (as an error or as a reason), reasons of several lines, and records that do not read back. A run
of more than LIMIT seconds is a fault too, or STUDY seconds for a published figure.
"""

from __future__ import annotations

import io
import math
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from hypothesis import HealthCheck, Phase, given, seed, settings

from suite.core.errors import SuiteError
from suite.core.record import Outcome, Record
from suite.runner.interleave import measure
from suite.runner.progress import Progress
from suite.runner.runs import expand, unread_overrides
from tests.soak.configs import config

LIMIT = 20  # seconds of a core for one config, composing included; on a clock six times as long, as others have it too
STUDY = 120  # of a published figure whose experiment expects at most a minute (tests.soak.configs draws no other)


class TooSlow(BaseException):  # no executor takes it for an error of its own
    """A config took longer than LIMIT."""


@dataclass
class Tally:
    """Number of configs by outcome, an example config and message by kind of fault, and the slowest config."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: dict[str, tuple[list[str], str]] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, list[str]] = (0.0, [])

    def add(self, other: Tally) -> None:
        """Results of another process."""
        self.outcomes += other.outcomes
        self.counted += other.counted
        self.faults = other.faults | self.faults
        self.slowest = max(self.slowest, other.slowest)

    def fault(self, kind: str, overrides: list[str], text: str) -> None:
        self.outcomes["fault"] += 1
        self.counted[kind] += 1
        if kind not in self.faults:
            sys.stderr.write(f"{kind}: {' '.join(overrides)}\n")
        if kind not in self.faults or len(overrides) < len(self.faults[kind][0]):
            self.faults[kind] = (overrides, text)


@contextmanager
def limited(limit: int) -> Iterator[None]:
    """Raises TooSlow where the block takes longer."""

    def late(_: int, frame: FrameType | None) -> None:
        raise TooSlow("".join(traceback.format_stack(frame)[-6:]))

    before = signal.signal(signal.SIGALRM, late), signal.signal(signal.SIGPROF, late)
    signal.alarm(6 * limit)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGPROF, before[1])


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


def one(overrides: list[str], folder: Path, tally: Tally) -> None:
    """The outcome of one config is added to `tally`."""
    begin = time.monotonic()
    try:
        with (
            limited(STUDY if "executor=published" in overrides else LIMIT),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            records = carried_out(overrides, folder)
    except SuiteError as error:
        tally.outcomes["refused: nothing composes"] += 1
        if "\n" in str(error).strip():
            tally.fault(f"several lines: {type(error).__name__}", overrides, str(error))
    except TooSlow as error:
        tally.fault(f"slow: {str(error).strip().splitlines()[-2].strip()}", overrides, str(error))
    except (Exception, SystemExit) as error:
        tally.fault(where(error), overrides, "".join(traceback.format_exception(error)[-8:]))
    else:
        tally.outcomes["composes: ranks would start"] += not records
        for record in records:
            judge(record, overrides, tally)
    tally.slowest = max(tally.slowest, (time.monotonic() - begin, overrides))


def judge(record: Record, overrides: list[str], tally: Tally) -> None:
    again = Record.from_json(record.to_json())
    if "Traceback" in record.reason or (record.outcome is Outcome.FAILED and "\n" in record.reason):
        lines = [line.strip() for line in record.reason.splitlines() if 'File "' in line]
        last = record.reason.strip().splitlines()[-1].partition(":")[0]
        project_lines = [line for line in lines if "/suite/" in line or "/baselines/" in line] or lines
        tally.fault(f"outcome {last} at {project_lines[-1].partition('/suite/')[2]}", overrides, record.reason[-1500:])
    elif record.outcome is not Outcome.OK and "\n" in record.reason:
        tally.fault(f"several lines: {record.outcome.value}", overrides, record.reason)
    elif again.reason != record.reason:
        tally.fault("a reason changes as it is read back", overrides, record.reason)
    else:
        tally.outcomes[record.outcome.value] += 1


def many(count: int, number: int, folder: Path, seconds: float = math.inf) -> Tally:
    """`count` configs of the seed `number`; none begins after these seconds."""
    until = time.monotonic() + seconds
    tally = Tally()

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(config(folder))
    def tried(overrides: list[str]) -> None:
        if time.monotonic() < until:
            one(overrides, folder / "reports", tally)

    with chdir(folder):
        tried()
    return tally


def part(job: tuple[int, int, str, float]) -> Tally:
    """Work of one of several processes: number of configs, seed, folder, seconds."""
    count, number, folder, seconds = job
    Path(folder).mkdir()
    return many(count, number, Path(folder), seconds)


def report(tally: Tally) -> str:
    """How configs ended, and every kind of fault with one command line that has it."""
    lines = [f"{number:7}  {outcome}" for outcome, number in tally.outcomes.most_common()]
    lines.append(f"the slowest took {tally.slowest[0]:.1f} s: {' '.join(tally.slowest[1])}")
    for kind, count in tally.counted.most_common():
        overrides, text = tally.faults[kind]
        lines += [
            f"\nFAULT ({count} times) {kind}",
            f"  {overrides}",
            *(f"  | {line}" for line in text.splitlines()[-12:]),
        ]
    return "\n".join(lines)
