"""Measure systems in interleaved rounds A B A B, with one record per run.

A turn is a few batches of one system while the others' ranks are stopped, so that slow drift of a shared machine falls
on all alike. Runs with a record are not repeated unless `rerun` asks for it. A run that another command is making is
awaited. A failure of one system does not stop the others."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from suite.core.errors import InvalidRequest, SuiteError
from suite.core.files import check_folder, tidy
from suite.core.reasons import whole
from suite.core.record import CANNOT, Outcome, Record
from suite.runner import provenance
from suite.runner.executors import in_process
from suite.runner.launch import rendezvous
from suite.runner.launch.processes import RunFailed
from suite.runner.locking import hold_locks, host_lock
from suite.runner.progress import Progress
from suite.runner.run import Session
from suite.runner.runs import Run
from suite.runner.slurm.job_records import announce_runs
from suite.runner.slurm.job_state import termination_reason
from suite.runner.store import Store


def measure(runs: Sequence[Run], progress: Progress) -> list[Record]:
    """Makes the runs of one experiment that no earlier record saves; the records of all of them, in order.

    Another command that makes some of them at the same time is waited for. With on_error=stop what follows a run that
    did not go well is not made, and has no record.
    """
    if not runs:
        return []
    outline = runs[0].outline
    store, rerun = Store(check_folder(Path(outline.reports), "reports")), outline.rerun
    title, expected = outline.experiment.name, float(outline.experiment.expected_seconds)
    for part in ("records", "traces"):
        tidy(store.folder / part)
    runs = [_with_checkpoints(run) for run in runs]
    todo = _Todo(runs, store, progress)
    announce_runs(runs, [todo.keys[id(run)] for run in runs])
    for run in [run for run in todo.runs if store.reusable(run.settings, todo.keys[id(run)], rerun) is None]:
        if run.refusal is None and run.outline.executor.starts_ranks:
            todo.ranked.append(run)
            continue
        with todo.alone([run]) as remaining:
            if remaining and not todo.stopped:
                progress.show(f"{title} · {run.label}")
                key = todo.keys[id(run)]
                try:
                    todo.keep(
                        in_process.refused_record(run, key)
                        if run.refusal
                        else in_process.run_in_process(run, key, store)
                    )
                except (KeyboardInterrupt, SystemExit) as ending:
                    todo.cancel(in_process.unfinished_record(run, key, *_why(ending)))
                    raise
    with todo.alone(todo.ranked) as ranked:
        progress.advance(expected * (1 - len(ranked) / len(runs)))
        timed = hold_locks(store.folder / "locks", [host_lock()], progress.show)
        with timed if ranked and runs[0].config.launch.exclusive else nullcontext():
            _in_turns(ranked, todo, expected / len(runs))
    return todo.records()


class _Todo:
    """Open runs of an experiment, their lock, and their records."""

    def __init__(self, runs: Sequence[Run], store: Store, progress: Progress) -> None:
        self.runs, self.store, self.progress = runs, store, progress
        self.keys = {id(run): provenance.key(run) for run in runs}
        self.before = {key: store.stamp(key) for key in self.keys.values()}
        self.ranked: list[Run] = []  # those that start ranks
        self.made: dict[str, Record] = {}
        self.stopped = False

    @contextmanager
    def alone(self, runs: Sequence[Run]) -> Iterator[list[Run]]:
        """The open runs among `runs`, locked by this process; runs locked by another process are complete by now."""
        with hold_locks(self.store.folder / "locks", [self.keys[id(run)] for run in runs], self.progress.show):
            yield [run for run in runs if self._standing(run) is None]

    def _standing(self, run: Run) -> Record | None:
        """A run that another process has made since this one began is never repeated."""
        key = self.keys[id(run)]
        rerun = run.outline.rerun if self.store.stamp(key) == self.before[key] else "stale"
        return self.store.reusable(run.settings, key, rerun)

    def keep(self, record: Record) -> None:
        self.store.write(record)
        self.made[record.key] = record
        stops = self.runs[0].outline.on_error == "stop"
        self.stopped = self.stopped or (stops and record.outcome not in (Outcome.OK, *CANNOT))

    def cancel(self, record: Record) -> None:
        """Writes the record of a run that was ended from outside, unless an earlier one went well."""
        earlier = self.store.find(record.key)
        if earlier is None or earlier.outcome is not Outcome.OK:
            self.keep(record)

    def records(self) -> list[Record]:
        """Of every run that has one, in order."""
        written = []
        for run in self.runs:
            key = self.keys[id(run)]
            rerun = "keep" if run.outline.rerun == "keep" else "stale"
            record = self.made.get(key) or self.store.find(key) or self.store.reusable(run.settings, key, rerun)
            written += [record] if record is not None else []
        return written


def _with_checkpoints(run: Run) -> Run:
    """The run, refused where its folder of checkpoints cannot be written."""
    if run.refusal is not None or (folder := run.config.checkpoint.folder) is None:
        return run
    try:
        check_folder(Path(folder), "checkpoint.folder")
    except InvalidRequest as error:
        return replace(run, refusal=error)
    return run


def _why(ending: BaseException) -> tuple[Outcome, str]:
    """Outcome and reason of a run that a signal or a scheduler ends."""
    return termination_reason() or (Outcome.CANCELLED, str(ending) or "interrupted")


def _sessions(ranked: Sequence[Run], todo: _Todo, scratch: Path, turns_of: str) -> Iterator[Session]:
    """A session for each run. A run that cannot be made leaves its record, and the others continue."""
    for run in ranked:
        key = todo.keys[id(run)]
        try:
            yield Session(run, key, scratch, turns_of)
        except SuiteError as error:
            todo.keep(in_process.refused_record(replace(run, refusal=error), key))
        except OSError:  # no room, no port: nothing can be made here
            raise
        except Exception as error:
            todo.keep(in_process.unfinished_record(run, key, Outcome.FAILED, whole(error)))


def _in_turns(ranked: Sequence[Run], todo: _Todo, share: float) -> None:
    """Runs that start ranks, all up at once. share: seconds that one is expected to take."""
    store, progress = todo.store, todo.progress
    title = ranked[0].outline.experiment.name if ranked else ""
    within = rendezvous.scratch(ranked[0].config) if ranked else None
    scratch = Path(tempfile.mkdtemp(prefix="suite-", dir=within))
    turns_of = secrets.token_hex(8)  # names those that take turns with one another
    sessions: list[Session] = []

    def step(session: Session, what: str, stage: Any, *arguments: Any) -> None:
        if todo.stopped:
            return
        progress.show(f"{title} · {what} {session.run.label}")
        if session.guarded(stage, *arguments):
            todo.keep(session.record(store))

    try:
        sessions += _sessions(ranked, todo, scratch, turns_of)
        for stage in (Session.start, Session.built, Session.warm_up):
            for session in sessions:
                step(session, "starting", stage, session)
                progress.advance(0.4 * share / 3)
        turns = max((session.plan.rounds for session in sessions), default=0)
        for turn in range(turns):
            for session in sessions:
                if turn < session.plan.rounds:
                    plan = session.plan
                    step(session, f"turn {turn + 1} of {turns} ·", session.train, plan.batches, plan.discard_first)
                progress.advance(0.5 * share / turns)
        for session in sessions:
            if session.trouble is None and not todo.stopped:
                progress.show(f"{title} · finishing {session.run.label}")
                session.guarded(session.finish)
                todo.keep(session.record(store))
            progress.advance(0.1 * share)
    except (KeyboardInterrupt, SystemExit) as ending:  # what runs have got is kept
        trouble = RunFailed(*_why(ending))
        for session in sessions:
            if session.key not in todo.made:
                session.trouble = trouble
                todo.cancel(session.record(store))
        raise
    finally:
        for session in sessions:
            session.ranks.end()  # all at once: a launcher takes its time
        for session in sessions:
            if session.stop():
                todo.keep(session.record(store))
        shutil.rmtree(scratch, ignore_errors=True)
