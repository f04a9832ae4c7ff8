"""Measure systems in interleaved rounds A B A B, with one record per run.

In a round, one system trains a few batches while the ranks of the others are suspended, so slow drift of a shared
machine affects all systems alike. Runs with a record are not repeated unless `rerun` selects them. If another command
is executing a run, this command waits for its record. The failure of one system does not stop the others.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path

from suite.core.cores import cores
from suite.core.errors import InvalidRequest
from suite.core.files import check_folder, tidy
from suite.core.record import CANNOT, Outcome, Record
from suite.runner.ending import ending_of
from suite.runner.executors import in_process
from suite.runner.launch import rendezvous
from suite.runner.launch.processes import RunFailed
from suite.runner.launch.signals import check_interrupted
from suite.runner.locking import hold_locks, host_lock
from suite.runner.progress import Progress
from suite.runner.run import ActiveRun
from suite.runner.runs import Run
from suite.runner.store import Store


def measure(runs: Sequence[Run], progress: Progress) -> list[Record]:
    """Execute the runs of one experiment that have no reusable record.

    Waits for the records of runs that another command is executing. With on_error=stop, the runs after a failed run are
    not executed and have no record.

    Returns:
        The records of all runs in order.
    """
    if not runs:
        return []
    store, experiment = Store(check_folder(Path(runs[0].config.reports), "reports")), runs[0].config.experiment
    title, expected = experiment.name, float(experiment.expected_seconds)
    for folder in ("records", "traces"):
        tidy(store.folder / folder)
    runs = _with_whole_groups(list(map(with_checkpoint_folder, runs)), store, progress)
    pending = _PendingRuns(runs, store, progress)
    ranked: list[Run] = []
    waiting = [run for run in runs if store.reusable(run) is None]
    each = expected / len(runs)
    progress.skip(each * (len(runs) - len(waiting)))
    for run in waiting:
        if run.refusal is None and run.config.executor.starts_ranks:
            ranked.append(run)
            continue
        with pending.lock([run]) as unfinished:
            if unfinished and not pending.stopped:
                progress.show(f"{title} · {run.label}")
                try:
                    refused = run.refusal and in_process.record_of(run, ending_of(run.refusal))
                    pending.write(refused or in_process.run_in_process(run, store))
                    check_interrupted()
                except (KeyboardInterrupt, SystemExit) as ending:
                    cancelled = Outcome.CANCELLED, str(ending) or "interrupted"
                    pending.write_unless_ok(in_process.record_of(run, cancelled))
                    raise
        progress.advance(each)
    for part in parts_of(ranked):
        with pending.lock(part) as unfinished:
            progress.skip(each * (len(part) - len(unfinished)))
            exclusive = hold_locks(store.folder / "locks", [host_lock()], progress.show)
            with exclusive if unfinished and runs[0].config.launch.exclusive else nullcontext():
                _interleave(unfinished, pending, each)
    return pending.records()


def parts_of(runs: Sequence[Run]) -> list[Sequence[Run]]:
    """Runs of one experiment that are measured at the same time: all, or one after the other (together=false)."""
    return [[run] for run in runs] if runs and not runs[0].config.experiment.together else [runs]


class _PendingRuns:
    """Runs of an experiment with their locks and records.

    Attributes:
        stamps: Stamp of the record of each run at the start, by key.
        written: Records that this process has written, by key.
        stopped: Whether on_error=stop has ended the experiment.
    """

    def __init__(self, runs: Sequence[Run], store: Store, progress: Progress) -> None:
        self.runs, self.store, self.progress = runs, store, progress
        self.stamps = {run.key: store.stamp(run.key) for run in runs}
        self.written: dict[str, Record] = {}
        self.stopped = False

    @contextmanager
    def lock(self, runs: Sequence[Run]) -> Iterator[list[Run]]:
        """Lock `runs` and yield those that no other process has finished in the meantime."""
        with hold_locks(self.store.folder / "locks", [run.key for run in runs], self.progress.show):
            yield [run for run in runs if not self._is_finished(run)]

    def _is_finished(self, run: Run) -> bool:
        """Whether a reusable record of the run exists. A record written since the start of this command is reusable."""
        rerun = run.config.rerun if self.store.stamp(run.key) == self.stamps[run.key] else "stale"
        return self.store.reusable(run, rerun=rerun) is not None

    def write(self, record: Record) -> None:
        self.store.write(record)
        self.written[record.key] = record
        stops = self.runs[0].config.on_error == "stop"
        self.stopped = self.stopped or (stops and record.outcome not in (Outcome.OK, *CANNOT))

    def write_unless_ok(self, record: Record) -> None:
        """Write the record of an interrupted run, unless an earlier record has the outcome `ok`."""
        earlier = self.store.find(record.key)
        if earlier is None or earlier.outcome is not Outcome.OK:
            self.write(record)

    def records(self) -> list[Record]:
        """Records of all runs that have one, in order."""
        find = self.store.find
        found = [self.written.get(run.key) or find(run.key) or self.store.reusable(run) for run in self.runs]
        return [record for record in found if record is not None]


def with_checkpoint_folder(run: Run, check: Callable[[Path, str], object] = check_folder) -> Run:
    """The run, with a refusal if `check` refuses its checkpoint folder."""
    if run.refusal is not None or (folder := run.config.checkpoint.folder) is None:
        return run
    try:
        check(Path(folder), "checkpoint.folder")
    except InvalidRequest as error:
        return replace(run, refusal=error)
    return run


def _with_whole_groups(runs: Sequence[Run], store: Store, progress: Progress) -> list[Run]:
    """The runs, where those that share interrupted rounds with a cancelled run are measured again with it.

    Batch times of different measurements are not comparable. Nobody compares the times of replays, which are kept.
    """
    records = {id(run): store.find(run.key) for run in runs}
    cancelled = {r.provenance.get("turns") for r in records.values() if r and r.outcome is Outcome.CANCELLED} - {None}

    def chosen(run: Run) -> Run:
        record = records[id(run)]
        if run.config.rerun == "keep" or record is None or record.outcome is not Outcome.OK:
            return run
        if record.provenance.get("turns") not in cancelled or run.config.executor.one_process:
            return run
        progress.print_line(f"  {run.label} is measured again: an interrupt ended the rounds of its group")
        return replace(run, config=run.config.model_copy(update={"rerun": "all"}))

    return list(map(chosen, runs))


def _runs_at_once(runs: Sequence[Run]) -> int:
    """Runs that take a step at once: one per core if all are replays, whose times nobody compares, else one."""
    if not all(run.config.executor.one_process for run in runs):
        return 1
    return max(1, cores() // max(run.config.launch.threads for run in runs))


def _interleave(runs: Sequence[Run], pending: _PendingRuns, expected: float) -> None:
    """Execute runs that start ranks, with the ranks of all runs up at the same time.

    Args:
        runs: The runs.
        pending: Keys and records of the experiment's runs.
        expected: Expected seconds of one run.
    """
    if not runs:
        return
    store, progress, title = pending.store, pending.progress, runs[0].config.experiment.name
    scratch = Path(tempfile.mkdtemp(prefix="suite-", dir=rendezvous.shared_scratch(runs[0].config)))
    active, group_id = list[ActiveRun](), secrets.token_hex(8)
    together = _runs_at_once(runs)
    pool = ThreadPoolExecutor(together)
    spread = pool.map if together > 1 else map

    def take_step(run: ActiveRun, phase: str, step: Callable[[ActiveRun], None]) -> None:
        if pending.stopped or run.failure is not None:
            return
        progress.show(f"{title} · {phase} {run.run.label}")
        run.attempt(step, run)
        check_interrupted()
        if (run.failure or step is ActiveRun.finish) and not pending.stopped:
            pending.write(run.record(store))

    def take_turns(phase: str, step: Callable[[ActiveRun], None], work: float) -> None:
        for _ in spread(take_step, active, repeat(phase), repeat(step)):
            progress.advance(work * expected)

    def train(run: ActiveRun, number: int) -> None:
        if number < run.plan.rounds:
            run.train(run.plan.batches, run.plan.discard_first)

    try:
        for run in runs:
            active.append(ActiveRun(run, scratch, group_id))
        for step in (ActiveRun.start, ActiveRun.wait_until_built, ActiveRun.warm_up):
            take_turns("starting", step, 0.4 / 3)
        rounds = max(run.plan.rounds for run in active)
        for number in range(rounds):
            take_turns(f"round {number + 1} of {rounds} ·", partial(train, number=number), 0.5 / rounds)
        take_turns("finishing", ActiveRun.finish, 0.1)
    except (KeyboardInterrupt, SystemExit) as ending:  # the samples so far are kept
        pending.stopped = True
        for each in active:
            if each.run.key not in pending.written:
                each.failure = RunFailed(Outcome.CANCELLED, str(ending) or "interrupted")
                pending.write_unless_ok(each.record(store))
        raise
    finally:
        for each in active:
            each.ranks.terminate()  # all at once, as a launcher takes some time
        pool.shutdown(cancel_futures=True)
        for each in active:
            if each.stop():
                pending.write(each.record(store))
        shutil.rmtree(scratch, ignore_errors=True)
